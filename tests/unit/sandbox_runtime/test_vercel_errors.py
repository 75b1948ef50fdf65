"""The one mapping of what the Vercel SDK raises."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import vercel.sandbox as sdk
from vercel._internal.core.http.transport import (
    extract_structured_error,  # what the SDK makes of an answer
)

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.vercel.client import ask, map_errors

_GONE, _FAILED = SandboxErrorCode.UNAVAILABLE, SandboxErrorCode.CREATE_FAILED
_MISSING, _LIMIT = SandboxErrorCode.NOT_FOUND, SandboxErrorCode.LIMIT_REACHED


def _api_error(status: int, code: str = "code", message: str = "message") -> sdk.SandboxApiError:
    response = httpx2.Response(status, json={"error": {"code": code, "message": message}})
    said, data = extract_structured_error(response)
    return sdk.SandboxApiError(response, said, data=data)


def _map(exc: BaseException, **codes: Any) -> SandboxError:
    with pytest.raises(SandboxError) as caught, map_errors.unbounded("cannot act", **codes):
        raise exc
    assert caught.value.__cause__ is exc
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "wanted", "retryable"),
    [
        (400, "bad_request", _FAILED, False),
        (401, "unauthorized", _GONE, False),
        (402, "payment_required", _LIMIT, False),
        (403, "forbidden", _GONE, False),
        (404, "not_found", _MISSING, False),
        (409, "conflict", _FAILED, False),
        (410, "sandbox_stopped", _GONE, False),
        (410, "snapshot_not_found", _MISSING, False),
        (400, "snapshot_region_mismatch", _MISSING, False),
        (422, "sandbox_stopping", _GONE, False),
        (429, "rate_limited", _LIMIT, True),
        (500, "internal_error", _FAILED, True),
        (503, "unavailable", _FAILED, True),
    ],
)
def test_answers(status: int, code: str, wanted: SandboxErrorCode, retryable: bool) -> None:
    """By status and code; the message says what was done, and each of both once."""
    found = _map(_api_error(status, code), otherwise=_FAILED)
    assert (found.code, found.retryable) == (wanted, retryable)
    assert str(found).startswith(f"cannot act: HTTP {status}: message (code={code})")
    assert str(found).count(str(status)) == 1


def _subclasses(cls: type[BaseException]) -> Iterator[type[BaseException]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


@pytest.mark.parametrize("cls", [sdk.SandboxError, *_subclasses(sdk.SandboxError)])
def test_every_class_is_mapped(cls: type[BaseException]) -> None:
    """None of the SDK's errors gets out."""
    exc = cls.__new__(cls)
    exc.args = ("of the SDK",)
    if isinstance(exc, sdk.SandboxApiError):
        exc = _api_error(400)
    if isinstance(exc, sdk.SandboxTerminalStateError):
        exc.status = sdk.SandboxStatus.FAILED
    if isinstance(exc, (sdk.SandboxStdinError, sdk.SandboxFilesystemWriteError)):
        exc.cause = _api_error(404)
        assert _map(exc).code is _MISSING
    assert str(_map(exc)).startswith("cannot act: ")


@pytest.mark.parametrize("cls", [httpx2.ReadTimeout, httpx2.ConnectError, httpx2.RemoteProtocolError])  # fmt: skip
def test_connections_break(cls: type[httpx2.TransportError]) -> None:
    """What the SDK lets out of its HTTP library may pass."""
    found = _map(cls("broken"), otherwise=_FAILED)
    assert (found.code, found.retryable) == (_GONE, True)


def test_no_answer_and_no_sense() -> None:
    """A limit of time and an answer that is no JSON may pass, too."""
    assert _map(TimeoutError()).retryable
    page = "<html><body>Bad gateway " + "x" * 5000
    text = str(_map(_api_error(502, message=page)))
    assert "a page of HTML" in text
    assert len(text) < 200


async def test_repetitions() -> None:
    """Three times while that may help, once when it does not."""
    for status, tries in ((500, 3), (403, 1)):
        count = 0

        async def fail(status: int = status) -> None:
            nonlocal count
            count += 1
            raise _api_error(status)

        with pytest.raises(SandboxError):
            await ask(fail, "cannot act")
        assert count == tries

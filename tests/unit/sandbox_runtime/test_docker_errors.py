"""Every error of the engine's client becomes one of ours."""

import inspect
from typing import Any

import aiodocker.exceptions
import aiohttp
import pytest

from sandbox_runtime import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.docker.client import map_errors

_GONE = SandboxErrorCode.UNAVAILABLE


def _subclasses(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(_subclasses(below) for below in kind.__subclasses__()))


def _vendor_errors() -> list[type[BaseException]]:
    found = {
        kind
        for _, kind in inspect.getmembers(aiodocker.exceptions, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == aiodocker.exceptions.__name__
    }
    return sorted(found | _subclasses(aiohttp.ClientError), key=lambda kind: kind.__name__)


def _mapped(error: BaseException, **codes: SandboxErrorCode) -> SandboxError:
    with pytest.raises(SandboxError) as caught, map_errors.unbounded("cannot do it", **codes):
        raise error
    assert caught.value.__cause__ is error
    return caught.value


@pytest.mark.parametrize("kind", _vendor_errors(), ids=lambda kind: kind.__name__)
def test_every_vendor_error_is_mapped(kind: type[BaseException]) -> None:
    """No class of the client passes through."""
    # Without their constructors, which want half a connection; those only make the text.
    silent = type(kind.__name__, (kind,), {"__str__": lambda _self: "text"})
    error: Any = silent.__new__(silent)  # type: ignore[call-overload]  # made at run time
    if issubclass(kind, aiodocker.exceptions.DockerError):
        error.status, error.message = 500, "text"
    with pytest.raises(SandboxError), map_errors.unbounded("cannot do it"):
        raise error


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, SandboxErrorCode.CREATE_FAILED, False),
        (401, SandboxErrorCode.UNAVAILABLE, False),
        (403, SandboxErrorCode.UNAVAILABLE, False),
        (404, SandboxErrorCode.NOT_FOUND, False),
        (409, SandboxErrorCode.CREATE_FAILED, True),
        (429, SandboxErrorCode.LIMIT_REACHED, True),
        (500, SandboxErrorCode.CREATE_FAILED, True),
        (503, SandboxErrorCode.CREATE_FAILED, True),
        (900, SandboxErrorCode.UNAVAILABLE, True),
    ],
)
def test_statuses(status: int, code: SandboxErrorCode, retryable: bool) -> None:
    """A status decides the code and whether trying again may help."""
    error = aiodocker.DockerError(status, "why")
    mapped = _mapped(error, otherwise=SandboxErrorCode.CREATE_FAILED)
    assert (mapped.code, mapped.retryable) == (code, retryable)
    assert str(mapped).startswith("cannot do it: why")


def test_missing_is_what_the_caller_says() -> None:
    """A container that is gone under its sandbox is UNAVAILABLE, not NOT_FOUND."""
    error = aiodocker.DockerError(404, "no such container")
    assert _mapped(error, missing=SandboxErrorCode.UNAVAILABLE).code is SandboxErrorCode.UNAVAILABLE


def test_full_disk() -> None:
    """A full disk is a limit, and trying again does not help."""
    text = "mkdir /var/lib/docker/overlay2/x: no space left on device"
    mapped = _mapped(aiodocker.DockerError(500, text), otherwise=SandboxErrorCode.CREATE_FAILED)
    assert (mapped.code, mapped.retryable) == (SandboxErrorCode.LIMIT_REACHED, False)


def test_forbidden_socket_names_its_own_fix() -> None:
    """A socket that may not be opened is told apart from an engine that is not there."""
    error = aiodocker.DockerError(900, "cannot connect")
    error.__context__ = PermissionError(13, "Permission denied")
    assert "group docker" in str(_mapped(error))


def test_others_pass() -> None:
    """Our own errors and bugs are not touched."""
    for error in (SandboxError(SandboxErrorCode.SETUP_FAILED, "x"), ValueError("bug")):
        with pytest.raises(type(error)) as caught, map_errors.unbounded("x"):
            raise error
        assert caught.value is error


def test_no_answer() -> None:
    """A request without an answer in time may be tried again."""
    mapped = _mapped(TimeoutError())
    assert (mapped.code, mapped.retryable) == (SandboxErrorCode.UNAVAILABLE, True)

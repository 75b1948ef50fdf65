"""What the SDK, its HTTP client and the WebSocket library raise, as `SandboxError`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
import websockets
from deno_sandbox import HTTPStatusError
from deno_sandbox.errors import (
    AuthenticationError,
    MissingApiToken,
    ProcessAlreadyExited,
    RpcValidationError,
    UnknownRpcMethod,
)

from sandbox_runtime.errors import SandboxError, SandboxErrorCode

REQUEST_TIMEOUT_S = 15.0
"""Of one request. The SDK's own limit is 10 s for each phase of it."""

CONCURRENCY_LIMIT = "SANDBOX_CONCURRENCY_LIMIT_EXCEEDED"
VOLUME_IS_MOUNTED = "VOLUME_IS_MOUNTED"
"""Seen on the platform, 2026; also that an unready volume is answered with 500."""

_REMEDY = "look at DENO_DEPLOY_TOKEN"
_MESSAGE_CHARS = 300


class ConnectionLost(Exception):  # noqa: N818  # it names an event
    """The connection to a sandbox broke, or nothing came over it any more."""


class UnexpectedAnswer(Exception):  # noqa: N818  # same
    """The other side said what the protocol does not know."""


class RemoteError(Exception):
    """A call was refused: by the service inside the sandbox, or for its form."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An HTTP answer that is no success."""

    status: int
    code: str
    message: str


@asynccontextmanager
async def asking(
    doing: str,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> AsyncIterator[None]:
    """A request: bounded, its errors mapped."""
    with map_deno_errors(doing, otherwise=otherwise, missing=missing):
        async with asyncio.timeout(timeout_s):
            yield


@contextmanager
def map_deno_errors(
    doing: str,
    *,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> Iterator[None]:
    """Raises: SandboxError: `missing` for what does not exist, LIMIT_REACHED for a quota, UNAVAILABLE when Deno does not
    answer or does not take the token, `otherwise` when it refuses or fails. Its `__cause__` is the original.
    """
    try:
        yield
    except (HTTPStatusError, websockets.InvalidStatus) as exc:
        raise _from_status(refusal_of(exc), doing, otherwise=otherwise, missing=missing) from exc
    except (AuthenticationError, MissingApiToken) as exc:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"{doing}: {exc}; {_REMEDY}") from exc
    except TimeoutError as exc:
        raise SandboxError(
            otherwise, f"{doing}: no answer from Deno in time", retryable=True
        ) from exc
    except RemoteError as exc:
        raise SandboxError(otherwise, f"{doing}: {_short(exc)}", retryable=exc.retryable) from exc
    except (ProcessAlreadyExited, RpcValidationError, UnknownRpcMethod) as exc:
        raise SandboxError(otherwise, f"{doing}: {_short(exc)}") from exc
    except (
        UnexpectedAnswer,
        json.JSONDecodeError,
        UnicodeDecodeError,
        websockets.InvalidHandshake,
        httpx.InvalidURL,
    ) as exc:
        text = f"{doing}: not an answer of Deno: {_short(exc)}"
        raise SandboxError(otherwise, text, retryable=True) from exc
    except (ConnectionLost, websockets.WebSocketException, httpx.HTTPError, OSError) as exc:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"{doing}: the connection to Deno broke: {_short(exc) or type(exc).__name__}",
            retryable=True,
        ) from exc


def refusal_of(exc: BaseException | None) -> Refusal | None:
    """What was answered, if it was an answer."""
    match exc:
        case HTTPStatusError():
            return Refusal(status=exc.status_code, code=exc.code, message=exc.message)
        case websockets.InvalidStatus():
            code, message = _parse_refusal(bytes(exc.response.body or b""))
            return Refusal(status=exc.response.status_code, code=code, message=message)
        case _:
            return None


def _parse_refusal(body: bytes) -> tuple[str, str]:
    try:
        said = json.loads(body)
        return str(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        return "", body[:_MESSAGE_CHARS].decode("utf-8", "replace")


def _from_status(
    refusal: Refusal | None,
    doing: str,
    *,
    otherwise: SandboxErrorCode,
    missing: SandboxErrorCode,
) -> SandboxError:
    assert refusal is not None  # noqa: S101  # both classes are answers
    status = refusal.status
    text = f"{doing}: {refusal.message[:_MESSAGE_CHARS].strip()} ({status} {refusal.code})".rstrip()
    match status:
        case 401 | 403:
            return SandboxError(SandboxErrorCode.UNAVAILABLE, f"{text}; {_REMEDY}")
        case 404:
            return SandboxError(missing, text)
        case 429:
            return SandboxError(SandboxErrorCode.LIMIT_REACHED, text, retryable=True)
        case _:
            # Of the rest, what the other side failed at may pass, as may a page in place of an answer; what it refused
            # will not.
            return SandboxError(otherwise, text, retryable=not 400 <= status < 500 or status == 409)  # noqa: PLR2004  # HTTP


def _short(exc: BaseException) -> str:
    return str(exc)[:_MESSAGE_CHARS]

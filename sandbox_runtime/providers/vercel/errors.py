"""The one mapping of the SDK's errors to ours.

SandboxApiError               by HTTP status and code: the API has one class for all its answers
SandboxTerminalStateError       a sandbox ended while it was made
SandboxStdinError, filesystem   their `cause` says why
SandboxError                    the rest: an answer of the wrong shape, a stream that broke off
httpx2.TransportError           the connection broke; the SDK lets these out as they are
TimeoutError                    no answer in time
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import httpx2
import vercel.sandbox as sdk
from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from sandbox_runtime.errors import SandboxError, SandboxErrorCode

API_TIMEOUT_S = 70.0
"""Of one request: the SDK itself gives up after 60 s. Source: vercel-sandbox 0.10.0."""
ATTEMPTS = 3
_BACKOFF_S = 0.2

_GONE, _LIMIT = SandboxErrorCode.UNAVAILABLE, SandboxErrorCode.LIMIT_REACHED
_BY_STATUS: Mapping[int, tuple[SandboxErrorCode | None, bool]] = {
    400: (None, False),
    401: (_GONE, False),
    402: (_LIMIT, False),
    403: (_GONE, False),
    409: (None, False),
    410: (_GONE, False),
    422: (_GONE, False),
    429: (_LIMIT, True),
}
"""Code (None = what the caller says) and whether trying again may help. Of the rest, 5xx may pass and 4xx will not."""

_REMEDIES = {
    401: "; the credentials are not accepted: check VERCEL_TOKEN, or VERCEL_OIDC_TOKEN",
    402: "; the plan's allowance is used up",
    403: "; the credentials do not reach this team or project: check VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID",
}
_LOST_SNAPSHOTS = frozenset({"snapshot_not_found", "snapshot_region_mismatch"})
_REASON_CHARS = 300


_T = TypeVar("_T")


async def ask(
    work: Callable[[], Awaitable[_T]],
    doing: str,
    *,
    timeout_s: float = API_TIMEOUT_S,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> _T:
    """A request that may be repeated without harm: tried three times while that may help. The SDK repeats few by itself."""
    retrying = AsyncRetrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=_BACKOFF_S),
        retry=retry_if_exception(lambda exc: isinstance(exc, SandboxError) and exc.retryable),
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            async with asking(doing, timeout_s=timeout_s, otherwise=otherwise, missing=missing):
                return await work()
    raise AssertionError("tenacity ends with a result or an error")


@asynccontextmanager
async def asking(
    doing: str,
    *,
    timeout_s: float = API_TIMEOUT_S,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> AsyncIterator[None]:
    """A request to the API: bounded, its errors mapped."""
    with map_vercel_errors(doing, otherwise=otherwise, missing=missing):
        async with asyncio.timeout(timeout_s):
            yield


@contextmanager
def map_vercel_errors(
    doing: str,
    *,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> Iterator[None]:
    """Raises: SandboxError: `missing` for what does not exist, NOT_FOUND for a snapshot that is gone, LIMIT_REACHED for a
    quota or too many requests, `otherwise` when the API refuses or fails, UNAVAILABLE when it does not answer.
    """
    try:
        yield
    except (sdk.SandboxError, httpx2.HTTPError) as exc:
        raise _mapped(exc, doing, otherwise=otherwise, missing=missing) from exc
    except TimeoutError as exc:
        raise SandboxError(_GONE, f"{doing}: no answer in time", retryable=True) from exc
    except (json.JSONDecodeError, UnicodeDecodeError, ValidationError) as exc:
        raise SandboxError(otherwise, f"{doing}: an answer of no sense", retryable=True) from exc


def _mapped(
    exc: BaseException, doing: str, *, otherwise: SandboxErrorCode, missing: SandboxErrorCode
) -> SandboxError:
    if isinstance(exc, (sdk.SandboxStdinError, sdk.SandboxFilesystemWriteError)):
        return _mapped(exc.cause, doing, otherwise=otherwise, missing=missing)
    if isinstance(exc, sdk.SandboxApiError):
        return _from_status(exc, doing, otherwise=otherwise, missing=missing)
    code, text, retryable = otherwise, _short(exc), False
    match exc:
        case sdk.SandboxTerminalStateError():
            text, retryable = f"the sandbox is {exc.status.value}", True
        case sdk.SandboxPathNotFoundError():
            code = missing
        case sdk.SandboxCredentialsError():
            code = _GONE
        case sdk.SandboxResponseError() | sdk.SandboxStreamError():
            text, retryable = f"an answer of no sense: {text}", True
        case httpx2.HTTPError():
            code, text, retryable = _GONE, f"the connection to Vercel broke: {text}", True
        case _:
            pass
    return SandboxError(code, f"{doing}: {text}", retryable=retryable)


def _from_status(
    exc: sdk.SandboxApiError,
    doing: str,
    *,
    otherwise: SandboxErrorCode,
    missing: SandboxErrorCode,
) -> SandboxError:
    status = exc.status_code
    reason = _short(exc)  # of the SDK: it begins with the status
    said = reason if reason.startswith("HTTP ") else f"HTTP {status}: {reason}"
    text = f"{doing}: {said}{_REMEDIES.get(status, '')}"
    if exc.code in _LOST_SNAPSHOTS:
        return SandboxError(SandboxErrorCode.NOT_FOUND, text)
    if status == httpx2.codes.NOT_FOUND:
        return SandboxError(missing, text)
    code, retryable = _BY_STATUS.get(status, (None, status >= httpx2.codes.INTERNAL_SERVER_ERROR))
    if status == httpx2.codes.TOO_MANY_REQUESTS and otherwise is not SandboxErrorCode.CREATE_FAILED:
        code = None  # of sandboxes there are enough only when one is made
    return SandboxError(code or otherwise, text, retryable=retryable)


def _short(exc: BaseException) -> str:
    """A proxy's error page is long, and nobody's text."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    return "a page of HTML" if "<html" in text.lower() else text[:_REASON_CHARS]


def is_status(exc: BaseException | None, *statuses: int) -> bool:
    """Whether an error of ours comes from such an answer."""
    cause = exc.__cause__ if isinstance(exc, SandboxError) else exc
    return isinstance(cause, sdk.SandboxApiError) and cause.status_code in statuses

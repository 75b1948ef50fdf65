"""The one mapping of the engine's and its client's errors to ours.

aiodocker.DockerError             by HTTP status; 900 is the client's own word for "no connection"
DockerContainerError            the same
DockerStreamError               status 0: a build or import failed in the middle of its answer
DockerContextError, ...         the client's configuration is unusable
aiohttp.ClientError               the connection broke
TimeoutError, OSError             no answer; no connection
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import aiodocker
import aiohttp

from sandbox_runtime.errors import SandboxError, SandboxErrorCode

ENGINE_TIMEOUT_S = 60.0
"""Of one ordinary request: a busy engine makes a container in seconds, not in milliseconds."""

_NO_CONNECTION = 900
"""Source: aiodocker 0.27.0, docker.py, _do_query."""

# Source: seen, Docker Engine 20.10.24 (errno 28 as its text; the status is 500 like that of many others).
_OUT_OF_DISK = "no space left on device"

_REMEDY = "is Docker running? start it, or set DOCKER_HOST"
_SLOW = "look at its load and its log, restart it if it stays so"
_FORBIDDEN = "this user may not use the engine: add it to the group docker, or set DOCKER_HOST"


@asynccontextmanager
async def asking(
    doing: str,
    *,
    timeout_s: float = ENGINE_TIMEOUT_S,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> AsyncIterator[None]:
    """A request to the engine: bounded, its errors mapped."""
    with map_docker_errors(doing, otherwise=otherwise, missing=missing):
        async with asyncio.timeout(timeout_s):
            yield


@contextmanager
def map_docker_errors(
    doing: str,
    *,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> Iterator[None]:
    """Raises: SandboxError: `missing` for what does not exist, LIMIT_REACHED for a full disk, `otherwise` when the engine
    refuses or fails, UNAVAILABLE when it does not answer.
    """
    try:
        yield
    except aiodocker.DockerContextError as exc:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"{doing}: {exc}") from exc
    except aiodocker.DockerError as exc:
        raise _from_status(exc, doing, otherwise=otherwise, missing=missing) from exc
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"{doing}: no answer from the engine in time; {_SLOW}",
            retryable=True,
        ) from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"{doing}: the connection to the engine broke: {exc}",
            retryable=True,
        ) from exc


_BY_STATUS: Mapping[int, tuple[SandboxErrorCode | None, bool]] = {
    400: (None, False),
    401: (SandboxErrorCode.UNAVAILABLE, False),
    403: (SandboxErrorCode.UNAVAILABLE, False),
    409: (None, True),
    429: (SandboxErrorCode.LIMIT_REACHED, True),
}
"""Code (None = what the caller says) and whether trying again may help. Of the rest, 5xx may pass and 4xx will not."""


def _from_status(
    exc: aiodocker.DockerError,
    doing: str,
    *,
    otherwise: SandboxErrorCode,
    missing: SandboxErrorCode,
) -> SandboxError:
    status, text = exc.status, f"{doing}: {exc.message}"
    if status == _NO_CONNECTION:
        remedy = _FORBIDDEN if _errno(exc) in (errno.EACCES, errno.EPERM) else _REMEDY
        return SandboxError(SandboxErrorCode.UNAVAILABLE, f"{text}; {remedy}", retryable=True)
    if _OUT_OF_DISK in exc.message:
        return SandboxError(SandboxErrorCode.LIMIT_REACHED, text)
    if status == 404:  # noqa: PLR2004  # HTTP
        return SandboxError(missing, text)
    code, retryable = _BY_STATUS.get(status, (None, status >= 500))  # noqa: PLR2004  # HTTP
    return SandboxError(code or otherwise, text, retryable=retryable)


def _errno(exc: BaseException) -> int | None:
    cause = exc.__cause__ or exc.__context__
    return cause.errno if isinstance(cause, OSError) else None

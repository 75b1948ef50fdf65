"""What can go wrong with a sandbox, as codes, and the frame of each provider's one mapping of what its client raises.

    SandboxError(code)          the sandbox, or its provider, failed; `retryable` says whether trying again may help
    FileNotFoundError, ...      builtins, for files inside a sandbox (see `Sandbox.read_file`)

A command that fails, is missing or is killed is a *result* (`ExecResult`), never an error. Of its client a provider says which
exceptions there are and what each means; how long a request may take and what the statuses of HTTP mean to all are here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum


class SandboxErrorCode(StrEnum):
    """Stable: stored with runs and sent to traces."""

    CREATE_FAILED = "create_failed"
    """The provider did not give us a sandbox."""
    SETUP_FAILED = "setup_failed"
    """A customisation command of `Agent.prepare` failed, or the environment cannot be made."""
    EXEC_TIMEOUT = "exec_timeout"
    """A command ran longer than its limit and was killed."""
    UNAVAILABLE = "unavailable"
    """The sandbox is gone, destroyed or was never started."""
    LIMIT_REACHED = "limit_reached"
    """The provider's quota of concurrent sandboxes is used up."""
    FILE_TOO_LARGE = "file_too_large"
    """A file is larger than the caller's bound."""
    NOT_FOUND = "not_found"
    """No snapshot or sandbox with that id."""
    UNSUPPORTED = "unsupported"
    """The provider lacks the capability."""
    ISOLATION_UNAVAILABLE = "isolation_unavailable"
    """This machine cannot isolate processes the way that was asked for."""


class SandboxError(Exception):
    """A sandbox or its provider failed."""

    def __init__(self, code: SandboxErrorCode, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


NOT_FOUND = 404
CodeAndRetry = tuple[SandboxErrorCode | None, bool]
"""Code (None = what the caller says) and whether trying again may help."""

_BY_STATUS: Mapping[int, CodeAndRetry] = {
    401: (SandboxErrorCode.UNAVAILABLE, False),
    403: (SandboxErrorCode.UNAVAILABLE, False),
    429: (SandboxErrorCode.LIMIT_REACHED, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Says what a request was about."""

    doing: str
    """`cannot make a sandbox`: how its error's text begins."""
    otherwise: SandboxErrorCode
    """Code when the other side refuses or fails."""
    missing: SandboxErrorCode
    """Code for what does not exist."""

    def error(
        self, reason: str, code: SandboxErrorCode | None = None, *, retryable: bool = False
    ) -> SandboxError:
        """Returns the error of that code, `otherwise` if it has none of its own."""
        return SandboxError(code or self.otherwise, f"{self.doing}: {reason}", retryable=retryable)

    def error_of_status(
        self, status: int, reason: str, special: Mapping[int, CodeAndRetry]
    ) -> SandboxError:
        """Returns the error of a status of HTTP, as `special` says or as it is with all: what failed on the other side may
        pass, as may a page in place of an answer; what was refused will not.
        """
        if status == NOT_FOUND:
            return self.error(reason, self.missing)
        usual = _BY_STATUS.get(status, (None, not 400 <= status < 500))  # noqa: PLR2004  # HTTP
        code, retryable = special.get(status, usual)
        return self.error(reason, code, retryable=retryable)


class ErrorMap:
    """A provider's mapping: `async with map_errors("cannot make a sandbox"): ...` bounds a request and maps its errors."""

    def __init__(
        self,
        translate: Callable[[Exception, RequestContext], SandboxError],
        *caught: type[Exception],
        timeout_s: float,
    ) -> None:
        """`translate` gets what is of the classes `caught`; `timeout_s` bounds a request that says nothing else."""
        self._translate = translate
        self._caught = caught
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def __call__(
        self,
        doing: str,
        *,
        timeout_s: float | None = None,
        otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
        missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
    ) -> AsyncIterator[None]:
        """Raises: SandboxError: with the original as its cause."""
        with self.unbounded(doing, otherwise=otherwise, missing=missing):
            async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
                yield

    @contextmanager
    def unbounded(
        self,
        doing: str,
        *,
        otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
        missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
    ) -> Iterator[None]:
        """Translates as `__call__` does, for what its caller bounds, or nothing should. Raises: SandboxError."""
        try:
            yield
        except self._caught as exc:
            context = RequestContext(doing=doing, otherwise=otherwise, missing=missing)
            raise self._translate(exc, context) from exc

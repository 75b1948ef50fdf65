"""What can go wrong with a sandbox, as codes.

    SandboxError(code)          the sandbox, or its provider, failed; `retryable` says whether trying again may help
    FileNotFoundError, ...      builtins, for files inside a sandbox (see `Sandbox.read_file`)

A command that fails, is missing or is killed is a *result* (`ExecResult`), never an error.
"""

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

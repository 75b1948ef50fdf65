"""Everything that can end a run, as codes; and the one mapping from the lower packages' errors.

OrionError(code)
    from SandboxError(code)   sandbox_runtime: creating, preparing, running, losing a sandbox
    from AgentError(code)     agent_scripts: how an agent's turn failed
anything else                 a bug: INTERNAL, with the run id
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from agent_scripts.events import AgentError, AgentErrorCode
from sandbox_runtime.errors import SandboxError, SandboxErrorCode


class ErrorCode(StrEnum):
    """Stored with the run, sent to the trace, shown in Slack as the product's own sentence."""

    SANDBOX_CREATION_FAILED = "SANDBOX_CREATION_FAILED"
    SANDBOX_TIMEOUT = "SANDBOX_TIMEOUT"
    SANDBOX_SETUP_FAILED = "SANDBOX_SETUP_FAILED"
    SANDBOX_LIMIT_REACHED = "SANDBOX_LIMIT_REACHED"
    SANDBOX_LOST = "SANDBOX_LOST"
    AGENT_EXECUTION_FAILED = "AGENT_EXECUTION_FAILED"
    AGENT_NO_ANSWER = "AGENT_NO_ANSWER"
    AGENT_IDLE = "AGENT_IDLE"
    MODEL_RATE_LIMITED = "MODEL_RATE_LIMITED"
    MODEL_OVERLOADED = "MODEL_OVERLOADED"
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    MODEL_CONTEXT_EXCEEDED = "MODEL_CONTEXT_EXCEEDED"
    MODEL_REFUSED = "MODEL_REFUSED"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    MODEL_AUTH_FAILED = "MODEL_AUTH_FAILED"
    MODEL_BILLING = "MODEL_BILLING"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    QUEUE_FULL = "QUEUE_FULL"
    NOT_ALLOWED = "NOT_ALLOWED"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    REQUEST_INVALID = "REQUEST_INVALID"
    REPO_UNAVAILABLE = "REPO_UNAVAILABLE"
    INTERRUPTED = "INTERRUPTED"
    INTERNAL = "INTERNAL"


class OrionError(Exception):
    """A failure a person is told about. Message: lower case, names the thing and the value, no secrets, no advice."""

    def __init__(
        self, code: ErrorCode, message: str, *, retryable: bool = False, is_told: bool = False
    ) -> None:
        """`is_told`: the message is for the person who asked, too, also where others of the code are not."""
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.is_told = is_told


FROM_SANDBOX: dict[SandboxErrorCode, ErrorCode] = {
    SandboxErrorCode.CREATE_FAILED: ErrorCode.SANDBOX_CREATION_FAILED,
    SandboxErrorCode.SETUP_FAILED: ErrorCode.SANDBOX_SETUP_FAILED,
    SandboxErrorCode.EXEC_TIMEOUT: ErrorCode.SANDBOX_TIMEOUT,
    SandboxErrorCode.UNAVAILABLE: ErrorCode.SANDBOX_LOST,
    SandboxErrorCode.LIMIT_REACHED: ErrorCode.SANDBOX_LIMIT_REACHED,
    SandboxErrorCode.FILE_TOO_LARGE: ErrorCode.LIMIT_EXCEEDED,
    SandboxErrorCode.NOT_FOUND: ErrorCode.SANDBOX_CREATION_FAILED,
    SandboxErrorCode.UNSUPPORTED: ErrorCode.SANDBOX_CREATION_FAILED,
    SandboxErrorCode.ISOLATION_UNAVAILABLE: ErrorCode.SANDBOX_CREATION_FAILED,
}

FROM_AGENT: dict[AgentErrorCode, ErrorCode] = {
    AgentErrorCode.EXECUTION_FAILED: ErrorCode.AGENT_EXECUTION_FAILED,
    AgentErrorCode.NO_ANSWER: ErrorCode.AGENT_NO_ANSWER,
    AgentErrorCode.IDLE: ErrorCode.AGENT_IDLE,
    AgentErrorCode.TIMEOUT: ErrorCode.SANDBOX_TIMEOUT,
    AgentErrorCode.OUTPUT_LIMIT: ErrorCode.LIMIT_EXCEEDED,
    AgentErrorCode.DISK_LIMIT: ErrorCode.LIMIT_EXCEEDED,
    AgentErrorCode.PROCESS_LIMIT: ErrorCode.LIMIT_EXCEEDED,
    AgentErrorCode.TURN_LIMIT: ErrorCode.LIMIT_EXCEEDED,
    AgentErrorCode.SESSION_NOT_FOUND: ErrorCode.AGENT_EXECUTION_FAILED,
    AgentErrorCode.REQUEST_INVALID: ErrorCode.REQUEST_INVALID,
    AgentErrorCode.MODEL_RATE_LIMITED: ErrorCode.MODEL_RATE_LIMITED,
    AgentErrorCode.MODEL_OVERLOADED: ErrorCode.MODEL_OVERLOADED,
    AgentErrorCode.MODEL_UNAVAILABLE: ErrorCode.MODEL_UNAVAILABLE,
    AgentErrorCode.MODEL_CONTEXT_EXCEEDED: ErrorCode.MODEL_CONTEXT_EXCEEDED,
    AgentErrorCode.MODEL_REFUSED: ErrorCode.MODEL_REFUSED,
    AgentErrorCode.MODEL_NOT_FOUND: ErrorCode.MODEL_NOT_FOUND,
    AgentErrorCode.MODEL_AUTH_FAILED: ErrorCode.MODEL_AUTH_FAILED,
    AgentErrorCode.MODEL_BILLING: ErrorCode.MODEL_BILLING,
}


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turns errors of the lower packages into OrionError; the one place that does."""
    try:
        yield
    except SandboxError as exc:
        raise OrionError(FROM_SANDBOX[exc.code], str(exc), retryable=exc.retryable) from exc
    except AgentError as exc:
        raise OrionError(FROM_AGENT[exc.code], str(exc)) from exc


class LeaseLostError(Exception):
    """Another process has taken a run over, as this one was not heard of: nothing may be written or done for it here any more."""


class MustEndError(Exception):
    """This process cannot go on, whatever it tries again. One sentence: why, and what to do."""

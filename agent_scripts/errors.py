"""What can go wrong with an agent, as codes. The whole family: AgentError(code)."""

from enum import StrEnum


class AgentErrorCode(StrEnum):
    """Stable. `agent_scripts.inside` prints the same words, so the values are part of the wire format."""

    EXECUTION_FAILED = "execution_failed"
    NO_ANSWER = "no_answer"
    IDLE = "idle"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    PROCESS_LIMIT = "process_limit"
    TURN_LIMIT = "turn_limit"
    SESSION_NOT_FOUND = "session_not_found"
    """The session to resume is not in this sandbox: begin one with the history. Nothing was asked of a model."""
    REQUEST_INVALID = "request_invalid"
    """The agent cannot be given this turn: the message says why. It was not started."""
    MODEL_RATE_LIMITED = "model_rate_limited"
    MODEL_OVERLOADED = "model_overloaded"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_CONTEXT_EXCEEDED = "model_context_exceeded"
    MODEL_REFUSED = "model_refused"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_AUTH_FAILED = "model_auth_failed"
    MODEL_BILLING = "model_billing"


class AgentError(Exception):
    """An agent did not bring its turn to an answer."""

    def __init__(self, code: AgentErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

"""What a model's answer means for a turn that failed: by its status, by the name of its error, by what is missing."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agent_scripts.events import AgentErrorCode
from app.runs.broker import CONTEXT_EXCEEDED, NO_ANSWER, find_failure
from app.runs.testing import ModelCall, Usage

NOW = datetime(2026, 11, 27, tzinfo=UTC)
ANSWERED = ModelCall(
    model="m",
    started_at=NOW,
    first_token_at=NOW,
    ended_at=NOW,
    status=200,
    usage=Usage(output_tokens=3),
)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, "invalid_request_error", None),
        (400, CONTEXT_EXCEEDED, AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
        (400, "API_KEY_INVALID", AgentErrorCode.MODEL_AUTH_FAILED),
        (401, "", AgentErrorCode.MODEL_AUTH_FAILED),
        (402, "billing_error", AgentErrorCode.MODEL_BILLING),
        (403, "PERMISSION_DENIED", AgentErrorCode.MODEL_AUTH_FAILED),
        (404, "", AgentErrorCode.MODEL_NOT_FOUND),
        (413, "request_too_large", AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
        (429, "rate_limit_exceeded", AgentErrorCode.MODEL_RATE_LIMITED),
        (429, "insufficient_quota", AgentErrorCode.MODEL_BILLING),
        (429, "", AgentErrorCode.MODEL_RATE_LIMITED),
        (500, "", AgentErrorCode.MODEL_UNAVAILABLE),
        (502, "ConnectError", AgentErrorCode.MODEL_UNAVAILABLE),
        (529, "overloaded_error", AgentErrorCode.MODEL_OVERLOADED),
        (503, "UNAVAILABLE", AgentErrorCode.MODEL_OVERLOADED),
        (200, "overloaded_error", AgentErrorCode.MODEL_OVERLOADED),
        (200, "RemoteProtocolError", AgentErrorCode.MODEL_UNAVAILABLE),
        (200, NO_ANSWER, AgentErrorCode.MODEL_UNAVAILABLE),
        (200, "", None),
    ],
)
def test_status_and_error(status: int, error: str, code: AgentErrorCode | None) -> None:
    """The error says more than the status; in mid-stream there is only that."""
    assert find_failure(replace(ANSWERED, status=status, error=error)) is code

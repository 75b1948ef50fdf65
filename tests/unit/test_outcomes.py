"""What is added to how a run ended is told without more: the record's lines and the trace name it by themselves."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from app.operators.records import as_row
from app.redaction import Masker
from app.runs.testing import Outcome, Run, RunId, RunState
from app.tracing.observations import SpanSanitizer, result_attributes
from tests.building import make_request


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerOutcome(Outcome):
    longest_silence_s: float = 0.0


ENDED = LongerOutcome(state=RunState.SUCCEEDED, steps=2, duration_s=3.0, longest_silence_s=1.25)


def test_a_new_number_is_in_the_record() -> None:
    """Beside those that were there."""
    run = Run(
        id=RunId("run_1"), request=make_request(), created_at=datetime.now(UTC), outcome=ENDED
    )
    row = as_row(run)
    assert (row["longest_silence_s"], row["steps"], row["cost_usd"]) == (1.25, 2, None)


def test_a_new_number_is_in_the_trace() -> None:
    """As a plain value of the root's output."""
    sanitizer = SpanSanitizer(masker=Masker(()), trace_content=False)
    attributes = result_attributes(ENDED, delivery="sent", detail="", sanitizer=sanitizer)
    output = json.loads(str(attributes["langfuse.observation.output"]))
    assert (output["longest_silence_s"], output["steps"], output["cost_usd"]) == (1.25, 2, None)

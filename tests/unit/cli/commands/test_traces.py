"""`orion traces check`: what a trace has of its record's steps, and how a long one is read."""

from datetime import UTC, datetime

import pytest

from app.cli.commands.probes import list_observations
from app.cli.commands.traces import TraceCheck, count_missing
from app.cli.output import read_settings
from app.playground.traces.receiver import TraceStore, create_trace_app, parse_export
from app.tracing.steps import StepRecord
from app.web.hosting import serve
from tests.unit.playground.test_traces import KEYS, export

AT = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kept", "observed", "missing"),
    [
        ([], ["run"], 0),
        (["agent", "Bash", "claude-x"], ["run", "agent", "Bash", "model-call"], 0),
        (["agent", "Bash", "Bash"], ["run", "agent", "Bash"], 1),
        (["agent", "claude-x", "claude-x"], ["run", "agent", "model-call"], 1),
        (["agent"], ["run"], 1),
        (["agent"], ["run", "agent", "model-call", "attempt-1"], 0),
    ],
)
def test_steps_that_a_trace_lacks_are_counted(
    kept: list[str], observed: list[str], missing: int
) -> None:
    """Each by its name, model calls by their number; a trace may have more."""
    steps = [StepRecord(name=name, started_at=AT, ended_at=AT) for name in kept]
    assert count_missing(steps, observed) == missing


@pytest.mark.parametrize(
    ("observations", "missing", "left_out", "line"),
    [
        (12, 0, "", "ok   run_1  0a  12 observations"),
        (1, 0, "", "ok   run_1  0a  1 observation"),
        (12, 2, "", "FAIL run_1  0a  12 observations, without 2 of the record's steps"),
        (0, 3, "", "FAIL run_1  0a  no trace"),
        (0, 0, "refused, so there is none", "-    run_1  refused, so there is none"),
    ],
)
def test_a_line_of_each(observations: int, missing: int, left_out: str, line: str) -> None:
    """And whether it is as it is to be."""
    found = TraceCheck(
        run_id="run_1",
        trace_id="0a",
        observations=observations,
        missing_steps=missing,
        left_out=left_out,
    )
    assert found.line == line
    assert found.row["ok"] is (line[:4] != "FAIL")


async def test_a_long_trace_is_read_page_by_page() -> None:
    """To its end: Langfuse shows a thousand observations at once."""
    store = TraceStore()
    for number in range(1_001):
        for one in parse_export(
            export(span=number + 1, parent=number and 1, name=f"step-{number}"),
            public_key=KEYS["public_key"],
        ):
            store.add(one)
    async with serve(create_trace_app(**KEYS, store=store)) as url:
        settings = read_settings(
            langfuse_base_url=url,
            langfuse_public_key=KEYS["public_key"],
            langfuse_secret_key=KEYS["secret_key"],
        )
        names = await list_observations(settings, f"{1:032x}")
    assert sorted(names) == sorted(f"step-{number}" for number in range(1_001))

"""What a run looks like in Langfuse: the real SDK against a receiver that is as strict as the server."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langfuse import Langfuse, propagate_attributes
from opentelemetry.sdk.trace import TracerProvider

from app.runs.testing import Run, RunId, RunTrace, Tracer, Usage
from app.tracing.null import NullTracer
from app.tracing.observations import trace_id_for
from tests.unit.tracing.building import (
    ANSWERED,
    MakeRun,
    OpenTracer,
    Wire,
    at,
    call,
    go_through,
    traced,
    tree_of,
)
from tests.waiting import until


async def test_a_run_is_a_tree_of_typed_observations(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """The root is an agent that began when the run was accepted; steps, attempts, model and tool calls hang below."""
    run = make_run()
    trace_id = await traced(open_tracer, wire.url, run, go_through)
    tree = tree_of(wire, trace_id)

    def shape(nodes: list[dict[str, Any]]) -> list[Any]:
        return [(node["name"], node["type"], shape(node["children"])) for node in nodes]

    assert shape(tree["observations"]) == [
        (
            "run",
            "agent",
            [
                ("queue-wait", "span", []),
                ("sandbox-create", "span", [("attempt-1", "tool", []), ("attempt-2", "tool", [])]),
                ("write-script", "tool", []),
                (
                    "execute-agent",
                    "span",
                    [("model-call", "generation", []), ("shell", "tool", [])],
                ),
            ],
        )
    ]
    (root,) = tree["observations"]
    assert root["parent_id"] == ""
    assert root["start_ms"] == pytest.approx(run.created_at.timestamp() * 1000, abs=0.01)
    wait = root["children"][0]
    assert wait["end_ms"] - wait["start_ms"] == pytest.approx(1000, abs=0.01)


async def test_every_observation_carries_user_session_and_tags(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Langfuse finds traces by the attributes of each observation, so each has them; only the root is the app's root."""
    run = make_run()
    found = wire.flat(
        await traced(open_tracer, wire.url, run, go_through, environment="staging", release="r1")
    )
    assert len(found) == 9
    for node in found.values():
        assert (node["user"], node["session"]) == ("U1", "T1-C1-1732000000.000100")
        assert node["tags"] == ["anthropic", "local", "channel"]
        assert node["trace_metadata"] == {"run_id": run.id}
        assert (node["environment"], node["release"]) == ("staging", "r1")
    assert [name for name, node in found.items() if node["is_app_root"]] == ["run"]


async def test_the_root_tells_what_was_asked_and_how_it_ended(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Input, ids, sizes, usage, delivery and answer stand on the root; the sandbox learnt later, too."""
    run = make_run()
    root = wire.flat(await traced(open_tracer, wire.url, run, go_through))["run"]
    assert root["input"] == "what is 6 * 7?"
    assert root["metadata"] == {
        "run_id": run.id,
        "channel": "C1",
        "message_ts": run.request.message_ts,
        "thread_ts": "1732000000.000100",
        "attempt": 1,
        "model": "claude-sonnet-4-5",
        "sandbox_id": "sb-1",
        "delivery": "sent",
    }
    assert json.loads(root["output"]) == {
        "success": True,
        "outcome": "succeeded",
        "response_length": 2,
        "duration_s": 8.25,
        "steps": 1,
        "delivery": "sent",
        "model_calls": 1,
        "usage": {
            "input": 30,
            "output": 5,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 0,
        },
        "cost_usd": None,
        "answer": "42",
    }
    assert root["level"] == "DEFAULT"


async def test_a_generation_has_model_usage_and_first_token(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Usage has the keys that Langfuse prices; start, first token and end are the call's own; a refusal is an error."""

    def body(trace: RunTrace, run: Run) -> None:
        with trace.step("execute-agent") as step:
            step.generation(call(run))
        with trace.step("again") as step:
            step.generation(
                call(
                    run,
                    model="m2",
                    status=529,
                    error="overloaded_error",
                    usage=Usage(),
                    first_token_at=None,
                )
            )

    run = make_run()
    trace_id = await traced(open_tracer, wire.url, run, body)
    (root,) = tree_of(wire, trace_id)["observations"]
    (good,), (bad,) = (step["children"] for step in root["children"])
    assert good["usage"] == {
        "input": 30,
        "output": 5,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 0,
    }
    assert good["model"] == "claude-sonnet-4-5"
    assert good["end_ms"] - good["start_ms"] == pytest.approx(2000, abs=0.01)
    first_token_at = datetime.fromisoformat(good["first_token_at"])
    assert abs(first_token_at - at(run, 2.5)) < timedelta(milliseconds=1)
    assert (bad["level"], bad["status"]) == ("ERROR", "HTTP 529: overloaded_error")
    assert bad["usage"] == {}


async def test_a_request_never_becomes_the_parent(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """With another OpenTelemetry span current, and Langfuse attributes propagated, the root stays a root of its own."""
    run = make_run()
    outer = TracerProvider().get_tracer("web")
    async with open_tracer(wire.url) as tracer:
        with (
            outer.start_as_current_span("POST /slack/events"),
            propagate_attributes(user_id="someone-else", tags=["foreign"]),
            tracer.trace(run) as trace,
        ):
            go_through(trace, run)
    tree = tree_of(wire, trace_id_for(run.id))
    assert [node["name"] for node in tree["observations"]] == ["run"]
    for node in wire.flat(trace_id_for(run.id)).values():
        assert node["user"] == "U1"
        assert node["tags"] == ["anthropic", "local", "channel"]
    assert len(wire.store.rows()) == 1


async def test_feedback_is_a_score_that_the_latest_replaces(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """One score per person and run, BOOLEAN, on the run's trace; a second opinion replaces the first."""
    run = make_run()
    async with open_tracer(wire.url) as tracer:
        with tracer.trace(run) as trace:
            trace.finish(ANSWERED, delivery="sent")
        tracer.score(run.id, user="U1", is_positive=True)
        tracer.score(run.id, user="U2", is_positive=True)
        await asyncio.sleep(1.2)  # the SDK sends scores once a second
        tracer.score(run.id, user="U1", is_positive=False, comment="it was late")
    scores = tree_of(wire, trace_id_for(run.id))["scores"]
    assert {
        score["id"]: (score["name"], score["value"], score["dataType"], score.get("comment"))
        for score in scores
    } == {
        f"{run.id}-fb-U1": ("feedback", 0.0, "BOOLEAN", "it was late"),
        f"{run.id}-fb-U2": ("feedback", 1.0, "BOOLEAN", None),
    }


async def test_a_traces_page_is_below_its_project(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Which Langfuse is asked for once, in the background: until it has said it there is no address."""
    trace_id = trace_id_for(make_run().id)
    async with open_tracer(wire.url) as tracer:
        assert tracer.link(trace_id) == ""
        await until(lambda: tracer.link(trace_id) != "")
        assert tracer.link(trace_id) == f"{wire.url}/project/playground/traces/{trace_id}"


async def test_who_links_to_traces_asks_for_the_project_at_once(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Not with the first answer, which would have no link then; as functions, none would."""
    trace_id = trace_id_for(make_run().id)
    async with open_tracer(wire.url, has_links=True) as tracer:
        await until(lambda: "/api/public/projects" in wire.asked)
        await until(lambda: tracer.link(trace_id) != "")
    assert wire.asked.count("/api/public/projects") == 1


async def test_a_tracer_that_is_closed_leaves_no_thread(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Functions open one for each slice."""
    before = set(threading.enumerate())
    for _ in range(3):
        async with open_tracer(wire.url, has_links=True, system_prompt="x") as tracer:
            with tracer.trace(make_run()):
                pass

    def left() -> list[str]:
        now = set(threading.enumerate()) - before
        return [one.name for one in now if "asyncio" not in one.name]

    await until(lambda: not left(), timeout_s=10)  # the one that closes it may still end


def is_connecting(port: int) -> bool:
    """Whether a connection to that port is begun and not answered."""
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == "02" for row in rows)


async def test_a_tracer_that_is_closed_leaves_no_connection(open_tracer: OpenTracer) -> None:
    """Not even one that Langfuse accepts when the tracer is gone."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        server.settimeout(0)
        address = server.getsockname()
        with socket.create_connection(address):  # the whole backlog: the next one has to wait
            async with open_tracer("http://{}:{}".format(*address), has_links=True) as tracer:
                await until(lambda: is_connecting(address[1]))
            async with asyncio.timeout(10):
                filler, _ = await loop.sock_accept(server)
                late, _ = await loop.sock_accept(server)
        with filler, late:
            async with asyncio.timeout(10):
                assert await loop.sock_recv(late, 65536)
                await loop.sock_sendall(late, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                assert await loop.sock_recv(late, 65536) == b""  # closed
    assert tracer.link("0" * 32) == ""  # it is still held, with its client


async def test_trace_ids_are_langfuses_own(
    make_run: MakeRun, wire: Wire, open_tracer: OpenTracer
) -> None:
    """Both tracers and Langfuse's own function derive the same id from a run id."""
    async with open_tracer(wire.url) as tracer:
        tracers: list[Tracer] = [tracer, NullTracer()]
        for each in tracers:
            assert each.trace_id(RunId("run_1")) == Langfuse.create_trace_id(seed="run_1")
    run = make_run()
    with NullTracer().trace(run) as trace:
        go_through(trace, run)
    with pytest.raises(KeyError), NullTracer().trace(run) as trace, trace.step("x"):
        raise KeyError


def test_the_null_tracer_needs_no_langfuse() -> None:
    """A service without Langfuse does not pay for importing it."""
    program = "import sys, app.tracing, app.tracing.null; print(sorted({'langfuse', 'opentelemetry'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=50
    )
    assert done.stdout.decode().strip() == "[]"


async def test_a_part_of_the_runs_is_traced(
    wire: Wire, open_tracer: OpenTracer, make_run: MakeRun
) -> None:
    """Whole ones, the same in each process, with the deployment they are of; nobody is sent to a page that there is not."""
    runs = [make_run() for _ in range(40)]
    changes = {"sample_rate": 0.5, "environment": "staging", "release": "abc"}
    async with open_tracer(wire.url, **changes) as tracer:
        for run in runs:
            with tracer.trace(run) as trace:
                go_through(trace, run)
            tracer.score(run.id, user="U1", is_positive=True)
    traces = [wire.store.tree(trace_id_for(run.id)) for run in runs]
    kept = [one for one in traces if one is not None and one["observations"]]
    assert 5 < len(kept) < 35
    assert {one["trace"]["environment"] for one in kept} == {"staging"}
    assert len({len(wire.flat(one["trace"]["id"])) for one in kept}) == 1
    left_out = next(run for run, one in zip(runs, traces, strict=True) if one is None)
    assert tracer.link(trace_id_for(left_out.id)) == ""

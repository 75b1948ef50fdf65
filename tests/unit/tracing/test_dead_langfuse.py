"""A sick Langfuse, or a bug of the tracer, costs a run nothing."""

import asyncio
import gc
import logging
import socket
import statistics
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.responses import PlainTextResponse
from typing_extensions import override

from app.log import _ExportFailures
from app.playground.traces.receiver import create_trace_app
from app.redaction import Masker
from app.runs.testing import Outcome, RunState
from app.tracing.langfuse import SHUTDOWN_TIMEOUT_S
from app.web.hosting import serve
from tests.long import long_but
from tests.unit.tracing.building import MakeRun, OpenTracer, Wire

RUNS = 60
STEPS = 9
DONE = Outcome(state=RunState.SUCCEEDED, answer="a" * 1000)


class Counting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.failures = _ExportFailures()
        self.lines = 0
        self.addFilter(self.failures)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1


@pytest.fixture
def counted() -> Iterator[Counting]:
    handler = Counting()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture(
    params=long_but(("refused", "black hole", "401", "503"), lambda kind: kind == "black hole")
)
async def sick_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "refused":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    elif request.param == "black hole":
        with socket.create_server(("127.0.0.1", 0), backlog=128) as deaf:
            yield f"http://127.0.0.1:{deaf.getsockname()[1]}"
    elif request.param == "401":
        async with serve(create_trace_app(public_key="pk-lf-test", secret_key="another")) as url:
            yield url
    else:
        async with serve(PlainTextResponse("busy", 503)) as url:
            yield url


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What thousands of tests before it left is not looked through while this one takes the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.alone
@pytest.mark.usefixtures("small_heap")
async def test_a_sick_langfuse_delays_nothing(
    sick_url: str, make_run: MakeRun, open_tracer: OpenTracer, counted: Counting
) -> None:
    """Recording stays cheap, nothing raises, the loop never stalls, the end is bounded, the loss is counted."""
    costs: list[float] = []
    async with asyncio.timeout(50):
        async with open_tracer(sick_url, system_prompt="You are Orion.") as tracer:
            for _ in range(RUNS):
                began = time.perf_counter()
                run = make_run(text="b" * 1000)
                with tracer.trace(run) as trace:
                    for number in range(STEPS):
                        with trace.step(f"step-{number}") as step:
                            step.set(number=number)
                    trace.finish(DONE, delivery="sent")
                tracer.score(run.id, user="U1", is_positive=True)
                costs.append((time.perf_counter() - began) / (STEPS + 1))
                await asyncio.sleep(0.02)
            closing = time.perf_counter()
        closed_in_s = time.perf_counter() - closing
    assert statistics.median(costs) < 0.01
    assert max(costs) * (STEPS + 1) < 1.0
    assert closed_in_s < SHUTDOWN_TIMEOUT_S + 2
    assert counted.failures.lost > 0
    assert counted.lines <= 2


@pytest.mark.long
async def test_a_bug_of_the_tracer_is_swallowed(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Whatever breaks behind the border, the run goes on and its own exceptions pass unchanged."""

    class Broken(Masker):
        @override
        def mask(self, text: str) -> str:
            raise AttributeError("a bug")

    run = make_run()
    async with open_tracer(wire.url, masker=Broken(), system_prompt="You are Orion.") as tracer:
        with tracer.trace(run) as trace:
            trace.past_step("x", started_at=run.created_at, ended_at=run.created_at)
            with trace.step("y") as step:
                step.set(a="b")
                step.fail("CODE", "detail")
            with pytest.raises(KeyError), trace.step("z"):
                raise KeyError("the run's own")
            trace.finish(DONE, delivery="sent")
        with pytest.raises(KeyError), tracer.trace(run):
            raise KeyError("the run's own")

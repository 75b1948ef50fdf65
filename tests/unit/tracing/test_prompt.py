"""The system prompt is a prompt of Langfuse's with versions, and each model call is linked to the one that it had."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app import __version__
from app.compose import factories
from app.playground.traces.prompts import PromptStore
from app.playground.traces.receiver import TraceStore, create_trace_app
from app.redaction import Masker
from app.runs.testing import Run, RunTrace, base_prompt
from app.settings.settings import load_settings
from app.tracing.langfuse import LangfuseTracer
from app.tracing.observations import trace_id_for
from app.web.hosting import serve
from tests.unit.tracing.building import ANSWERED, MakeRun, OpenTracer, Wire, call
from tests.unit.tracing.conftest import PUBLIC_KEY, SECRET_KEY
from tests.waiting import until

PROMPT = "orion-system-prompt"
TEXT = "You are Orion."
AT_ONCE_S = 2.0
"""Less than what Langfuse is waited for."""

Answer = Callable[[Request], Awaitable[Response | None]]
Link = tuple[str, int | None]


@asynccontextmanager
async def langfuse_that(answers: Answer) -> AsyncIterator[Wire]:
    """A Langfuse of which requests for prompts are answered by `answers`, those for which that has nothing as ever."""
    store, prompts, asked = TraceStore(), PromptStore(), list[str]()
    app = create_trace_app(
        public_key=PUBLIC_KEY, secret_key=SECRET_KEY, store=store, prompts=prompts
    )
    async with serve(_before(app, answers, asked)) as url:
        yield Wire(url=url, store=store, asked=asked, prompts=prompts)


def _before(app: ASGIApp, answers: Answer, asked: list[str]) -> ASGIApp:
    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        is_prompt = scope["type"] == "http" and "/v2/prompts" in scope["path"]
        answer = None
        if is_prompt:
            asked.append(scope["method"])
            answer = await answers(Request(scope, receive))
        await (answer or app)(scope, receive, send)

    return answered


def call_model(trace: RunTrace, run: Run) -> None:
    with trace.step("execute-agent") as step:
        step.generation(call(run))


async def is_known(tracer: LangfuseTracer) -> None:
    await until(lambda: tracer._prompt.version() is not None)


def link_of(wire: Wire, run: Run) -> Link:
    found = wire.flat(trace_id_for(run.id))["model-call"]
    return found["prompt"], found["prompt_version"]


async def link_at_start(
    wire: Wire, open_tracer: OpenTracer, run: Run, *, text: str = TEXT, **settings: Any
) -> Link:
    """Of a process that starts, once it knows the version."""
    async with open_tracer(wire.url, system_prompt=text, **settings) as tracer:
        with tracer.trace(run) as trace:
            await is_known(tracer)
            call_model(trace, run)
            trace.finish(ANSWERED, delivery="sent")
    return link_of(wire, run)


async def test_a_version_is_made_once_and_found_at_the_next_start(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """A generation names it; Langfuse is told of which release and deployment it is."""
    for _ in range(2):
        link = await link_at_start(wire, open_tracer, make_run(), release="r1")
        assert link == (PROMPT, 1)
    (made,) = wire.prompts.versions
    assert (made["name"], made["prompt"], made["type"]) == (PROMPT, TEXT, "text")
    assert made["commitMessage"] == "Orion, release r1"
    text_label, *others = made["labels"]
    assert text_label.startswith("text-")
    assert others == ["production", "latest"]
    asked = [path for path in wire.asked if "prompts" in path]
    assert asked == [
        f"/api/public/v2/prompts/{PROMPT}",
        "/api/public/v2/prompts",
        f"/api/public/v2/prompts/{PROMPT}",
    ]


async def test_a_changed_text_is_a_new_version_and_the_old_text_the_old_one(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """The environment's label goes along. Deployments with other texts in one project make no version at each start."""
    starts = [
        (TEXT, "production", 1),
        ("You are brief.", "production", 2),
        (TEXT, "production", 1),
        ("You are brief.", "staging", 2),
        (TEXT, "production", 1),
    ]
    for text, environment, version in starts:
        link = await link_at_start(
            wire, open_tracer, make_run(), text=text, environment=environment
        )
        assert link == (PROMPT, version)
        assert environment in wire.prompts.versions[version - 1]["labels"]
    first, second = wire.prompts.versions
    assert "production" in first["labels"]
    assert {"staging", "latest"} < set(second["labels"])
    assert "production" not in second["labels"]


@pytest.mark.parametrize("own", ["Be brief.", None])
async def test_it_is_the_prompt_that_agents_have(
    wire: Wire, make_run: MakeRun, tmp_path: Path, own: str | None
) -> None:
    """The operator's from its file, or Orion's with a place for what is true of a run."""
    file = tmp_path / "prompt"
    file.write_text(own or "")
    given = {
        "langfuse_public_key": PUBLIC_KEY,
        "langfuse_secret_key": SECRET_KEY,
        "langfuse_base_url": wire.url,
        "orion_system_prompt_file": file if own else None,
    }
    settings = load_settings(env_file=None, given=given)
    async with factories.open_tracer(settings, Masker()) as tracer:
        with tracer.trace(make_run()):
            await until(lambda: wire.prompts.versions)
    (made,) = wire.prompts.versions
    assert made["prompt"] == base_prompt(own)
    assert made["commitMessage"] == f"Orion, release {__version__}"


async def test_the_text_is_masked(wire: Wire, make_run: MakeRun, open_tracer: OpenTracer) -> None:
    """As all that leaves."""
    masker, text = Masker(["swordfish-1234"]), f"{TEXT} The word is swordfish-1234."
    await link_at_start(wire, open_tracer, make_run(), text=text, masker=masker)
    (made,) = wire.prompts.versions
    assert made["prompt"].startswith(f"{TEXT} The word is ")
    assert not any(b"swordfish-1234" in body for body in wire.bodies)


@pytest.mark.parametrize("changes", [{"trace_content": False}, {"system_prompt": ""}])
async def test_without_a_text_that_may_be_sent_nothing_is_asked(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer, changes: dict[str, Any]
) -> None:
    """No prompt is made, and no generation is linked."""
    run = make_run()
    async with open_tracer(wire.url, **{"system_prompt": TEXT, **changes}) as tracer:
        with tracer.trace(run) as trace:
            call_model(trace, run)
            trace.finish(ANSWERED, delivery="sent")
    assert link_of(wire, run) == ("", None)
    assert not any("prompts" in path for path in wire.asked)
    assert not any(TEXT.encode() in body for body in wire.bodies)


SICK: dict[str, Response] = {
    "500": PlainTextResponse("oh", 500),
    "403": Response('{"message": "no"}', 403, media_type="application/json"),
    "429": PlainTextResponse("busy", 429, headers={"retry-after": "60"}),
    "html": PlainTextResponse("<html>sign in</html>"),
    "nonsense": Response('{"type": "text", "version": "x"}', media_type="application/json"),
    "list": Response("[]", media_type="application/json"),
    "chat": Response(
        '{"message": "Previous versions have different prompt type."}',
        400,
        media_type="application/json",
    ),
}


@pytest.mark.parametrize("kind", SICK)
async def test_where_langfuse_does_not_say_runs_are_not_linked_and_it_is_asked_again(
    make_run: MakeRun, open_tracer: OpenTracer, kind: str
) -> None:
    """The trace arrives all the same; once Langfuse is well, the next generation is linked."""
    is_sick = True

    async def answer(_: Request) -> Response | None:
        return SICK[kind] if is_sick else None

    async with langfuse_that(answer) as wire:
        before, after = make_run(), make_run()
        async with open_tracer(wire.url, system_prompt=TEXT, ask_again_s=0.05) as tracer:
            with tracer.trace(before) as trace:
                await until(lambda: wire.asked)
                call_model(trace, before)
                trace.finish(ANSWERED, delivery="sent")
            asked = len(wire.asked)
            await until(lambda: tracer._prompt.version() or len(wire.asked) > asked + 1)
            is_sick = False
            await is_known(tracer)
            with tracer.trace(after) as trace:
                call_model(trace, after)
                trace.finish(ANSWERED, delivery="sent")
        assert link_of(wire, before) == ("", None)
        assert link_of(wire, after) == (PROMPT, 1)
        assert len(wire.prompts.versions) == 1


async def test_it_is_not_asked_again_at_once(make_run: MakeRun, open_tracer: OpenTracer) -> None:
    """However many runs there are."""

    async def answer(_: Request) -> Response | None:
        return PlainTextResponse("oh", 500)

    async with (
        langfuse_that(answer) as wire,
        open_tracer(wire.url, system_prompt=TEXT) as tracer,
    ):
        for _ in range(20):
            run = make_run()
            with tracer.trace(run) as trace:
                call_model(trace, run)
                trace.finish(ANSWERED, delivery="sent")
            await asyncio.sleep(0.01)
        assert wire.asked == ["GET"]


async def test_processes_that_start_at_once_make_no_more_than_one_version_each(
    make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """And whoever starts later makes none: it has the one of them that has the label."""
    both = asyncio.Barrier(2)
    waits = 2

    async def answer(request: Request) -> Response | None:
        nonlocal waits
        if request.method == "GET" and waits:
            waits -= 1
            await both.wait()
        return None

    async with langfuse_that(answer) as wire:
        async with (
            open_tracer(wire.url, system_prompt=TEXT) as one,
            open_tracer(wire.url, system_prompt=TEXT) as other,
        ):
            for tracer in (one, other):
                assert tracer._prompt.version() is None
            for tracer in (one, other):
                await is_known(tracer)
            assert {one._prompt.version(), other._prompt.version()} == {1, 2}
        for _ in range(2):
            assert await link_at_start(wire, open_tracer, make_run()) == (PROMPT, 2)
        assert [made["prompt"] for made in wire.prompts.versions] == [TEXT, TEXT]


async def test_who_comes_second_has_the_version_of_who_came_first(
    make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Langfuse refuses the same version number twice, by 400."""
    prompts: list[PromptStore] = []

    async def answer(request: Request) -> Response | None:
        if request.method != "POST":
            return None
        prompts[0].add(await request.json())
        message = b'{"message": "unique constraint failure", "error": "InvalidRequestError"}'
        return Response(message, 400, media_type="application/json")

    async with langfuse_that(answer) as wire:
        prompts.append(wire.prompts)
        assert await link_at_start(wire, open_tracer, make_run()) == (PROMPT, 1)
        assert wire.asked == ["GET", "POST", "GET"]


@pytest.mark.parametrize("status", [400, 403, 500])
async def test_a_label_that_cannot_be_put_does_not_matter(
    make_run: MakeRun, open_tracer: OpenTracer, status: int
) -> None:
    """The version is known all the same."""

    async def answer(request: Request) -> Response | None:
        return PlainTextResponse("no", status) if request.method == "PATCH" else None

    async with langfuse_that(answer) as wire:
        for environment in ("production", "staging"):
            link = await link_at_start(wire, open_tracer, make_run(), environment=environment)
            assert link == (PROMPT, 1)
        assert wire.asked == ["GET", "POST", "GET", "PATCH"]


async def test_a_slow_langfuse_holds_up_neither_a_run_nor_the_end(
    make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Nobody waits for the version."""
    is_over = asyncio.Event()

    async def answer(_: Request) -> Response | None:
        await is_over.wait()
        return None

    async with langfuse_that(answer) as wire:
        run = make_run()
        async with open_tracer(wire.url, system_prompt=TEXT) as tracer:
            opened_s = time.monotonic()
            with tracer.trace(run) as trace:
                await until(lambda: wire.asked)
                call_model(trace, run)
                trace.finish(ANSWERED, delivery="sent")
            traced_s = time.monotonic()
        ended_s = time.monotonic()
        is_over.set()
        assert link_of(wire, run) == ("", None)
    assert traced_s - opened_s < AT_ONCE_S
    assert ended_s - traced_s < AT_ONCE_S

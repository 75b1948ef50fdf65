"""A question that may be about several repositories waits for a click, and goes on once, with the one that was chosen."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import (
    Pick,
    RepositoryRule,
    RetryIntent,
    Run,
    RunId,
    RunRequest,
    RunState,
    SystemClock,
    run_id_for,
)
from tests.building import make_request
from tests.faults.building import POLICY, Core, core_of, ended
from tests.faults.plan_agent import ANSWER, PlanAdapter

RULES = (
    RepositoryRule(words=("invoice",), repo="acme/billing"),
    RepositoryRule(words=("website",), repo="acme/site"),
)
POLICY_HERE = replace(POLICY, rules={"C1": RULES})
OPEN = f"the invoice on the website is wrong\n{json.dumps(ANSWER)}"


@pytest.fixture
def agent() -> PlanAdapter:
    return PlanAdapter()


@pytest.fixture
async def core(tmp_path: Path, agent: PlanAdapter) -> AsyncIterator[Core]:
    async with core_of(tmp_path, POLICY_HERE, adapter=agent) as core:
        yield core


def asked(text: str = OPEN, **more: object) -> RunRequest:
    now = SystemClock().now()
    request = make_request(text=text, ts=f"{now.timestamp():.6f}")
    return request.model_copy(update={"received_at": now, **more})


def click(
    number: int, run: Run, *, after: timedelta = timedelta(seconds=2), **more: object
) -> Pick:
    at = (run.ended_at or run.created_at) + after
    pick = Pick(run_id=run.id, number=number, user="U1", click_ts=f"{at.timestamp():.6f}")
    return replace(pick, **more)  # type: ignore[arg-type]  # any of its fields


def picked_id(request: RunRequest) -> RunId:
    return run_id_for(
        team=request.team,
        channel=request.channel,
        message_ts=request.message_ts,
        click="repository",
    )


async def ask(core: Core, request: RunRequest) -> Run:
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def test_it_asks_and_goes_on_with_what_is_chosen(core: Core, agent: PlanAdapter) -> None:
    """No agent runs before; after a click it does, told the question and not that it was asked which."""
    request = asked()
    asking = await ask(core, request)
    assert asking.state is RunState.SUCCEEDED
    assert asking.result.candidates == ("acme/billing", "acme/site", "none")
    assert "`acme/billing`, `acme/site`, or none" in asking.result.answer
    assert agent.turns == []
    await core.intake.pick(click(2, asking, user="U2"))
    run = await ended(core, picked_id(request))
    assert (run.state, run.result.answer) == (RunState.SUCCEEDED, "the answer")
    assert (run.request.options.repo, run.request.user) == ("none", "U2")
    (turn,) = agent.turns
    (message,) = turn.messages
    assert message.text == OPEN
    later = asked(json.dumps(ANSWER), thread_ts=request.thread_ts)
    await ask(core, later)
    told = "".join(message.text for message in agent.turns[-1].messages)
    assert "Which repository" not in told
    assert "the invoice on the website" in told
    assert "the answer" in told


async def test_the_chosen_repository_is_the_questions(core: Core) -> None:
    """As if it stood at its beginning; when the answer fails, a retry of it keeps it."""
    text = f"the invoice on the website is wrong\n{json.dumps([{'exit': 3}])}"
    asking = await ask(core, request := asked(text))
    await core.intake.pick(click(0, asking))
    run = await ended(core, picked_id(request))
    assert run.request.options.repo == "acme/billing"
    assert (run.request.text, run.state) == (text, RunState.FAILED)
    await core.intake.retry(RetryIntent(run_id=run.id, user="U1", click_ts="1895302364.000100"))
    retried = [
        one for one in await core.store.of_thread(request.thread) if one.request.retry_of == run.id
    ]
    assert [one.request.options.repo for one in retried] == ["acme/billing"]
    await ended(core, retried[0].id)


async def test_it_goes_on_once_whoever_clicks(core: Core, agent: PlanAdapter) -> None:
    """The same button again changes nothing, another one is told so, and so is a late one."""
    asking = await ask(core, request := asked())
    for user in ("U1", "U1", "U2"):
        await core.intake.pick(click(2, asking, user=user))
    await ended(core, picked_id(request))
    assert core.replies.ephemerals == []
    await core.intake.pick(click(0, asking, user="U3"))
    ((_, user, told),) = core.replies.ephemerals
    assert (user, told) == ("U3", "This question goes on already, with repo=none.")
    assert len(agent.turns) == 1
    assert len(await core.store.of_thread(request.thread)) == 2


async def test_after_an_hour_it_is_told_that_it_was_too_long(
    core: Core, agent: PlanAdapter
) -> None:
    """Nothing runs; just before the hour is over it does."""
    asking = await ask(core, request := asked())
    await core.intake.pick(click(2, asking, after=timedelta(minutes=61)))
    ((_, user, told),) = core.replies.ephemerals
    assert (user, told) == ("U1", "This question has waited for too long. Please ask it again.")
    assert await core.store.get(picked_id(request)) is None
    await core.intake.pick(click(2, asking, after=timedelta(minutes=59)))
    assert (await ended(core, picked_id(request))).state is RunState.SUCCEEDED
    assert len(agent.turns) == 1


async def test_forged_clicks_do_nothing(core: Core, agent: PlanAdapter) -> None:
    """Of a run that asked nothing, of none, of a button that it does not have; and of whoever may not ask."""
    asking = await ask(core, request := asked())
    plain = await ask(core, asked(json.dumps(ANSWER)))
    for forged in (
        click(0, plain),
        click(3, asking),
        click(0, asking, run_id=RunId("run_no")),
    ):
        await core.intake.pick(forged)
    assert await core.store.get(picked_id(request)) is None
    await core.intake.pick(click(2, asking, is_external=True))
    run = await ended(core, picked_id(request))
    assert run.result.error_code is ErrorCode.NOT_ALLOWED
    assert len(agent.turns) == 1  # the plain one's


async def test_where_it_is_clear_nobody_is_asked(core: Core, agent: PlanAdapter) -> None:
    """A thread that began in none stays so, and elsewhere there are no rules."""
    plain = await ask(core, asked(f"repo=none the invoice on the website\n{json.dumps(ANSWER)}"))
    assert plain.result.candidates == ()
    later = await ask(core, asked(OPEN, thread_ts=plain.request.thread_ts))
    assert later.result.candidates == ()
    elsewhere = asked(OPEN, channel="C2")
    await ask(core, elsewhere)
    assert len(agent.turns) == 3

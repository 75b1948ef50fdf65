"""A question that may be about several repositories waits for a click, and goes on once, with the one that was chosen."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.aio import open_task_group
from app.audit.records import Act, AuditQuery
from app.errors import ErrorCode
from app.runs.testing import (
    Pick,
    RepositoryRule,
    RetryIntent,
    Revision,
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


async def test_while_it_is_open_it_is_for_what_comes_after_it(
    core: Core, agent: PlanAdapter
) -> None:
    """In its thread: nothing there is done in a repository that nobody has chosen, until somebody has, once for all of it."""
    asking = await ask(core, request := asked())
    second = asked(json.dumps(ANSWER), thread_ts=request.thread_ts)
    waits = await ask(core, second)
    assert waits.result.candidates == asking.result.candidates
    assert agent.turns == []
    await core.intake.pick(click(2, asking))
    await ended(core, picked_id(request))
    assert (await ended(core, picked_id(second))).result.answer == "the answer"
    assert core.replies.settled == [
        (asking.id, picked_id(request)),
        (waits.id, picked_id(second)),
    ]
    third = await ask(core, asked(json.dumps(ANSWER), thread_ts=request.thread_ts))
    assert third.result.answer == "the answer"


async def test_a_message_that_names_one_takes_back_what_is_open(
    core: Core, agent: PlanAdapter
) -> None:
    """It was asked again, as the question says; nothing of the first one is done, and its buttons go."""
    asking = await ask(core, request := asked())
    again = asked(f"repo=none {json.dumps(ANSWER)}", thread_ts=request.thread_ts)
    assert (await ask(core, again)).result.answer == "the answer"
    taken_back = await ended(core, picked_id(request))
    assert (taken_back.state, taken_back.result.made_way) == (RunState.STOPPED, False)
    assert core.replies.settled == [(asking.id, picked_id(request))]
    assert len(agent.turns) == 1
    await core.intake.pick(click(0, asking))
    assert "was edited or taken back" in core.replies.ephemerals[-1][2]


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


def taken_back(request: RunRequest) -> Revision:
    return Revision(run_id=request.run_id, user="U1", text=None)


def now_ts() -> str:
    return f"{SystemClock().now().timestamp():.6f}"


@pytest.mark.parametrize(
    "way", ["deleted", "in its thread", "in a message", "/orion stop", "cross"]
)
async def test_a_question_that_waits_can_be_taken_back(
    core: Core, agent: PlanAdapter, way: str
) -> None:
    """Its thread says that it is stopped, once; a click then begins nothing and is told why."""
    asking = await ask(core, request := asked())
    place, user = (request.team, request.channel), "U1"
    for _ in range(2):
        match way:
            case "deleted":
                await core.intake.revise(taken_back(request))
            case "in its thread":
                await core.intake.stop_thread(request.thread, user=user, ts=now_ts())
            case "in a message":
                await core.intake.stop_channel(*place, user=user, ts=now_ts())
            case "/orion stop":
                await core.intake.stop_own(*place, user=user)
            case _:
                await core.intake.stop_shown(*place, user=user, reply_ts=asking.reply_ts or "")
    stopped = await ended(core, picked_id(request))
    assert (stopped.state, stopped.result.stopped_by) == (RunState.STOPPED, "U1")
    await core.intake.pick(click(2, asking))
    ((_, user, told),) = core.replies.ephemerals
    assert (user, "taken back" in told) == ("U1", True)
    assert agent.turns == []
    assert len(await core.store.of_thread(request.thread)) == 2


async def test_another_ones_stop_of_a_question_is_an_entry(core: Core) -> None:
    """Of the audit log, as any stop of what somebody else has asked; one's own is none."""
    await ask(core, request := asked())
    await core.intake.stop_thread(request.thread, user="U2", ts=now_ts())
    await ended(core, picked_id(request))
    entries = await core.ports.audit.find(AuditQuery(act=Act.STOP))
    assert [(one.user, one.target, one.is_allowed) for one in entries] == [("U2", "U1", True)]
    await ask(core, own := asked())
    await core.intake.stop_thread(own.thread, user="U1", ts=now_ts())
    await ended(core, picked_id(own))
    assert len(await core.ports.audit.find(AuditQuery(act=Act.STOP))) == 1


async def test_a_stop_means_what_goes_on_before_what_waits(core: Core) -> None:
    """A later message of the thread is stopped; the question is still to be chosen."""
    asking = await ask(core, request := asked())
    later = asked(json.dumps([{"sleep": 60}]), thread_ts=request.thread_ts)
    await core.intake.accept(later)
    assert await core.intake.stop_thread(request.thread, user="U1", ts=now_ts())
    assert (await ended(core, later.run_id)).state is RunState.STOPPED
    await core.intake.pick(click(2, asking))
    assert (await ended(core, picked_id(request))).state is RunState.SUCCEEDED


async def test_an_edited_question_is_answered_as_edited(core: Core, agent: PlanAdapter) -> None:
    """Asked again while it is open still, by buttons of its own; then by what it says. The first buttons begin nothing."""
    asking = await ask(core, request := asked())
    edit = Revision(run_id=request.run_id, user="U1", text=f"{OPEN} and late")
    for _ in range(2):  # Slack may tell of it twice
        await core.intake.revise(edit)
    again = await ended(core, picked_id(request))
    assert again.result.candidates == asking.result.candidates
    await core.intake.pick(click(2, asking))
    ((_, _, told),) = core.replies.ephemerals
    assert "edited" in told
    await core.intake.revise(replace(edit, text=f"repo=none {OPEN}"))
    (*_, last) = await core.store.of_thread(request.thread)
    answered = await ended(core, last.id)
    assert (answered.request.options.repo, answered.state) == ("none", RunState.SUCCEEDED)
    await core.intake.pick(click(1, again))
    assert len(agent.turns) == 1
    assert len(await core.store.of_thread(request.thread)) == 3


async def test_of_two_at_once_one_counts(core: Core, agent: PlanAdapter) -> None:
    """A click and a stop: it goes on and is stopped, or never begins; one run follows either way."""
    asking = await ask(core, request := asked())
    async with open_task_group() as group:
        group.create_task(core.intake.pick(click(2, asking)))
        group.create_task(core.intake.stop_thread(request.thread, user="U1", ts=now_ts()))
    run = await ended(core, picked_id(request))
    assert run.state in (RunState.STOPPED, RunState.SUCCEEDED)
    assert len(agent.turns) <= 1
    assert len(await core.store.of_thread(request.thread)) == 2


async def test_what_was_chosen_follows_no_later_edit(core: Core, agent: PlanAdapter) -> None:
    """Nor a deletion: it is answered."""
    asking = await ask(core, request := asked())
    await core.intake.pick(click(2, asking))
    await ended(core, picked_id(request))
    edit = Revision(run_id=request.run_id, user="U1", text="other words")
    assert not await core.intake.revise(edit)
    assert not await core.intake.revise(taken_back(request))
    assert len(agent.turns) == 1

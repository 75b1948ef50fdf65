"""What waits for a yes: asked once, let through once, told whatever comes of it."""

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.approvals.records import (
    MAX_WAITING_OF_RUN,
    Approval,
    ApprovalAnswer,
    ApprovalState,
)
from app.approvals.rules import (
    CHANNEL,
    OPERATORS,
    ApprovalRules,
    Decision,
    Deed,
    DeedKind,
)
from app.runs.testing import (
    ApprovalDesk,
    AttemptTime,
    Intake,
    Press,
    Run,
    RunId,
    RunState,
    StillWaitingError,
    StopSignals,
)
from tests.building import make_request
from tests.faults.approval_scene import DEED, LOCAL_S, asks, scene_of
from tests.faults.building import POLICY, core_of
from tests.waiting import until


async def test_a_yes_lets_exactly_this_through_once(tmp_path: Path) -> None:
    """It is noted before; asked for again it waits anew, and so does another payload. The card has no secret in it."""
    async with scene_of(tmp_path) as scene:
        waiting = scene.group.create_task(scene.approved())
        card = await scene.card()
        assert "hunter2" not in card.shown
        assert scene.noted == []
        await scene.press(scene.run.request.user)
        assert await waiting == ""
        assert scene.noted == ["noted"]
        assert (await scene.card()).state is ApprovalState.USED
        states = [one.state for one in scene.replies.cards]
        assert states == [ApprovalState.WAITING, ApprovalState.ALLOWED, ApprovalState.USED]
        again = scene.group.create_task(scene.approved())
        assert (await scene.card(2)).state is ApprovalState.WAITING
        changed = replace(DEED, arguments={"title": "something else"})
        other = scene.group.create_task(scene.approved(changed))
        await scene.card(3)
        await scene.press(scene.run.request.user, number=3)
        assert await other == ""
        assert not again.done()
        await scene.press(scene.run.request.user, number=2, says=False)
        assert "said no to the tool linear.create_issue" in await again


async def test_nobody_has_answered_yet(tmp_path: Path) -> None:
    """The agent is told to ask again, which waits for the same card, and finds a yes that came in between."""
    async with scene_of(tmp_path, hold_s=LOCAL_S) as scene:
        for _ in range(2):
            with pytest.raises(StillWaitingError, match="waiting for a person"):
                await scene.approve()
        assert len(scene.replies.cards) == 1
        await scene.press(scene.run.request.user)
        await scene.approve()
        assert scene.noted == ["noted"]


async def test_requests_at_once_ask_once(tmp_path: Path) -> None:
    """One yes is for one of them; the other is told that it is done."""
    async with scene_of(tmp_path) as scene:
        both = [scene.group.create_task(scene.approved()) for _ in range(2)]
        await scene.press(scene.run.request.user)
        ends = sorted([await one for one in both])
        assert ends[0] == ""
        assert "allowed once" in ends[1]
        assert [one.state for one in scene.replies.cards].count(ApprovalState.WAITING) == 1


async def test_requests_at_once_for_a_host_share_its_yes(tmp_path: Path) -> None:
    """It holds for the rest of the run: package tools open many connections."""
    host = Deed(kind=DeedKind.HOST, target="pypi.test:443")
    async with scene_of(tmp_path, asks(kind=DeedKind.HOST, pattern="*")) as scene:
        all_of_them = [scene.group.create_task(scene.approved(host)) for _ in range(8)]
        await scene.press(scene.run.request.user)
        assert {await one for one in all_of_them} == {""}
        assert await scene.approved(host) == ""
        assert len(await scene.store.approvals.of_run(scene.run.id)) == 1


async def test_whose_record_is_gone_may_do_nothing(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        scene.store.forget(scene.run.id)
        assert "is over" in await scene.approved()
        assert scene.noted == []


async def test_a_database_that_is_away_for_a_moment_has_no_answer_yet(tmp_path: Path) -> None:
    """Whoever waits goes on waiting."""
    async with scene_of(tmp_path) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.card()
        flaky = _FlakyApprovals(scene.store.approvals)
        scene.use(flaky)
        other = scene.group.create_task(scene.approved())
        await until(lambda: flaky.failed >= 2)
        await scene.press("U1")
        assert sorted([await waiting, await other])[0] == ""


async def test_many_wait_at_once(tmp_path: Path) -> None:
    """Twenty of one run at the most; all of them ask the database together, and each has its own answer."""
    async with scene_of(tmp_path) as scene:
        counted = _CountedApprovals(scene.store.approvals)
        scene.use(counted)
        deeds = [replace(DEED, arguments={"n": n}) for n in range(MAX_WAITING_OF_RUN)]
        waiting = [scene.group.create_task(scene.approved(deed)) for deed in deeds]
        await scene.card(MAX_WAITING_OF_RUN)
        assert "wait for people already" in await scene.approved()
        counted.looks = 0
        await asyncio.sleep(2)
        assert counted.looks <= 9
        rows = await scene.store.approvals.of_run(scene.run.id)
        for row in rows:
            await scene.store.approvals.answer(  # at another process
                row.id,
                ApprovalAnswer(user="U1", is_allowed=row.number % 2 == 0, at=datetime.now(UTC)),
                is_for_thread=False,
            )
        said = [await one for one in waiting]
        assert sum(text == "" for text in said) == MAX_WAITING_OF_RUN / 2
        assert sum("said no to" in text for text in said) == MAX_WAITING_OF_RUN / 2


class _CountedApprovals:
    """Counts how often it is read for those who wait."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_all(self, approval_ids: Collection[str]) -> Mapping[str, Approval]:
        self.looks += 1
        found: Mapping[str, Approval] = await self._store.get_all(approval_ids)
        return found


class _FlakyApprovals:
    """Is away for every other read."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.failed = 0
        self._is_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_all(self, approval_ids: Collection[str]) -> Mapping[str, Approval]:
        self._is_away = not self._is_away
        if self._is_away and self.failed < 4:
            self.failed += 1
            raise OSError("locked")
        found: Mapping[str, Approval] = await self._store.get_all(approval_ids)
        return found


async def test_a_card_that_takes_long_holds_up_no_press(tmp_path: Path) -> None:
    """Slack waits three seconds for the acknowledgement; the card is brought up to date by whoever keeps them."""
    async with scene_of(tmp_path) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.card()
        scene.replies.card_delay_s = 20
        async with asyncio.timeout(3):
            await scene.press("U1")
        assert await waiting == ""


@pytest.mark.parametrize(
    ("by", "user", "counts"),
    [
        (("asker",), "U1", True),
        (("asker",), "U2", False),
        ((CHANNEL,), "U2", True),
        ((OPERATORS,), "U1", False),
        ((OPERATORS,), "UOP", True),
        (("asker", "U2"), "U2", True),
    ],
)
async def test_who_may_not_answer_is_told_so_alone(
    tmp_path: Path, by: tuple[str, ...], user: str, *, counts: bool
) -> None:
    """And changes nothing."""
    async with scene_of(
        tmp_path, asks(by=by), hold_s=LOCAL_S, operators=frozenset({"UOP"})
    ) as scene:
        with pytest.raises(StillWaitingError):
            await scene.approve()
        await scene.press(user)
        row = await scene.card()
        assert (row.state is ApprovalState.ALLOWED) is counts
        told = [text for _, who, text in scene.replies.ephemerals if who == user]
        assert bool(told) is not counts
        if told:
            assert "your press has changed nothing" in told[0]


async def test_people_of_other_companies_do_not_answer(tmp_path: Path) -> None:
    """Nor those who may not use Orion, in a channel where everybody else may."""
    async with scene_of(
        tmp_path, asks(by=(CHANNEL,)), hold_s=LOCAL_S, allowed_users=frozenset({"U1", "U2"})
    ) as scene:
        with pytest.raises(StillWaitingError):
            await scene.approve()
        await scene.press("U2", is_external=True)
        await scene.press("U3")
        assert (await scene.card()).state is ApprovalState.WAITING
        assert [user for _, user, _ in scene.replies.ephemerals] == ["U2", "U3"]


async def test_two_people(tmp_path: Path) -> None:
    """The same one twice is one."""
    async with scene_of(tmp_path, asks(by=(CHANNEL,), people=2)) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.press("U1")
        await scene.press("U1")
        assert "somebody else" in scene.replies.ephemerals[0][2]
        assert not waiting.done()
        await scene.press("U2")
        assert await waiting == ""


async def test_a_yes_for_the_thread(tmp_path: Path) -> None:
    """What the rule asks for of that tool is not asked for again there; another tool is."""
    async with scene_of(tmp_path, hold_s=5) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.press("U1", is_for_thread=True)
        assert await waiting == ""
        await scene.approve(replace(DEED, arguments={"title": "another one"}))
        assert len(await scene.store.approvals.of_run(scene.run.id)) == 1
        other = scene.group.create_task(scene.approved(replace(DEED, target="linear.delete_issue")))
        await scene.press("U1", number=2, says=False)
        assert await other


async def test_a_yes_for_the_thread_is_for_one_asker(tmp_path: Path) -> None:
    """What another person asks there is asked for: the rule names who asks."""
    async with scene_of(tmp_path, hold_s=5) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.press("U1", is_for_thread=True)
        assert await waiting == ""
        request = scene.run.request.model_copy(update={"user": "U2"})
        other = replace(scene.run, id=RunId("run_of_u2"), request=request)
        await scene.store.add(other)
        asking = scene.group.create_task(scene.desk.approve(other.id, DEED, scene.before))
        await until(lambda: {one.run_id for one in scene.replies.cards} == {scene.run.id, other.id})
        (row,) = await scene.store.approvals.of_run(other.id)
        await scene.desk.press(Press(approval_id=row.id, user="U2", is_allowed=True))
        await asking


async def test_a_yes_of_two_for_the_thread_is_both_of_theirs(tmp_path: Path) -> None:
    """Who has allowed one deed has not allowed the next ones."""
    async with scene_of(tmp_path, asks(by=(CHANNEL,), people=2), hold_s=5) as scene:
        for number, is_both in ((1, False), (2, True)):
            waiting = scene.group.create_task(scene.approved())
            await scene.press("U1", number=number, is_for_thread=is_both)
            await scene.press("U2", number=number, is_for_thread=True)
            assert await waiting == ""
        assert await scene.approved() == ""
        assert len(await scene.store.approvals.of_run(scene.run.id)) == 2


async def test_in_time_nobody_said_anything(tmp_path: Path) -> None:
    """It is told as that, to the agent and on the card, and never as a no."""
    async with scene_of(tmp_path, approval_timeout_s=LOCAL_S) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.card()
        assert "no refusal" in await waiting  # though nobody else looks for what is over
        await scene.press("U1")
        assert "its time is over" in scene.replies.ephemerals[0][2]
        assert scene.replies.cards[-1].state is ApprovalState.EXPIRED
        assert "no refusal" in await scene.approved()
        assert scene.noted == []


async def test_a_rule_says_no_or_says_nothing(tmp_path: Path) -> None:
    """Nobody is asked then; without any rule not even the record is read."""
    rules = (asks(pattern="linear.list_*", decision=Decision.ALLOW), asks(decision=Decision.DENY))
    async with scene_of(tmp_path, *rules) as scene:
        await scene.approve(replace(DEED, target="linear.list_issues"))
        await scene.approve(replace(DEED, target="notion.search"))
        assert scene.noted == ["noted"] * 2
        assert "is not allowed here (rule " in await scene.approved()
        assert scene.replies.cards == []


async def test_what_may_not_be_noted_is_not_used_up(tmp_path: Path) -> None:
    """The run is another process's, or its record cannot be written: the yes is good for whoever goes on with it."""
    async with scene_of(tmp_path, hold_s=5) as scene:
        scene.may_act = False
        waiting = scene.group.create_task(scene.approved())
        await scene.press("U1")
        assert "cannot be written" in await waiting
        assert (await scene.card()).state is ApprovalState.ALLOWED
        scene.may_act = True
        assert await scene.approved() == ""


async def test_a_card_that_slack_did_not_take_is_shown_later(tmp_path: Path) -> None:
    """By whoever keeps them."""
    async with scene_of(tmp_path, hold_s=LOCAL_S) as scene:
        scene.replies.shows_no_card = True
        assert "waiting for a person" in await scene.approved()
        assert not (await scene.card()).card_ts
        scene.replies.shows_no_card = False
        await scene.desk.keep()
        assert (await scene.card()).card_ts


async def test_how_long_a_run_has_waited(tmp_path: Path) -> None:
    """Whichever process it asked: what waits at once counts once. The attempt's time stands still for that, and not longer than it may."""
    async with scene_of(tmp_path) as scene:
        approvals = scene.desk.of(scene.run)
        assert approvals is not None
        since = datetime.now(UTC) - timedelta(seconds=90)
        assert await approvals.waited_s(since) == 0
        waiting = scene.group.create_task(scene.approved())
        row = await scene.card()
        began = row.asked_at - timedelta(seconds=100)
        for since_s, for_s in ((0, 20), (10, 5), (15, 15)):
            asked_at = began + timedelta(seconds=since_s)
            other = replace(row, number=0, digest=f"{since_s}", asked_at=asked_at)
            other = await scene.store.approvals.ask(other)
            at = asked_at + timedelta(seconds=for_s)
            no = ApprovalAnswer(user="U1", is_allowed=False, at=at)
            await scene.store.approvals.answer(other.id, no, is_for_thread=False)
        waited_s = await approvals.waited_s(since)
        assert 20 <= waited_s < 30
        await scene.press("U1")
        assert await waiting == ""
        now = datetime.now(UTC)
        time = AttemptTime(started_at=now, deadline_at=now, max_still_s=60)
        assert time.remaining_s == 0
        time.note_still(waited_s)
        time.note_still(waited_s)
        assert waited_s - 5 < time.remaining_s <= waited_s
        time.note_still(1_000)
        assert time.still_s == 60


@pytest.mark.long
async def test_a_run_has_time_for_what_waits_at_another_process(tmp_path: Path) -> None:
    """Its agent works for longer than it may; meanwhile a request of its waited elsewhere, of which this process hears from the record alone."""
    policy = replace(
        POLICY,
        run_timeout_s=2,
        idle_timeout_s=60,
        approvals=ApprovalRules(general=(asks(),)),
        approval_timeout_s=60,
    )
    async with core_of(tmp_path, policy) as core:
        request = make_request(
            text=json.dumps([{"sleep": 14}, {"final": "done"}]), received_at=datetime.now(UTC)
        )
        await core.intake.accept(request)

        async def going() -> Run | None:
            run = await core.store.get(request.run_id)
            return run if run is not None and run.state is RunState.RUNNING else None

        async with asyncio.timeout(10):
            while (run := await going()) is None:
                await asyncio.sleep(0.02)
        now = datetime.now(UTC)
        await core.store.approvals.ask(
            Approval(
                id="",
                run_id=run.id,
                team=run.request.team,
                channel=run.request.channel,
                thread_key=run.thread.key,
                thread_ts=run.thread.thread_ts,
                asker="U1",
                kind=DEED.kind,
                target=DEED.target,
                shown="",
                digest=DEED.digest,
                rule="",
                by=("asker",),
                people=1,
                asked_at=now,
                until=now + timedelta(seconds=60),
            )
        )
        async with asyncio.timeout(30):
            while not (run := await core.store.get(run.id) or run).state.is_final:
                await asyncio.sleep(0.05)
        assert (run.state, run.result.answer) == (RunState.SUCCEEDED, "done")


async def test_a_message_is_as_old_as_the_clock_of_all_says(tmp_path: Path) -> None:
    """However far this machine's is off, by which it was heard."""
    async with core_of(tmp_path) as core:
        intake = Intake(
            core.ports,
            dispatcher=core.dispatcher,
            signals=StopSignals(),
            desk=ApprovalDesk(core.ports, dispatcher=core.dispatcher, policy=POLICY),
            policy=POLICY,
            skew_s=lambda: 600.0,
        )
        request = make_request()
        await intake.accept(request)
        run = await core.store.get(request.run_id)
        assert run is not None
        assert run.created_at - request.received_at == timedelta(seconds=600)


async def test_its_run_has_ended(tmp_path: Path) -> None:
    """The card says so, and a press does nothing."""
    async with scene_of(tmp_path, hold_s=5) as scene:
        waiting = scene.group.create_task(scene.approved())
        await scene.card()
        await scene.store.update(scene.run.id, state=RunState.STOPPED)
        await scene.desk.keep()
        assert await waiting == "the run is over"
        await scene.press("U1")
        assert (await scene.card()).state is ApprovalState.WITHDRAWN

"""Replies that mention nobody: answered, or gone as if they had never been read; on the real core."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from typing_extensions import override

from app.runs.attempt import CUT_THREAD
from app.runs.testing import (
    JUDGEMENTS,
    MUTED,
    Addressing,
    ApprovalDesk,
    FollowUps,
    Intake,
    MessageContent,
    ModelCall,
    QueuePosition,
    Revision,
    Run,
    RunRequest,
    RunState,
    Thread,
    ThreadMessage,
    UnreadThreadError,
    Usage,
    Verdict,
)
from app.store.memory import MemoryRunStore, MemoryThreadStore
from tests.building import make_request
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until

ROOT = "1795302364.000100"
JUDGED = replace(POLICY, follow_ups=FollowUps.JUDGED)


def said(ts: str, user: str = "U1", *, is_own: bool = False, text: str = "hi") -> ThreadMessage:
    name = "Orion" if is_own else f"name of {user}"
    return ThreadMessage(
        ts=ts, user="" if is_own else user, author_name=name, text=text, is_own=is_own
    )


TWO = (said(ROOT), said("1795302364.000200", is_own=True))
THREE = (*TWO, said("1795302364.000300", "U2"))
WITH_BOT = (*TWO, said("1795302364.000300", ""))


def reply(number: int, *, user: str = "U1", text: str = "") -> RunRequest:
    request = request_of(ANSWER, ts=f"1795302365.{number:06d}", thread_ts=ROOT)
    changes = {"addressing": Addressing.NONE, "user": user, "text": text or request.text}
    return request.model_copy(update=changes)


@dataclass
class PaperJudge:
    """Says what it is told to, and keeps what it was asked."""

    answers: list[bool | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def has_been_asked(self, count: int) -> bool:
        """More often than this."""
        return len(self.asked) > count

    async def ask(self, instruction: str, text: str) -> Verdict:
        assert "addressed or other" in instruction
        self.asked.append(text)
        await self.goes_on.wait()
        now = datetime.now(UTC)
        usage = Usage(input_tokens=100, output_tokens=2)
        call = ModelCall(
            model="priced-1",
            started_at=now,
            first_token_at=None,
            ended_at=now,
            status=200,
            usage=usage,
        )
        return Verdict(is_addressed=self.answers.pop(0), call=call)


async def begin_thread(core: Core, messages: Sequence[ThreadMessage] = TWO) -> Run:
    request = request_of(ANSWER, ts=ROOT)
    await core.intake.accept(request)
    run = await ended(core, request.run_id)
    core.reader.messages = list(messages)
    return run


async def decided(core: Core, count: int = 1) -> dict[tuple[str, str], int]:
    await until(lambda: sum(core.service.follow_ups.values()) >= count)
    return dict(core.service.follow_ups)


async def assert_silent(core: Core, request: RunRequest) -> None:
    """Nothing was posted, told, or kept of it."""
    assert await core.store.get(request.run_id) is None
    assert request.run_id not in core.replies.placed
    assert core.replies.refused == []
    assert core.replies.ephemerals == []


async def test_the_only_person_of_a_thread_is_answered(tmp_path: Path) -> None:
    """Without a mention, and with the record as that of any question."""
    async with core_of(tmp_path) as core:
        await begin_thread(core)
        request = reply(1)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.result.answer) == (RunState.SUCCEEDED, "the answer")
        assert run.request.addressing is Addressing.CLEAR
        assert dict(core.service.follow_ups) == {("answered", "two_party"): 1}


async def test_what_could_not_be_read_of_the_thread_is_told(tmp_path: Path) -> None:
    """Below the answer, once; the question at its top has nothing before it."""
    async with core_of(tmp_path) as core:
        core.reader.is_cut = True
        first = await begin_thread(core)
        assert CUT_THREAD not in first.result.answer
        await core.intake.accept(request := reply(1))
        assert (await ended(core, request.run_id)).result.answer.count(CUT_THREAD) == 1


@pytest.mark.parametrize("messages", [THREE, WITH_BOT], ids=["person", "app"])
async def test_who_is_not_alone_with_orion_is_not_answered(
    tmp_path: Path, messages: Sequence[ThreadMessage]
) -> None:
    """Another person, or another app, has written there; nothing shows that it was looked at."""
    async with core_of(tmp_path) as core:
        await begin_thread(core, messages)
        request = reply(1)
        await core.intake.accept(request)
        assert await decided(core) == {("silent", "people"): 1}
        await assert_silent(core, request)


async def test_slack_is_asked_once_of_a_thread_with_several_people(tmp_path: Path) -> None:
    """Whoever has written there has; later replies cost nothing."""
    async with core_of(tmp_path) as core:
        await begin_thread(core, THREE)
        await core.intake.accept(reply(1))
        await decided(core)
        reads = core.reader.reads
        for number in range(2, 10):
            await core.intake.accept(reply(number))
        await decided(core, 9)
        assert core.reader.reads == reads


async def test_a_thread_without_orion_is_nothing_to_it(tmp_path: Path) -> None:
    """No record, not even for a moment; nor where the rule is `never`, nor for who may not ask."""
    async with core_of(tmp_path) as core:
        request = reply(1)
        await core.intake.accept(request)
        await assert_silent(core, request)
        assert core.reader.reads == 0
    for policy, user in (
        (replace(POLICY, follow_ups=FollowUps.NEVER), "U1"),
        (replace(JUDGED, channel_follow_ups={"C1": FollowUps.NEVER}), "U1"),
        (replace(POLICY, allowed_users=frozenset({"U1"})), "U2"),
    ):
        async with core_of(tmp_path, policy) as core:
            await begin_thread(core)
            reads = core.reader.reads
            request = reply(1, user=user)
            await core.intake.accept(request)
            await assert_silent(core, request)
            assert core.reader.reads == reads


async def test_a_muted_thread_answers_mentions_alone(tmp_path: Path) -> None:
    """Until somebody says otherwise; the same word delivered again, or late, changes nothing and is told once."""
    async with core_of(tmp_path) as core:
        run = await begin_thread(core)
        mute = partial(core.intake.mute, run.thread, user="U1", has_mention=False)
        assert await mute(ts="1795302366.000001", is_muted=True)
        assert not await mute(ts="1795302366.000001", is_muted=True)
        await core.intake.tell_muted(run.thread, user="U1", is_muted=True)
        assert core.replies.ephemerals == [(ROOT, "U1", MUTED)]
        core.replies.ephemerals.clear()
        silent, mentioned = reply(1), request_of(ANSWER, ts="1795302367.000001", thread_ts=ROOT)
        await core.intake.accept(silent)
        assert await decided(core) == {("silent", "muted"): 1}
        await assert_silent(core, silent)
        await core.intake.accept(mentioned)
        assert (await ended(core, mentioned.run_id)).state is RunState.SUCCEEDED
        assert await mute(ts="1795302368.000001", is_muted=False)
        assert not await mute(ts="1795302366.000001", is_muted=True)
        heard = reply(2)
        await core.intake.accept(heard)
        assert (await ended(core, heard.run_id)).state is RunState.SUCCEEDED


async def test_a_mention_is_acknowledged_without_a_look_at_its_thread(tmp_path: Path) -> None:
    """One write, as ever; only a reply that mentions nobody takes a look by an index before its own."""
    async with core_of(tmp_path) as core:
        looks: list[str] = []

        class Threads(MemoryThreadStore):
            @override
            async def has_run(self, thread: Thread) -> bool:
                looks.append(thread.thread_ts)
                return await super().has_run(thread)

        ports = replace(core.ports, threads=Threads({}))
        desk = ApprovalDesk(ports, dispatcher=core.dispatcher, policy=POLICY)
        intake = Intake(
            ports, dispatcher=core.dispatcher, signals=core.signals, desk=desk, policy=POLICY
        )
        await intake.accept(request_of(ANSWER, ts=ROOT))
        await intake.accept(request_of(ANSWER, ts="1795302367.000001", thread_ts=ROOT))
        assert looks == []
        await intake.accept(reply(1))
        assert looks == [ROOT]


async def test_who_may_not_ask_may_not_mute(tmp_path: Path) -> None:
    """Nor does a bare word do anything in a thread without Orion; with a mention it does."""
    async with core_of(tmp_path, replace(POLICY, allowed_users=frozenset({"U1"}))) as core:
        thread, ts = make_request(ts=ROOT).thread, "1795302366.000001"
        for user, has_mention, is_done in (
            ("U2", True, False),
            ("U1", False, False),
            ("U1", True, True),
        ):
            done = await core.intake.mute(
                thread, user=user, ts=ts, is_muted=True, has_mention=has_mention
            )
            assert done == is_done


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [(True, "answered", "model"), (False, "silent", "model"), (None, "silent", "model_failed")],
)
async def test_a_model_judges_where_there_are_more_people(
    tmp_path: Path, answer: bool | None, outcome: str, reason: str
) -> None:
    """What it does not say is no; what it costs is charged, and its calls are counted by themselves."""
    judge = PaperJudge(answers=[answer])
    judge.goes_on.set()
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=5) as core:
        await begin_thread(core, THREE)
        request = reply(1)
        await core.intake.accept(request)
        assert await decided(core) == {(outcome, reason): 1}
        lines = [json.loads(line) for line in judge.asked[0].splitlines()]
        assert [line["is_orion"] for line in lines] == [False, True, False, False]
        assert lines[-1] == {"from": "name of U1", "is_orion": False, "text": request.text}
        await core.ports.ledger.write()
        (call,) = await core.store.spending.of_run(JUDGEMENTS)
        assert call.cost == 102
        if answer:
            assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED
        else:
            await assert_silent(core, request)


async def test_sure_rules_ask_no_model(tmp_path: Path) -> None:
    """By name, with nobody else there, and for what only ends a talk."""
    judge = PaperJudge()
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=5) as core:
        await begin_thread(core, THREE)
        for number, text in enumerate(("Orion, and now?", "name, look", "thanks a lot :tada:"), 1):
            await core.intake.accept(reply(number, text=text))
        await core.intake.accept(reply(4, text="name of U2, can you?"))
        core.reader.messages = [*THREE]
        await until(lambda: sum(core.service.follow_ups.values()) >= 4 or judge.asked)
        assert core.service.follow_ups["answered", "name"] == 1
        assert core.service.follow_ups["silent", "other_name"] == 2
        assert core.service.follow_ups["silent", "closing"] == 1
        assert judge.asked == []


async def test_beyond_the_calls_of_a_day_nobody_is_asked(tmp_path: Path) -> None:
    """The first is judged, the second is not."""
    judge = PaperJudge(answers=[False])
    judge.goes_on.set()
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=1) as core:
        await begin_thread(core, THREE)
        for number in (1, 2):
            await core.intake.accept(reply(number))
            await decided(core, number)
        assert dict(core.service.follow_ups) == {("silent", "model"): 1, ("silent", "budget"): 1}
        assert len(judge.asked) == 1


@pytest.mark.long
async def test_a_mention_behind_an_open_candidate_is_not_told_to_wait(tmp_path: Path) -> None:
    """Nobody shall see that somebody's reply was looked at; their order is kept all the same."""
    judge = PaperJudge(answers=[True])
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=5) as core:
        await begin_thread(core, THREE)
        first, mention = reply(1), request_of(ANSWER, ts="1795302367.000001", thread_ts=ROOT)
        await core.intake.accept(first)
        await until(lambda: judge.asked)
        await core.intake.accept(mention)
        await until(lambda: mention.run_id in core.replies.placed)
        assert core.replies.waiting[-1] == QueuePosition()
        judge.goes_on.set()
        await ended(core, mention.run_id)
        finished = [run_id for run_id, _ in core.replies.finished]
        assert finished[-2:] == [first.run_id, mention.run_id]


async def test_an_edit_is_judged_and_a_deletion_leaves_nothing(tmp_path: Path) -> None:
    """While it is open for whom a reply is; one that mentions Orion now is for it, whatever the model says."""
    judge = PaperJudge(answers=[False, True, False, False])
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=9) as core:
        await begin_thread(core, THREE)
        edited, mentioned, deleted = reply(1), reply(2), reply(3)
        text = json.dumps([{"final": "another answer"}])
        for request, change, addressing in (
            (edited, text, Addressing.NONE),
            (mentioned, text, Addressing.CLEAR),
            (deleted, None, Addressing.NONE),
        ):
            judge.goes_on.clear()
            count = len(judge.asked)
            await core.intake.accept(request)
            await until(partial(judge.has_been_asked, count))
            revision = Revision(
                run_id=request.run_id, user="U1", text=change, addressing=addressing
            )
            assert await core.intake.revise(revision)
            judge.goes_on.set()
            if change is None:
                await until(lambda: core.service.follow_ups["silent", "model"])
                await assert_silent(core, request)
            else:
                run = await ended(core, request.run_id)
                assert run.result.answer == "another answer"


@pytest.mark.parametrize("is_late", [False, True], ids=["while-open", "when-gone"])
async def test_another_event_of_the_message_makes_it_certain(tmp_path: Path, is_late: bool) -> None:
    """Slack's word that Orion was mentioned counts, also after the reply was dropped."""
    judge = PaperJudge(answers=[False])
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=5) as core:
        await begin_thread(core, THREE)
        request = reply(1)
        await core.intake.accept(request)
        await until(lambda: judge.asked)
        if is_late:
            judge.goes_on.set()
            await decided(core)
            await assert_silent(core, request)
        event = request.model_copy(update={"addressing": Addressing.EVENT})
        await core.intake.accept(event)
        judge.goes_on.set()
        run = await ended(core, request.run_id)
        assert run.state is RunState.SUCCEEDED
        assert core.replies.placed.count(request.run_id) == 1


async def test_no_late_reply_is_judged(tmp_path: Path) -> None:
    """Several people go on without Orion while it is away; whoever was alone with it is answered all the same."""
    judge = PaperJudge()
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=5) as core:
        await begin_thread(core, THREE)
        late = reply(1).model_copy(update={"late_s": 60})
        await core.intake.accept(late)
        assert await decided(core) == {("silent", "people"): 1}
        core.reader.messages = list(TWO)
        alone = reply(2).model_copy(update={"late_s": 60})
        await core.intake.accept(alone)
        assert (await ended(core, alone.run_id)).state is RunState.SUCCEEDED
        assert judge.asked == []


@pytest.mark.parametrize("what", ["edited", "deleted", "muted"])
async def test_what_its_author_does_meanwhile_counts(tmp_path: Path, what: str) -> None:
    """While the model judges: as it stands then it is judged anew, or nothing is left of it."""
    judge = PaperJudge(answers=[True, False])
    async with core_of(tmp_path, JUDGED, judge=judge, judgements_day=5) as core:
        await begin_thread(core, THREE)
        request = reply(1)
        await core.intake.accept(request)
        await until(lambda: judge.asked)
        if what == "muted":
            await core.intake.mute(
                request.thread, user="U1", ts=request.message_ts, is_muted=True, has_mention=False
            )
        else:
            text = "I go to lunch" if what == "edited" else None
            revision = Revision(run_id=request.run_id, user=request.user, text=text)
            assert await core.intake.revise(revision)
        judge.goes_on.set()
        reason = {"edited": "model", "deleted": "withdrawn", "muted": "muted"}[what]
        assert await decided(core) == {("silent", reason): 1}
        assert len(judge.asked) == (2 if what == "edited" else 1)
        await assert_silent(core, request)


@pytest.mark.long
async def test_a_thread_that_slack_does_not_show_is_looked_at_again(tmp_path: Path) -> None:
    """Nothing is decided of what nobody can see; after so many times it is given up, and counted."""
    async with core_of(tmp_path) as core:
        await begin_thread(core, ())
        request = reply(1)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        with pytest.raises(UnreadThreadError):
            await core.service.place(run, resumed=False)
        for _ in range(3):
            with pytest.raises(UnreadThreadError):
                await core.service.place(run, resumed=True)
        await core.service.place(run, resumed=True)
        assert dict(core.service.follow_ups) == {("silent", "given_up"): 1}
        await assert_silent(core, request)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["stands", "deleted"])
async def test_what_slack_tells_again_may_be_deleted_by_then(
    tmp_path: Path, *, is_deleted: bool
) -> None:
    """Nobody has heard of that either: it leaves no run; what catching up has found stands for certain."""
    late = {"late_s": 60, "received_at": datetime.now(UTC), "text": json.dumps(ANSWER)}
    told_again = make_request().model_copy(update={**late, "event_id": "Ev1"})
    found = make_request(ts="1795302365.000000").model_copy(update={**late, "event_id": ""})
    async with core_of(tmp_path) as core:
        core.reader.deleted = {found.message_ts, *([told_again.message_ts] if is_deleted else [])}
        assert await core.intake.accept(told_again)
        assert await core.intake.accept(found)
        await ended(core, found.run_id)
        if is_deleted:
            assert await core.store.get(told_again.run_id) is None
            assert told_again.run_id not in core.replies.placed
            assert await core.intake.accept(told_again)  # a third delivery
            await until(lambda: core.reader.asked_for.count(told_again.message_ts) == 2)
        else:
            assert (await ended(core, told_again.run_id)).state is RunState.SUCCEEDED


@pytest.mark.parametrize("messages", [TWO, THREE], ids=["answered", "silent"])
async def test_what_a_process_left_undecided_the_next_one_decides(
    tmp_path: Path, messages: Sequence[ThreadMessage]
) -> None:
    """It died before it had decided: answered once, or gone."""
    store = MemoryRunStore()
    request = reply(1)
    async with core_of(tmp_path, store=store) as core:
        await begin_thread(core)
    await store.add(Run(id=request.run_id, request=request, created_at=request.received_at))
    async with core_of(tmp_path, store=store) as core:
        core.reader.messages = list(messages)
        await core.dispatcher.take_over()
        await decided(core)
        if messages is TWO:
            run = await ended(core, request.run_id)
            assert (run.state, core.replies.placed) == (RunState.SUCCEEDED, [request.run_id])
        else:
            await assert_silent(core, request)


@pytest.mark.long
async def test_a_reply_with_a_file_alone_is_a_reply(tmp_path: Path) -> None:
    """What comes with it is looked at like words."""
    async with core_of(tmp_path) as core:
        await begin_thread(core)
        request = reply(1).model_copy(
            update={"text": "", "content": MessageContent(shared=(json.dumps(ANSWER),))}
        )
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED


async def test_who_writes_later_does_not_silence_what_was_said_before(tmp_path: Path) -> None:
    """Whichever of two replies is decided first: each is decided as its thread was when it was said."""
    async with core_of(tmp_path) as core:
        await begin_thread(core)
        early, late = reply(1), reply(2, user="U2")
        await core.intake.accept(late)
        assert await decided(core) == {("silent", "people"): 1}
        assert await core.store.get(late.run_id) is None
        await core.intake.accept(early)
        assert (await ended(core, early.run_id)).state is RunState.SUCCEEDED
        after = reply(3)
        core.reader.messages = [*TWO, said(late.message_ts, "U2")]
        await core.intake.accept(after)
        await until(lambda: core.service.follow_ups["silent", "people"] == 2)
        await assert_silent(core, after)

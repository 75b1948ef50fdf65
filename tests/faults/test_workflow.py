"""The core under failure: whatever breaks, a run ends once, and nothing is left behind."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from typing_extensions import override

from agent_scripts.supervision import events_path
from app.errors import ErrorCode
from app.runs.testing import (
    MAX_ATTEMPTS,
    RUN_LABEL,
    CatalogAgent,
    Done,
    Outcome,
    Resumption,
    Revision,
    Run,
    RunState,
    Session,
    agent_paths,
    find_refusal,
    run_directory,
    session_id_for,
)
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider, Operation
from sandbox_runtime.types import Capability, SandboxId, SandboxSpec
from tests.faults.building import (
    POLICY,
    SOON,
    Core,
    assert_ended_once,
    core_of,
    ended,
    open_core,
    request_of,
)
from tests.faults.plan_agent import ANSWER, Plan
from tests.faults.sick_stores import (
    EditingRunStore,
    SickOwnKeyStore,
    SickRunStore,
    UnreadableRunStore,
)
from tests.long import long_but
from tests.waiting import until

OPERATIONS: tuple[Operation, ...] = get_args(Operation)


async def test_a_run_answers(tmp_path: Path) -> None:
    """The plain case: placed, progress with the tool, answered once, sandbox gone."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.result.answer, run.result.error_code) == (
            RunState.SUCCEEDED,
            "the answer",
            None,
        )
        assert run.delivery == "sent"
        assert run.attempt == 1
        assert run.event_offset > 0
        assert run.reply_ts == "9.000001"
        assert "ls" in {tool.argument for shown in core.replies.shown for tool in shown.tools}
        assert_ended_once(core, run)


@pytest.mark.parametrize(
    ("operation", "nth", "is_retryable"),
    long_but(
        list(product(OPERATIONS, (1, 2, 3), (True, False))),
        lambda row: row[1] == (1 if row[2] else 2),
    ),
)
async def test_any_sandbox_call_may_fail(
    operation: Operation,
    nth: int,
    is_retryable: bool,
    tmp_path: Path,
) -> None:
    """The n-th call of any operation fails: the run still ends once, with an answer or a code, and leaves no sandbox."""
    async with core_of(tmp_path) as core:
        error = SandboxError(SandboxErrorCode.UNAVAILABLE, "told to fail", retryable=is_retryable)
        core.provider.fail(operation, nth, error)
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state is RunState.SUCCEEDED) == (run.result.error_code is None)
        assert core.replies.placed == [run.id]
        assert len(core.replies.finished) == 1
        if operation != "destroy":
            assert core.provider.alive == 0


@pytest.mark.parametrize("change", ["reply_ts", "attempt", "outcome"])
async def test_what_is_done_outlasts_a_sick_database(tmp_path: Path, change: str) -> None:
    """What stands in Slack, that a run begins, and what its agent worked for, is recorded as soon as the database takes it."""
    store = SickRunStore(TimeoutError(), OSError("locked"), column=change)
    async with core_of(tmp_path, store=store) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, store.failures) == (RunState.SUCCEEDED, [])
        assert_ended_once(core, run)


async def test_what_an_attempt_begins_with_outlasts_a_sick_database(tmp_path: Path) -> None:
    """Its thread, and what earlier attempts have spent, are read as soon as the database gives them: it costs no attempt."""
    async with core_of(tmp_path, store=UnreadableRunStore()) as core:
        request = request_of(ANSWER, thread_ts="1795302000.000100")
        await core.store.add(
            Run(id=request.run_id, request=request, created_at=request.received_at)
        )
        await core.store.update(request.run_id, state=RunState.RUNNING, attempt=1, reply_ts="9.1")
        await core.service.advance(request.run_id)
        run = await ended(core, request.run_id)
        assert (run.state, run.attempt) == (RunState.SUCCEEDED, 2)
        assert core.reader.reads == 1


async def test_creation_is_retried_only_when_that_may_help(tmp_path: Path) -> None:
    """A retryable failure costs an attempt, a final one ends the run with its code."""
    async with core_of(tmp_path) as core:
        error = SandboxError(SandboxErrorCode.CREATE_FAILED, "busy", retryable=True)
        core.provider.fail("create", 2, error)  # the first creation prepares the environment
        request = request_of(ANSWER)
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED
    # With nothing there yet, whatever does not answer is not a workspace that was lost.
    for code in (SandboxErrorCode.CREATE_FAILED, SandboxErrorCode.UNAVAILABLE):
        async with core_of(tmp_path) as core:
            core.provider.fail("create", 2, SandboxError(code, "no"))
            await core.intake.accept(request)
            run = await ended(core, request.run_id)
            assert run.result.error_code is ErrorCode.SANDBOX_CREATION_FAILED
            assert_ended_once(core, run)


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ([{"exit": 3}], ErrorCode.AGENT_EXECUTION_FAILED),
        ([{"text": "half"}, {"exit": 0}], ErrorCode.AGENT_EXECUTION_FAILED),
        ([{"text": "half"}, {"sleep": 60}], ErrorCode.AGENT_IDLE),
    ],
)
async def test_agent_failures_keep_the_partial_answer(
    plan: Plan, code: ErrorCode, tmp_path: Path
) -> None:
    """However the agent fails, its code is recorded and what it had written is kept."""
    async with core_of(tmp_path, replace(POLICY, idle_timeout_s=1)) as core:
        request = request_of(plan)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.result.error_code is code
        assert run.result.answer == "".join(str(step.get("text", "")) for step in plan)
        assert_ended_once(core, run)


async def test_a_line_that_no_parser_thought_of_is_skipped(tmp_path: Path) -> None:
    """Any process of the sandbox may write one; the run goes on, and its answer counts."""
    async with core_of(tmp_path) as core:
        request = request_of([{"run": "echo no JSON"}, {"final": "the answer"}])
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.result.answer, run.result.error_code) == (
            RunState.SUCCEEDED,
            "the answer",
            None,
        )


async def test_who_asked_is_told_which_limit_it_was(tmp_path: Path) -> None:
    """A limit of what a run may use has words of its own, which the record keeps."""
    async with core_of(tmp_path, replace(POLICY, max_disk_bytes=10_000_000, timings=SOON)) as core:
        request = request_of([{"run": "head -c 20000000 /dev/zero > filler"}, {"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        core.replies.outages = 1
        run = await ended(core, request.run_id)
        assert run.result.error_code is ErrorCode.LIMIT_EXCEEDED
        ((_, result),) = core.replies.finished
        assert result.detail == "its files took more space than my workspace has"


async def test_the_deadline_ends_a_run(tmp_path: Path) -> None:
    """An agent that goes on for ever is ended at the deadline, counted from the start."""
    async with core_of(tmp_path, replace(POLICY, run_timeout_s=2)) as core:
        request = request_of([{"text": "x"}, *[{"sleep": 0.2}] * 100])
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.result.error_code is ErrorCode.SANDBOX_TIMEOUT
        assert run.ended_at is not None
        assert run.started_at is not None
        assert run.ended_at - run.started_at < timedelta(seconds=6)
        assert_ended_once(core, run)


async def test_a_waiting_run_that_is_over_takes_no_place(tmp_path: Path) -> None:
    """Ended by somebody else while it waits for a slot, a run neither starts nor is told of twice."""
    async with core_of(tmp_path, replace(POLICY, capacity=1)) as core:
        first = request_of([{"text": "a"}, {"sleep": 1}, {"final": "one"}])
        second = request_of(ANSWER, ts="1795302365.000100")
        await core.intake.accept(first)
        await until(lambda: core.provider.created == 2 and core.provider.alive == 1)
        await core.intake.accept(second)
        await until(lambda: len(core.replies.placed) == 2)
        await core.store.update(second.run_id, state=RunState.STOPPED)
        assert (await ended(core, first.run_id)).state is RunState.SUCCEEDED
        await until(lambda: core.dispatcher.probe() == "0 runs")
        assert [run_id for run_id, _ in core.replies.finished] == [first.run_id]
        assert core.provider.created == 2  # one prepared the environment, one answered


async def test_secrets_are_masked_before_they_are_stored_or_shown(tmp_path: Path) -> None:
    """A secret in the answer, in a tool's argument or in an error reaches neither record nor thread."""
    async with core_of(tmp_path) as core:
        request = request_of(
            [{"tool": "echo hunter2"}, {"text": "hunter2"}, {"final": "is hunter2"}]
        )
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.result.answer == "is [redacted]"
        assert "hunter2" not in repr(core.replies.shown) + repr(core.replies.finished)


async def test_advance_may_be_called_again_at_any_state(tmp_path: Path) -> None:
    """After a crash the record decides: a decided outcome is only told again, three attempts are enough."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.store.update(
            run.id,
            state=RunState.ANSWERING,
            outcome=Outcome(state=RunState.SUCCEEDED, answer="kept"),
            reply_ts="9.1",
            attempt=1,
        )
        assert await core.service.advance(run.id) == Done()
        assert core.replies.finished[0][1].answer == "kept"
        assert core.provider.created == 0
        assert await core.service.advance(run.id) == Done()
        assert len(core.replies.finished) == 1

        worn = request_of(ANSWER, ts="1795302366.000100")
        await core.store.add(Run(id=worn.run_id, request=worn, created_at=worn.received_at))
        await core.store.update(worn.run_id, state=RunState.RUNNING, attempt=3, reply_ts="9.2")
        await core.service.advance(worn.run_id)
        ended_run = await core.store.get(worn.run_id)
        assert ended_run is not None
        assert ended_run.result.error_code is ErrorCode.INTERRUPTED


@pytest.mark.parametrize("has_effect", [True, False])
async def test_what_may_have_changed_something_outside_is_not_repeated(
    has_effect: bool, tmp_path: Path
) -> None:
    """After a crash the broker's word decides: a turn without an effect runs again, one with an effect ends, and says why."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.store.update(
            run.id,
            state=RunState.RUNNING,
            attempt=1,
            reply_ts="9.1",
            has_outside_effect=has_effect,
        )
        await core.service.advance(run.id)
        ended_run = await core.store.get(run.id)
        assert ended_run is not None
        ((_, result),) = core.replies.finished
        if has_effect:
            assert ended_run.result.error_code is ErrorCode.INTERRUPTED
            assert result.detail.startswith("it may have changed something outside")
            assert core.provider.created == 0
        else:
            assert ended_run.result.answer == "the answer"


@pytest.mark.parametrize("attempt", [1, MAX_ATTEMPTS])
async def test_a_sandbox_that_nobody_has_put_on_record_ends(attempt: int, tmp_path: Path) -> None:
    """Its process died between the two: the run's next attempt ends it, or its end; what is another run's stays."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.store.update(run.id, state=RunState.RUNNING, attempt=attempt, reply_ts="9.1")
        left = await core.provider.create(SandboxSpec(labels={RUN_LABEL: run.id}))
        another = await core.provider.create(SandboxSpec(labels={RUN_LABEL: "run_other"}))
        await core.service.advance(run.id)
        ended_run = await core.store.get(run.id)
        assert ended_run is not None
        assert ended_run.outcome is not None
        assert await core.provider.find(left.id) is None
        assert await core.provider.find(another.id) is not None


async def test_what_dies_while_it_reads_the_thread_has_not_tried(tmp_path: Path) -> None:
    """Slack's limits may make a run wait to read its thread: a crash there, however often, costs none of its attempts."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER, thread_ts="1795302300.000100")
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        core.reader.hangs = True
        for _ in range(MAX_ATTEMPTS + 1):
            core.reader.reads = 0
            async with open_task_group() as group:
                dying = group.create_task(core.service.advance(run.id))
                await until(lambda: core.reader.reads)
                dying.cancel()
        core.reader.hangs = False
        await core.service.advance(run.id)
        run = await ended(core, run.id)
        assert (run.result.answer, run.attempt) == ("the answer", 1)


async def test_a_run_that_reads_its_thread_can_be_stopped_at_once(tmp_path: Path) -> None:
    """It has its slot, and has not begun: it ends as stopped, is told of once, and nothing is made for it."""
    async with core_of(tmp_path) as core:
        core.reader.hangs = True
        request = request_of(ANSWER, thread_ts="1795302300.000100")
        await core.intake.accept(request)
        await until(lambda: core.reader.reads == 1)
        assert await core.intake.stop_run(request.run_id, user="U2")
        run = await ended(core, request.run_id)
        assert (run.state, run.result.stopped_by, run.attempt) == (RunState.STOPPED, "U2", 0)
        assert_ended_once(core, run)
        assert core.provider.created == 0


class Attachable(FakeProvider):
    """Gives back the sandboxes that it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[SandboxId, Sandbox] = {}

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities | {Capability.ATTACH}

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await super().create(spec)
        self.made[sandbox.id] = sandbox
        return sandbox

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        return self.made[sandbox_id]


async def _left_behind(core: Core, steps: Plan) -> Run:
    """A run whose agent works in a sandbox, and whose process is gone."""
    request = request_of(steps)
    run = Run(id=request.run_id, request=request, created_at=request.received_at)
    await core.store.add(run)
    await core.store.update(run.id, state=RunState.RUNNING, attempt=1, reply_ts="9.1")
    sandbox = await core.provider.create(SandboxSpec())
    paths = agent_paths(sandbox.paths)
    left = replace(paths, run=run_directory(paths, run, attempt=1))
    await sandbox.write_file(events_path(left), b"no event\n")
    await core.store.sessions.add(
        Session(
            id=session_id_for(run.thread),
            name="left-behind",
            thread=run.thread,
            provider=core.provider.name,
            sandbox_id=sandbox.id,
            created_at=run.created_at,
            used_at=run.created_at,
        )
    )
    return run


@pytest.mark.long
async def test_an_effect_of_a_left_agent_counts_too(tmp_path: Path) -> None:
    """One that was attached to, had an effect only then, and failed: its turn does not run again either."""
    async with open_core(
        POLICY, socket=str(tmp_path / "broker.sock"), sandboxes=Attachable()
    ) as core:
        core.broker.has_effects = True
        run = await _left_behind(core, ANSWER)
        await core.service.advance(run.id)
        ended_run = await core.store.get(run.id)
        assert ended_run is not None
        assert (ended_run.result.error_code, ended_run.has_outside_effect) == (
            ErrorCode.INTERRUPTED,
            True,
        )
        assert core.replies.finished[0][1].resumed is Resumption.REPEATED
        assert core.provider.created == 1  # by the test


class StoppedMeanwhile(Attachable):
    """Whose sandboxes take long to attach to: somebody presses Stop."""

    def __init__(self) -> None:
        super().__init__()
        self.is_attaching = asyncio.Event()

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        self.is_attaching.set()
        await asyncio.Event().wait()
        return await super().attach(sandbox_id)


async def test_a_stop_before_what_was_left_is_reached(tmp_path: Path) -> None:
    """Its agent does not go on behind the back of whoever was told that it has stopped."""
    provider = StoppedMeanwhile()
    async with (
        open_core(POLICY, socket=str(tmp_path / "broker.sock"), sandboxes=provider) as core,
        open_task_group() as group,
    ):
        run = await _left_behind(core, ANSWER)
        advancing = group.create_task(core.service.advance(run.id))
        await provider.is_attaching.wait()
        assert await core.intake.stop_run(run.id, user="U2")
        await advancing
        stopped = await core.store.get(run.id)
        assert stopped is not None
        assert (stopped.state, stopped.result.stopped_by) == (RunState.STOPPED, "U2")
        assert not await provider.list({})


async def test_an_effect_is_in_the_record_before_it_happens(tmp_path: Path) -> None:
    """What the broker lets out is noted, durably, when it asks to; a run that asks for nothing has no note."""
    async with core_of(tmp_path) as core:
        for has_effects, ts in ((False, "1795302366.000100"), (True, "1795302366.000200")):
            core.broker.has_effects = has_effects
            request = request_of(ANSWER, ts=ts)
            await core.intake.accept(request)
            run = await ended(core, request.run_id)
            assert run.has_outside_effect is has_effects


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        ("use codx: fix", "codx"),
        ("model=\u201copus\u201d fix", "opus"),
        ("sandbox=deno fix", "deno"),
        ("use codex", "your message has no question in it"),
    ],
)
async def test_what_a_waiting_message_becomes_is_checked_as_a_new_one(
    tmp_path: Path, edited: str, told: str
) -> None:
    """An edit that could not have been asked ends with the sentence of such a message; no agent begins."""
    catalog = {name: CatalogAgent(model="plan-1") for name in ("plan", "codex")}
    policy = replace(POLICY, agents=catalog)
    async with core_of(tmp_path, policy) as core:
        first = request_of([{"text": "a"}, {"sleep": 1}, {"final": "one"}])
        second = request_of(ANSWER, ts="1795302365.000100", thread_ts=first.message_ts)
        for request in (first, second):
            await core.intake.accept(request)
        await until(lambda: len(core.replies.placed) == 2)
        edit = Revision(run_id=second.run_id, user="U1", text=edited)
        assert await core.intake.revise(edit)
        run = await ended(core, second.run_id)
        refusal = find_refusal(run.request, policy, runs_last_hour=1, unfinished=1)
        assert refusal is not None
        assert told in refusal.detail
        assert (run.result.error_code, run.result.detail) == (refusal.code, refusal.detail)
        assert run.attempt == 0
        assert core.replies.finished[1][1].detail == refusal.detail


async def test_an_edit_in_the_moment_before_a_run_begins_is_checked(tmp_path: Path) -> None:
    """Behind the check, and yet in time: the run has not begun, and is looked at anew."""
    async with core_of(tmp_path, store=EditingRunStore("sandbox=deno fix")) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.result.error_code, run.attempt) == (ErrorCode.REQUEST_INVALID, 0)
        assert core.provider.created == 0


async def test_messages_of_a_thread_are_placed_in_order(tmp_path: Path) -> None:
    """Also when Slack takes its time for the first; another thread does not wait for that."""
    async with core_of(tmp_path) as core:
        core.replies.places_after_s = [0.5]
        root = "1795302364.000100"
        mine = [request_of(ANSWER, ts=f"1795302364.{n:06d}", thread_ts=root) for n in (100, 101)]
        other = request_of(ANSWER, ts="1795302365.000100")
        for request in (*mine, other):
            await core.intake.accept(request)
        for request in (*mine, other):
            await ended(core, request.run_id)
        assert core.replies.placed == [other.run_id, *(request.run_id for request in mine)]


async def test_a_persons_keys_are_waited_for(tmp_path: Path) -> None:
    """A database that is locked as a run begins costs a moment, not the run."""
    keys = SickOwnKeyStore(OSError("locked"))
    async with open_core(POLICY, socket=str(tmp_path / "broker.sock"), own_keys=keys) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, keys.failures) == (RunState.SUCCEEDED, [])
        assert_ended_once(core, run)

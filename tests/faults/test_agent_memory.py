"""What an agent remembers of its thread when runs fail: nothing that was said is lost to it, and nothing usual is told twice."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pytest
from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentExit, AgentFile, AgentTurn
from agent_scripts.cli_agent import render_prompt
from agent_scripts.events import AgentErrorCode, AgentEvent, TurnFinished
from app.errors import ErrorCode
from app.runs.testing import Run, RunState, session_id_for
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.testing.fake import Operation
from tests.faults.building import Core, open_core
from tests.faults.plan_agent import SCRIPT, Plan, PlanAdapter, PlanParser
from tests.faults.test_workspaces import KEPT, UNKEPT, ask, session_of
from tests.long import one_of_each

RECALL = [{"recall": True}]
DO = [{"final": "done"}]
LOST = SandboxError(SandboxErrorCode.UNAVAILABLE, "gone")
MEMORY = """\
import glob, json, os, sys
turn = json.load(open(sys.argv[1]))
if turn["session"] is None:
    found = sorted(glob.glob(turn["home"] + "/memory-*"), key=os.path.getmtime)
    turn["session"] = found[-1].partition("memory-")[2] if found else "none"
turn["memory"] = turn["home"] + "/memory-" + turn["session"]
if turn["resume"] and not os.path.exists(turn["memory"]):
    print(json.dumps({"lost": True}), flush=True)
    sys.exit(1)
if turn["plan"] == [{"exit": 3}]:
    sys.exit(3)
heard = json.load(open(turn["memory"])) if turn["resume"] else []
heard.append(turn["prompt"])
json.dump(heard, open(turn["memory"], "w"))
if turn["plan"][-1] != {"final": "untold"}:
    print(json.dumps({"session": turn["session"]}), flush=True)
if turn["plan"] == [{"recall": True}]:
    turn["plan"] = [{"final": json.dumps(heard)}]
    json.dump(turn, open(sys.argv[1], "w"))
"""


class RememberingAdapter(PlanAdapter):
    """Keeps each prompt that it was given in its home, and says them all when asked to `recall`."""

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        session, prompt = turn.session, render_prompt(turn.messages)
        assert session is not None
        if session.id is not None and session.id.startswith("-"):
            raise ValueError(f"not a session of plan: {session.id!r}")
        if "too long" in turn.messages[-1].text:
            raise ValueError("plan takes at most 7 bytes of a message")
        command = super().command(turn)
        request = json.loads(command.files[1].data) | {
            "prompt": prompt,
            "session": session.id,
            "resume": session.resume,
            "home": turn.paths.home,
        }
        script = AgentFile(path=command.files[0].path, data=(MEMORY + SCRIPT).encode())
        asked = AgentFile(path=command.files[1].path, data=json.dumps(request).encode())
        return replace(command, files=(script, asked))

    @override
    def parser(self) -> "RememberingParser":
        return RememberingParser()


class RememberingParser(PlanParser):
    def __init__(self) -> None:
        super().__init__()
        self._told: str | None = None
        self._is_lost = False

    @override
    def feed(self, line: str) -> Sequence[AgentEvent]:
        match json.loads(line):
            case {"session": str(told)}:
                self._told = told
            case {"lost": True}:
                self._is_lost = True
            case _:
                pass
        return super().feed(line)

    @override
    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        if self._is_lost:
            return TurnFinished(text="", error=AgentErrorCode.SESSION_NOT_FOUND)
        return replace(super().finish(agent_exit), agent_session_id=self._told)


@asynccontextmanager
async def remembering_core(tmp_path: Path, *, is_kept: bool = False) -> AsyncIterator[Core]:
    policy = KEPT if is_kept else UNKEPT
    socket = str(tmp_path / "broker.sock")
    async with open_core(
        policy, socket=socket, adapter=RememberingAdapter(has_sessions=True)
    ) as core:
        yield core


async def recall(core: Core, number: int) -> list[str]:
    run = await ask(core, RECALL, number=number)
    assert run.state is RunState.SUCCEEDED, run.result.detail
    heard: list[str] = json.loads(run.result.answer)
    return heard


def fail_next(core: Core, operation: Operation) -> None:
    core.provider.fail(operation, core.provider.count(operation) + 1, LOST)


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_usual_thread_is_told_nothing_twice(tmp_path: Path, *, is_kept: bool) -> None:
    """Each question once, in its own turn."""
    async with remembering_core(tmp_path, is_kept=is_kept) as core:
        await ask(core, DO)
        await ask(core, DO, number=1)
        assert await recall(core, 2) == [json.dumps(DO), json.dumps(DO), json.dumps(RECALL)]


@pytest.mark.parametrize(
    ("operation", "is_kept"),
    one_of_each(
        [("spawn", True), ("snapshot", False), ("spawn", False), ("snapshot", True)],
        itemgetter(0),
    ),
)
async def test_a_question_that_is_not_in_its_memory_is_told_with_the_next(
    operation: Operation, tmp_path: Path, *, is_kept: bool
) -> None:
    """Its sandbox was lost before, or its files could not be saved after it; then once, and not again."""
    missed = [{"final": "rename alpha"}]
    async with remembering_core(tmp_path, is_kept=is_kept) as core:
        await ask(core, DO)
        fail_next(core, operation)
        await ask(core, missed, number=1)
        heard = await recall(core, 2)
        assert json.dumps(missed) in heard[-1]
        assert heard[-1].endswith(json.dumps(RECALL))
        assert json.dumps(DO) not in heard[-1]
        assert (await recall(core, 3))[-1] == json.dumps(RECALL)


async def test_a_session_that_was_not_saved_is_not_the_threads(tmp_path: Path) -> None:
    """Its first turn could not be saved: the next one begins anew, with the history."""
    async with remembering_core(tmp_path) as core:
        await core.runtime.runner.prepare_environment()
        fail_next(core, "snapshot")
        run = await ask(core, DO)
        assert (await session_of(core, run)).agent_session_id == ""
        (heard,) = await recall(core, 1)
        assert json.dumps(DO) in heard
        assert core.provider.count("spawn") == 2


@pytest.mark.parametrize("is_kept", [False, True])
async def test_without_an_id_of_a_possible_form_the_newest_session_is_continued(
    tmp_path: Path, *, is_kept: bool
) -> None:
    """Told all that was said, for nobody knows what is in it; the next turn resumes it by the id that it told."""
    async with remembering_core(tmp_path, is_kept=is_kept) as core:
        first = await ask(core, DO)
        await core.store.sessions.update(session_id_for(first.thread), agent_session_id="--last")
        heard = await recall(core, 1)
        assert heard[0] == json.dumps(DO)
        assert json.dumps(DO) in heard[1]
        assert (await recall(core, 2))[2:] == [json.dumps(RECALL)]


async def test_an_agent_that_told_no_id_is_continued(tmp_path: Path) -> None:
    """Again and again, until it tells one."""
    untold: Plan = [{"final": "untold"}]
    async with remembering_core(tmp_path) as core:
        first = await ask(core, untold)
        await ask(core, untold, number=1)
        assert (await session_of(core, first)).agent_session_id == ""
        heard = await recall(core, 2)
        assert len(heard) == 3
        assert heard[0] == json.dumps(untold)
        assert json.dumps(untold) in heard[2]
        assert (await recall(core, 3))[3:] == [json.dumps(RECALL)]


async def test_a_newest_session_that_is_not_there_is_forgotten(tmp_path: Path) -> None:
    """The turn begins anew with the history; the next one resumes what that made."""
    async with remembering_core(tmp_path) as core:
        await ask(core, [{"run": "rm $HOME/memory-*"}, {"final": "untold"}])
        (heard,) = await recall(core, 1)
        assert "untold" in heard
        assert len(await recall(core, 2)) == 2


async def test_another_agent_continues_nothing(tmp_path: Path) -> None:
    """What one without an id has heard is not in the memory of the other."""
    async with remembering_core(tmp_path) as core:
        first = await ask(core, [{"final": "untold"}])
        await core.store.sessions.update(session_id_for(first.thread), agent="other")
        (heard,) = await recall(core, 1)
        assert "untold" in heard


async def test_a_turn_that_the_agent_cannot_be_given_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    """The person's to mend; the thread and its memory go on."""
    async with remembering_core(tmp_path) as core:
        await ask(core, DO)
        refused = await ask(core, [{"final": "too long"}], number=1)
        assert refused.result.error_code is ErrorCode.REQUEST_INVALID
        assert _told(core, refused) == "plan takes at most 7 bytes of a message"
        heard = await recall(core, 2)
        assert len(heard) == 2
        assert "too long" in heard[-1]


@pytest.mark.long
async def test_a_session_is_kept_where_a_fresh_one_fails_alike(tmp_path: Path) -> None:
    """It was not to blame; what failed is told with the next question."""
    failing: Plan = [{"exit": 3}]
    async with remembering_core(tmp_path) as core:
        first = await ask(core, DO)
        known = (await session_of(core, first)).agent_session_id
        assert (await ask(core, failing, number=1)).state is RunState.FAILED
        assert core.provider.count("spawn") == 3
        assert (await session_of(core, first)).agent_session_id == known
        heard = await recall(core, 2)
        assert heard[0] == json.dumps(DO)
        assert json.dumps(failing) in heard[-1]


def _told(core: Core, run: Run) -> str:
    (result,) = (result for run_id, result in core.replies.finished if run_id == run.id)
    return result.detail

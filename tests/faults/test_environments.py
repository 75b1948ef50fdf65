"""What the operator adds to the agent's environment: found by the agent, told step by step, refused where it fails."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.errors import ErrorCode
from app.runs.testing import AddedFile, Additions, AgentEnvironment, RunState
from sandbox_runtime import SandboxError, SandboxErrorCode, SandboxSpec, open_sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider
from tests.faults.building import core_of, ended, request_of
from tests.faults.plan_agent import PlanAdapter
from tests.waiting import until

_TOOL = AddedFile(path="bin/greet", data=b'#!/bin/sh\ncat "${0%/*}/../note"\n', executable=True)
_NOTE = AddedFile(path="note", data=b"hello", executable=False)
_SHOUT = ("sh", "-c", 'bin/greet | tr a-z A-Z > note.new && mv note.new note && touch "$HOME/seen"')
_ADDED = Additions(files=(_TOOL, _NOTE), commands=(("true",), _SHOUT), origin="orion.toml")
_ASK = [{"run": "greet > out"}, {"read": "out"}]
_PHASE = "Setting up the agent (first use)"


def _environment(provider: FakeProvider, additions: Additions) -> AgentEnvironment:
    return AgentEnvironment(provider, PlanAdapter(), additions)


async def test_the_agent_finds_what_was_added(tmp_path: Path) -> None:
    """A tool by its name, with the file beside it as the command left it; the work directory is as empty as ever."""
    async with core_of(tmp_path, additions=_ADDED) as core:
        request = request_of([*_ASK, {"run": "ls > out"}, {"read": "out"}])
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.result.answer) == (RunState.SUCCEEDED, "out\n")
        plain = request_of(_ASK, ts="1795302364.000200")
        await core.intake.accept(plain)
        assert (await ended(core, plain.run_id)).result.answer == "HELLO"
        phases = [shown.phase for shown in core.replies.shown if shown.phase.startswith(_PHASE)]
        assert phases[0] == _PHASE
        assert f"{_PHASE}: installing sh (4/5)" in phases
        assert phases[-2:] == [f"{_PHASE}: cleaning up", f"{_PHASE}: done"]


async def test_other_additions_make_another_environment() -> None:
    """Each has its name; what was made before stays, and without any it is the adapter's own."""
    async with FakeProvider() as provider:
        plain = _environment(provider, Additions())
        other = _environment(provider, Additions(files=(_NOTE,)))
        assert plain.name == "plan-1"
        assert other.name.startswith("plan-1-")
        made = [await one.prepare() for one in (plain, other)]
        assert [await provider.find_snapshot(one.name) for one in (plain, other)] == made
        assert [await one.prepare() for one in (plain, other)] == made


async def test_a_failing_command_is_named_and_can_be_mended(tmp_path: Path) -> None:
    """Whose and the how manieth it is, with the end of its stderr: in the run's record and in the log."""
    mark = tmp_path / "mended"
    argv = ("sh", "-c", f"test -e {mark} || {{ echo no such luck >&2; exit 7; }}")
    additions = Additions(commands=(("true",), argv), origin="orion.toml: agents.plan.commands")
    said = "orion.toml: agents.plan.commands[1] (sh) exited with 7: no such luck"
    async with core_of(tmp_path, additions=additions) as core:
        request = request_of([{"final": "done"}])
        with capture_logs() as logs:
            await core.intake.accept(request)
            run = await ended(core, request.run_id)
        assert (run.result.error_code, run.result.detail) == (ErrorCode.SANDBOX_SETUP_FAILED, said)
        events = [log for log in logs if log["event"].startswith("environment.")]
        assert events[0]["event"] == "environment.step"
        assert [log["step"] for log in events if "step" in log][-3:] == [
            *("installing sh (4/5)", "cleaning up", "error"),
        ]
        assert events[-1]["event"] == "environment.failed"
        assert events[-1]["reason"] == said
        assert core.provider.alive == 0
        mark.touch()
        again = request_of([{"final": "done"}], ts="1795302364.000200")
        await core.intake.accept(again)
        assert (await ended(core, again.run_id)).result.answer == "done"


@pytest.mark.parametrize("directory", ["work", "home"])
async def test_nothing_is_left_where_it_would_be_lost(directory: str) -> None:
    """What a command leaves in work or home would be found by some threads only: it is refused, and named."""
    async with FakeProvider() as provider:
        write = 'touch "$(dirname "$HOME")/../$0/.left"'
        additions = Additions(commands=(("sh", "-c", write, directory),))
        with pytest.raises(SandboxError, match=rf"/{directory}/\.left") as caught:
            await _environment(provider, additions).prepare()
        assert caught.value.code is SandboxErrorCode.SETUP_FAILED
        assert "/added is kept, but there is also: /" in str(caught.value)
        assert provider.alive == 0


async def test_commands_run_beside_the_files_in_a_home_of_their_own() -> None:
    """Their directory is the one of the additions; their home is not the agent's, and goes."""
    async with FakeProvider() as provider:
        commands = (("sh", "-c", "pwd > where; echo $HOME >> where; touch $HOME/.cache-of-mine"),)
        made = await _environment(provider, Additions(commands=commands)).prepare()
        async with open_sandbox(provider, SandboxSpec(snapshot_id=made.id)) as sandbox:
            added = f"{sandbox.paths.environment}/added"
            where, home = (await sandbox.read_file(f"{added}/where")).decode().split()
            assert where == added
            assert home.endswith("/run/home")
            listed = await sandbox.exec(["ls", "-A", sandbox.paths.home], timeout_s=9)
            assert listed.stdout == b""


async def test_who_waits_sees_the_steps_too() -> None:
    """A second caller is told of the preparation that goes on; it ends with the same environment, made once."""
    async with FakeProvider() as provider:
        await provider.ensure_ready()
        environment = _environment(provider, Additions(commands=(("sleep", "0.3"), ("true",))))
        first: list[str] = []
        second: list[str] = []
        async with open_task_group() as group:
            one = group.create_task(environment.prepare(first.append))
            await until(lambda: first[-1:] == ["installing sleep (3/5)"])
            two = group.create_task(environment.prepare(second.append))
        assert one.result() == two.result()
        assert first == [
            *("checking", "base: checking", "base: exists", "creating", "booting"),
            *("installing true (1/5)", "installing mkdir (2/5)", "installing sleep (3/5)"),
            *("installing true (4/5)", "installing sh (5/5)"),
            *("snapshotting", "cleaning up", "done"),
        ]
        assert second == [
            *("checking", "installing true (4/5)", "installing sh (5/5)"),
            *("snapshotting", "cleaning up", "done", "exists"),
        ]


async def test_stopped_while_it_is_made(tmp_path: Path) -> None:
    """A Stop ends the preparation with its command and its sandbox; nothing of it is found later."""
    additions = Additions(commands=(("sleep", "60"),))
    async with core_of(tmp_path, additions=additions) as core:
        request = request_of([{"final": "done"}])
        await core.intake.accept(request)
        await until(lambda: any("installing sleep" in shown.phase for shown in core.replies.shown))
        await core.intake.stop_run(request.run_id, user="U1")
        assert (await ended(core, request.run_id)).state is RunState.STOPPED
        assert core.provider.alive == 0
        assert (
            await core.provider.find_snapshot(
                AgentEnvironment(core.provider, PlanAdapter(), additions).name
            )
            is None
        )


async def test_one_that_its_provider_let_expire_is_made_once_more(tmp_path: Path) -> None:
    """Within the run, which finds its thread's files; a second loss in the same run ends it."""
    async with core_of(tmp_path) as core:
        first = request_of([{"write": "notes", "text": "kept"}, {"final": "done"}])
        await core.intake.accept(first)
        await ended(core, first.run_id)
        gone = SandboxError(SandboxErrorCode.NOT_FOUND, "the snapshot has expired")
        core.provider.fail("create", core.provider.count("create") + 1, gone)
        second = request_of([{"read": "notes"}], ts="1795302364.000200", thread_ts=first.message_ts)
        with capture_logs() as logs:
            await core.intake.accept(second)
            run = await ended(core, second.run_id)
        assert (run.state, run.result.answer) == (RunState.SUCCEEDED, "kept")
        events = [entry["event"] for entry in logs]
        assert (events.count("environment.lost"), events.count("environment.ready")) == (1, 1)
        assert "sandbox.workspace_lost" not in events
        # The next creation, then, after the environment's own, the one for the run.
        for ahead in (1, 3):
            core.provider.fail("create", core.provider.count("create") + ahead, gone)
        third = request_of([{"final": "x"}], ts="1795302364.000300")
        await core.intake.accept(third)
        failed = await ended(core, third.run_id)
        assert failed.result.error_code is ErrorCode.SANDBOX_CREATION_FAILED

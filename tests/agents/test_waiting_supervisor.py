"""A supervisor that waits with its agent loaded: what it does with its task is what any other does; before, it knows nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentCommand, AgentPaths
from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from agent_scripts.inside.preload import WAIT
from agent_scripts.supervision import (
    AgentLine,
    AgentStarted,
    is_waiting,
    supervise,
    supervise_later,
)
from tests.agents.bench import LIMITS, RUN_TOKEN, WAIT_S, Bench, processes_with, write_files
from tests.waiting import until

pytestmark = pytest.mark.agents


@dataclass
class Waiting:
    paths: AgentPaths
    process: asyncio.subprocess.Process

    @property
    def agent(self) -> int:
        """Pid of the agent that waits."""
        (found,) = [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if self._is_agent(entry / "cmdline")
        ]
        return found

    def _is_agent(self, path: Path) -> bool:
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            return False
        return words[-2:-1] == [WAIT.encode()] and self.paths.waiting.encode() in words[1]


@asynccontextmanager
async def open_waiting(
    bench: Bench, preloaded: AgentCommand | str | None = "", max_wait_s: float = WAIT_S
) -> AsyncIterator[Waiting]:
    """One that has said that it waits; without `preloaded` with the real agent."""
    bench.keeps_stderr = True
    paths = replace(bench.paths(), waiting=str(bench.root / "waiting"))
    loaded = AnthropicAdapter().preload(paths) if isinstance(preloaded, str) else preloaded
    command = supervise_later(loaded, paths=paths, max_wait_s=max_wait_s)
    write_files(command)
    process = await bench.start(command)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert is_waiting((await process.stdout.readline()).decode())
        yield Waiting(paths=paths, process=process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.alone
async def test_the_agent_that_waited_answers(model: Bench) -> None:
    """The process is the one that was loaded, with the task's environment; the records are those of any run."""
    async with open_waiting(model) as waits:
        pid = waits.agent
        turn = await model.run(
            model.command("run: echo $HOME; echo $LANG", paths=waits.paths), process=waits.process
        )
    started = turn.records[0]
    assert isinstance(started, AgentStarted)
    assert started.pid == pid
    assert [record.seq for record in turn.records] == list(range(1, len(turn.records) + 1))
    assert turn.finished.error is None
    assert f"{model.root}/home\nC.UTF-8" in turn.finished.text
    assert (turn.exited.exit_code, turn.exited.survivors) == (0, 0)
    assert turn.duration_s < 1.0


async def test_nothing_secret_is_there_before_the_task(model: Bench) -> None:
    """Neither in what the two processes were started with nor in any file; afterwards the token is in no file."""
    async with open_waiting(model) as waits:
        pids = (waits.agent, waits.process.pid)
        started_with = [Path(f"/proc/{pid}/{n}") for pid in pids for n in ("environ", "cmdline")]
        assert _holders(started_with) == []
        assert _holders(_files(model.root)) == []
        command = model.command("hello", paths=waits.paths)
        assert [file.path for file in command.files if RUN_TOKEN.encode() in file.data] == [
            f"{waits.paths.waiting}/supervisor.json"
        ]
        await model.run(command, process=waits.process)
        assert _holders(_files(model.root)) == []


@pytest.mark.long
async def test_an_agent_that_died_meanwhile_ends_the_wait(model: Bench) -> None:
    """The supervisor says why, so that nobody is given a sandbox without an agent."""
    async with open_waiting(model) as waits:
        os.kill(waits.agent, signal.SIGKILL)
        async with asyncio.timeout(5):
            _, said = await waits.process.communicate()
        assert waits.process.returncode == 1
        assert b"ended while it waited" in said


async def test_a_broken_agent_never_waits(bench: Bench) -> None:
    """What it said last is told."""
    bench.keeps_stderr = True
    paths = replace(bench.paths(), waiting=str(bench.root / "waiting"))
    script = AgentCommand(argv=("sh", "-c", "echo no module >&2; exit 1"), env={}, files=())
    command = supervise_later(script, paths=paths, max_wait_s=WAIT_S)
    write_files(command)
    process = await bench.start(command)
    async with asyncio.timeout(5):
        said, words = await process.communicate()
    assert (process.returncode, said) == (1, b"")
    assert b"no module" in words


@pytest.mark.long
async def test_a_wait_ends_by_itself(bench: Bench) -> None:
    """With its agent, one that is loaded at once: a host that is gone leaves nothing for ever."""
    mark = f"wait-ends-{os.getpid()}"
    cat = ("sh", "-c", f"echo ready; cat >/dev/null # {mark}")
    preloaded = AgentCommand(argv=cat, env={}, files=())
    async with open_waiting(bench, preloaded, max_wait_s=8) as waits, asyncio.timeout(WAIT_S):
        await until(lambda: len(processes_with(mark)) == 1)  # the shell's child has become cat
        _, said = await waits.process.communicate()
        assert b"nobody needed this" in said
    assert processes_with(mark) == []


@pytest.mark.parametrize("how", ["none loaded", "another loaded"])
async def test_a_command_that_nobody_loaded_is_started(bench: Bench, how: str) -> None:
    """In the supervisor that waited."""
    mark = f"nobody-loaded-{os.getpid()}"
    cat = ("sh", "-c", f"echo ready; cat >/dev/null # {mark}")
    preloaded = None if how == "none loaded" else AgentCommand(argv=cat, env={}, files=())
    async with open_waiting(bench, preloaded) as waits:
        command = AgentCommand(argv=("echo", "hello"), env={}, files=())
        wrapped = supervise(command, paths=waits.paths, broker=None, limits=LIMITS)
        assert len(wrapped.files) == 1
        turn = await bench.run(wrapped, process=waits.process)
    assert [record.text for record in turn.records if isinstance(record, AgentLine)] == ["hello"]
    assert processes_with(mark) == []


@pytest.mark.long
async def test_a_stop_ends_the_agent_that_waited(model: Bench) -> None:
    """As any other, with all that it started."""
    seconds = str(2_000_000 + os.getpid())
    async with open_waiting(model) as waits:
        command = model.command(f"run: sleep {seconds}", paths=waits.paths)
        turn = await model.run(
            command, on_record=model.stop_when("tool_started"), process=waits.process
        )
    assert (turn.exited.reason, turn.exited.survivors) == ("stopped", 0)
    assert processes_with(seconds) == []


def _holders(paths: list[Path]) -> list[Path]:
    """Those in which the run token is."""
    return [path for path in paths if RUN_TOKEN.encode() in path.read_bytes()]


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and "env" not in path.parts]

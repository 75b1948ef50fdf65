"""How a turn of the real agent is ended from outside: stop, limits, crash; and its environment."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentPaths, EnvironmentRecipe
from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from agent_scripts.events import AgentErrorCode
from agent_scripts.supervision import AgentLine, AgentRecord, AgentStarted
from tests.agents.bench import LIMITS, Bench, processes_with

pytestmark = pytest.mark.agents

_SECONDS = count(1_000_000 + os.getpid() * 10)


@pytest.fixture
def nap() -> Iterator[str]:
    """A `sleep` duration that no other process has, to find its processes by."""
    value = str(next(_SECONDS))
    yield value
    left = processes_with(value)
    assert not left, left


@pytest.mark.long
@pytest.mark.alone
async def test_stop_kills_the_whole_tree(model: Bench, nap: str) -> None:
    """A stop during a shell tool ends it, its background child and a child in a session of its own, within 2 s."""
    command = model.command(
        f"run: sleep {nap} & setsid sleep {nap} & setsid -f sleep {nap}; sleep {nap}"
    )
    stopped_at: list[float] = []

    def on_record(record: AgentRecord) -> None:
        if isinstance(record, AgentLine) and "tool_started" in record.text:
            # The shell needs a moment to start its four children.
            loop.call_later(1.0, stop)

    def stop() -> None:
        assert len([line for line in processes_with(nap) if line.startswith("sleep")]) == 4
        stopped_at.append(loop.time())
        model.stop()

    loop = asyncio.get_running_loop()
    turn = await model.run(command, on_record=on_record)
    assert loop.time() - stopped_at[0] < 2
    assert turn.exited.reason == "stopped"
    assert turn.exited.survivors == 0
    assert not processes_with(nap)
    assert turn.finished.error is AgentErrorCode.EXECUTION_FAILED
    assert turn.finished.text == "Step 1 of 1."


@pytest.mark.long
async def test_background_processes_die_with_the_turn(model: Bench, nap: str) -> None:
    """A turn that ends well leaves nothing behind, and its answer does not wait for background processes."""
    turn = await model.ask(f"run: sleep {nap} & setsid -f sleep {nap}")
    assert turn.finished.error is None
    assert turn.duration_s < 15
    assert turn.exited.survivors == 0


@pytest.mark.long
async def test_stop_while_the_model_writes(model: Bench) -> None:
    """A stop in mid-answer keeps what was written."""
    command = model.command("!slow 30")
    turn = await model.run(command, on_record=model.stop_when("offline"))
    assert turn.exited.reason == "stopped"
    assert turn.exited.exit_code == 128 + signal.SIGTERM
    assert turn.finished.text.startswith("I am Orion's")


@pytest.mark.long
async def test_stop_before_the_start(model: Bench) -> None:
    """A stop asked for before the agent runs is obeyed, and is gone for the next turn."""
    command = model.command("hello")
    model.stop()
    assert (await model.run(command)).exited.reason == "stopped"
    assert (await model.ask("hello")).exited.reason == "exited"


@pytest.mark.long
@pytest.mark.alone
async def test_deadline(model: Bench) -> None:
    """A turn over its time ends as a timeout, whatever it was doing."""
    turn = await model.ask("!stall", limits=replace(LIMITS, timeout_s=5))
    assert turn.exited.reason == "timeout"
    assert turn.finished.error is AgentErrorCode.TIMEOUT
    assert 5 <= turn.duration_s < 7


@pytest.mark.long
async def test_idle(model: Bench) -> None:
    """A turn that prints nothing for too long ends as idle."""
    turn = await model.ask("!stall", limits=replace(LIMITS, idle_timeout_s=4))
    assert turn.exited.reason == "idle"
    assert turn.finished.error is AgentErrorCode.IDLE


async def test_output_limit(model: Bench) -> None:
    """A turn that prints more than allowed ends there."""
    turn = await model.ask("!long", limits=replace(LIMITS, max_output_bytes=20_000))
    assert turn.exited.reason == "output_limit"
    assert turn.finished.error is AgentErrorCode.OUTPUT_LIMIT
    assert turn.finished.text.startswith("# A long answer")


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("filler", id="work directory"),
        pytest.param("$TMPDIR/filler", id="temporary directory", marks=pytest.mark.long),
    ],
)
async def test_disk_limit(model: Bench, place: str) -> None:
    """A turn whose files together grow too large ends there, though each of them may be small."""
    fill = f"for i in $(seq 40); do head -c 1000000 /dev/zero > {place}$i; done; sleep 600"
    turn = await model.ask(f"run: {fill}", limits=replace(LIMITS, max_disk_bytes=30_000_000))
    assert turn.exited.reason == "disk_limit"
    assert turn.finished.error is AgentErrorCode.DISK_LIMIT


@pytest.mark.long
async def test_many_names_of_one_file_are_one_file(model: Bench) -> None:
    """What a file takes is counted once, whatever its names; a link to elsewhere counts nothing."""
    make = (
        "head -c 20000000 /dev/zero > a; for i in 1 2 3; do ln a b$i; done; ln -s / root; sleep 3"
    )
    turn = await model.ask(f"run: {make}", limits=replace(LIMITS, max_disk_bytes=30_000_000))
    assert turn.exited.reason == "exited"


async def test_process_limit(model: Bench, nap: str) -> None:
    """A turn that stays close to its limit of processes ends, with all of them."""
    spawn = f"for i in $(seq 40); do sleep {nap} & done; wait"
    turn = await model.ask(f"run: {spawn}", limits=replace(LIMITS, max_processes=30))
    assert turn.exited.reason == "process_limit"
    assert turn.finished.error is AgentErrorCode.PROCESS_LIMIT
    assert turn.exited.survivors == 0


@pytest.mark.long
async def test_burst_of_processes_is_no_reason_to_end(model: Bench) -> None:
    """Many processes for a moment are a build, not a fork bomb."""
    spawn = "for i in $(seq 40); do sleep 0.5 & done; wait; echo over; sleep 3"
    turn = await model.ask(f"run: {spawn}", limits=replace(LIMITS, max_processes=30))
    assert turn.exited.reason == "exited"


async def test_crash_of_the_script(model: Bench, nap: str) -> None:
    """A script killed from outside is a failed execution, and its tools die with it."""
    pids: list[int] = []

    def on_record(record: AgentRecord) -> None:
        if isinstance(record, AgentStarted):
            pids.append(record.pid)
        elif isinstance(record, AgentLine) and "tool_started" in record.text:
            asyncio.get_running_loop().call_later(0.5, os.kill, pids[0], signal.SIGKILL)

    turn = await model.run(model.command(f"run: sleep {nap}"), on_record=on_record)
    assert turn.exited.exit_code == 128 + signal.SIGKILL
    assert turn.finished.error is AgentErrorCode.EXECUTION_FAILED
    assert not processes_with(nap)


async def test_broken_request_is_a_failed_execution(model: Bench) -> None:
    """A bug in the script ends with exit code 1, and its traceback is for the operator."""
    turn = await model.ask("hello", request={"messages": None})
    assert turn.finished.error is AgentErrorCode.EXECUTION_FAILED
    assert "TypeError" in turn.finished.detail


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_environment_made_from_the_lock(
    model: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The recipe's commands give an environment, from hash-pinned packages alone, in which the script answers."""
    root = tmp_path_factory.mktemp("environment")
    paths = AgentPaths(work="/w", home="/h", run="/r", environment=str(root))
    recipe = AnthropicAdapter().environment(paths)
    await asyncio.to_thread(_prepare, recipe)
    model.environment = root
    turn = await model.ask("run: echo from a fresh environment")
    assert "from a fresh environment" in turn.finished.text
    assert str(root) not in sys.prefix
    assert list(root.glob("venv/lib/python3*/site-packages/anthropic/__pycache__/*.pyc"))


def _prepare(recipe: EnvironmentRecipe) -> None:
    for file in recipe.files:
        Path(file.path).write_bytes(file.data)
    for argv in recipe.commands:
        subprocess.run(argv, check=True, timeout=240, capture_output=True)

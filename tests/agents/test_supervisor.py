"""The supervisor and its relay with plain commands: what is recorded, cut, killed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentCommand, AgentFile, AgentPaths
from agent_scripts.inside import follow as follow_script
from agent_scripts.inside.relay import start_relay
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    AgentStarted,
    SupervisionLimits,
    added_path,
    supervise,
)
from sandbox_runtime.task_group import open_task_group
from tests.agents.bench import LIMITS, Bench, Turn, read_log, write_files
from tests.sockets import accepted_side
from tests.waiting import until

_LIMITS = replace(LIMITS, max_line_bytes=1000, max_output_bytes=1_000_000)


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else there is in this machine's /tmp must not count."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


async def run_shell(
    bench: Bench,
    script: str,
    *,
    stdin: bytes | None = None,
    limits: SupervisionLimits = _LIMITS,
) -> Turn:
    paths = bench.paths()
    files = (AgentFile(path=f"{paths.run}/in", data=stdin),) if stdin is not None else ()
    command = AgentCommand(
        argv=("sh", "-c", script),
        env={"MARK": "set"},
        files=files,
        stdin_path=f"{paths.run}/in" if stdin is not None else None,
    )
    return await bench.run(supervise(command, paths=paths, broker=None, limits=limits))


def has_ended(paths: AgentPaths) -> bool:
    return isinstance(([None, *read_log(paths)])[-1], AgentExited)


def lines(turn: Turn, stream: str = "stdout") -> list[str]:
    return [
        record.text
        for record in turn.records
        if isinstance(record, AgentLine) and record.stream == stream
    ]


async def test_records_are_numbered_and_complete(bench: Bench) -> None:
    """Start, every line of both streams, exit: numbered without a gap, environment and stdin as asked for."""
    turn = await run_shell(
        bench, "cat; echo $MARK; echo oops >&2; pwd; exit 5", stdin=b"from stdin\n"
    )
    assert isinstance(turn.records[0], AgentStarted)
    assert [record.seq for record in turn.records] == list(range(1, len(turn.records) + 1))
    assert lines(turn) == ["from stdin", "set", str(bench.work)]
    assert lines(turn, "stderr") == ["oops"]
    assert (turn.exited.exit_code, turn.exited.reason) == (5, "exited")


@pytest.fixture
def added_bin(bench: Bench) -> Path:
    """With two tools."""
    directory = Path(added_path(bench.paths()), "bin")
    directory.mkdir(parents=True)
    for name in ("added-tool", "uname"):
        (directory / name).write_text("#!/bin/sh\necho mine\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.mark.usefixtures("added_bin")
async def test_what_is_added_comes_first_in_the_path(bench: Bench) -> None:
    """A tool of the environment is found by its name, before one of the system; the rest of the PATH stays."""
    turn = await run_shell(bench, "added-tool; uname; echo end | cat")
    assert lines(turn) == ["mine", "mine", "end"]


async def test_lines_are_cut_carried_and_replaced(bench: Bench) -> None:
    """Partial writes join, over-long lines are marked, bad UTF-8 is replaced, a last line needs no newline."""
    script = (
        r"printf a; sleep 0.3; printf 'b\n'; printf '%05000d\n' 0; printf '\377x\n\n'; printf end"
    )
    turn = await run_shell(bench, script)
    records = [record for record in turn.records if isinstance(record, AgentLine)]
    assert [record.text for record in records] == [
        "ab",
        "0" * 1000 + " …[cut]",
        "\ufffdx",
        "",
        "end",
    ]
    assert [record.truncated for record in records] == [False, True, False, False, False]


async def test_missing_executable_is_recorded(bench: Bench) -> None:
    """A command that is not there ends with code 127 and words on stderr."""
    paths = bench.paths()
    command = AgentCommand(argv=("no-such-agent",), env={}, files=())
    turn = await bench.run(supervise(command, paths=paths, broker=None, limits=_LIMITS))
    assert turn.exited.exit_code == 127
    assert "no-such-agent" in turn.stderr


@pytest.mark.alone
async def test_pipe_holders_do_not_delay_the_exit(bench: Bench) -> None:
    """Daemons that keep stdout open, TERM ignored, are killed; the exit record comes within a second."""
    turn = await run_shell(bench, "(trap '' TERM; setsid -f sleep 4242) ; echo done")
    assert turn.duration_s < 1.5
    assert lines(turn) == ["done"]
    assert turn.exited.survivors == 0


@pytest.mark.alone
async def test_agent_that_ignores_term_is_killed(bench: Bench) -> None:
    """SIGTERM, half a second, SIGKILL."""
    paths = bench.paths()
    command = AgentCommand(
        argv=("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"), env={}, files=()
    )
    wrapped = supervise(command, paths=paths, broker=None, limits=_LIMITS)
    turn = await bench.run(wrapped, on_record=bench.stop_when("up"))
    assert turn.exited.exit_code == 128 + signal.SIGKILL
    assert turn.duration_s < 2


@pytest.mark.long
async def test_starting_is_not_idling(bench: Bench) -> None:
    """The idle limit counts from the agent's first line on; one that says nothing at all has until the deadline."""
    limits = replace(_LIMITS, idle_timeout_s=1, timeout_s=20)
    late = await run_shell(bench, "sleep 2.5; echo here; sleep 60", limits=limits)
    assert (lines(late), late.exited.reason) == (["here"], "idle")
    assert late.duration_s < 10
    mute = await run_shell(bench, "sleep 60", limits=replace(limits, timeout_s=3))
    assert mute.exited.reason == "timeout"


async def test_words_said_in_the_grace_are_recorded(bench: Bench) -> None:
    """An agent that answers SIGTERM is heard."""
    paths = bench.paths()
    script = "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done"
    command = AgentCommand(argv=("sh", "-c", script), env={}, files=())
    wrapped = supervise(command, paths=paths, broker=None, limits=_LIMITS)
    turn = await bench.run(wrapped, on_record=bench.stop_when("up"))
    assert lines(turn) == ["up", "bye"]
    assert (turn.exited.exit_code, turn.exited.reason) == (9, "stopped")


async def test_closed_stdout_and_sigterm(bench: Bench) -> None:
    """With its reader gone the supervisor goes on; SIGTERM then stops the agent, and the log has all of it."""
    paths = bench.paths()
    script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"
    command = AgentCommand(argv=("sh", "-c", script), env={}, files=())
    wrapped = supervise(command, paths=paths, broker=None, limits=_LIMITS)
    write_files(wrapped)
    process = await asyncio.create_subprocess_exec(
        *wrapped.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(10):
        await process.stdout.readline()
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # no public way to hang up
        heard = len(read_log(paths))
        await until(lambda: len(read_log(paths)) >= heard + 5)
        process.send_signal(signal.SIGTERM)
        errors = await process.stderr.read()
        assert await process.wait() == 0
    assert errors == b""
    records = read_log(paths)
    assert getattr(records[-1], "reason", None) == "stopped"


async def test_stuck_reader_does_not_hold_the_limits(bench: Bench) -> None:
    """Nobody reads stdout: the agent still runs on and its end is in the log at once."""
    paths = bench.paths()
    command = AgentCommand(argv=("sh", "-c", "seq 50000; echo all written"), env={}, files=())
    wrapped = supervise(command, paths=paths, broker=None, limits=LIMITS)
    write_files(wrapped)
    reader, writer = os.pipe()
    with subprocess.Popen(wrapped.argv, stdout=writer) as process:  # noqa: ASYNC220 - nothing else runs
        async with asyncio.timeout(8):
            while not has_ended(paths):
                await asyncio.sleep(0.05)
        process.kill()
    os.close(reader)
    os.close(writer)
    assert len(read_log(paths)) == 50_003


async def test_the_relays_address_is_put_into_env_and_files_that_name_it(bench: Bench) -> None:
    """Other files with the same text stay as they are."""
    paths = bench.paths()
    told, untold = f"{paths.run}/told", f"{paths.run}/untold"
    command = AgentCommand(
        argv=("sh", "-c", f"cat {told} {untold}; echo $URL"),
        env={"URL": "{relay}/x"},
        files=(
            AgentFile(path=told, data="{relay}/é\n".encode(), names_relay=True),
            AgentFile(path=untold, data=b"{relay}\n"),
        ),
    )
    turn = await bench.run(supervise(command, paths=paths, broker="/no.sock", limits=_LIMITS))
    in_file, in_other, in_env = [
        record.text for record in turn.records if isinstance(record, AgentLine)
    ]
    relay = in_env.removesuffix("/x")
    assert relay.startswith("http://127.0.0.1:")
    assert (in_file, in_other) == (f"{relay}/é", "{relay}")


@pytest.mark.parametrize("clients", [1, 100])
async def test_relay_copies_both_ways_and_half_closes(tmp_path: Path, clients: int) -> None:
    """Clients that close their side first still get the whole answer, also when there are more than slots."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()  # until the client's half is closed
        writer.write(data.upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    sent = os.urandom(100).hex().encode() * 1000
    answers: list[bytes] = []

    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        answers.append(await reader.read())
        writer.close()
        await writer.wait_closed()

    path = tmp_path / "echo.sock"
    server = await asyncio.start_unix_server(shout, str(path))
    async with server, asyncio.timeout(30):
        port = int(start_relay(str(path)).rpartition(":")[2])
        async with open_task_group() as tasks:
            for _ in range(clients):
                tasks.create_task(talk(port))
    assert answers == [sent.upper()] * clients


async def test_relay_has_room_for_others_once_one_is_answered(tmp_path: Path) -> None:
    """Whoever was answered may hold on to the connection, as clients do with one that was refused; who is still written to keeps it."""
    path = tmp_path / "broker.sock"
    held: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no\n")
        if await reader.readline() == b"go on\n":
            writer.write_eof()  # one direction alone
            held.append(writer)
            assert await reader.read() == b"more"
        writer.close()

    async with await asyncio.start_unix_server(answer, str(path)), asyncio.timeout(30):
        port = int(start_relay(str(path), limit=2).rpartition(":")[2])
        reader, going = await asyncio.open_connection("127.0.0.1", port)
        going.write(b"go on\n")
        assert await reader.read() == b"no\n"
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.append(writer)
            writer.write(b"end\n")
            assert await reader.read() == b"no\n"
        going.write(b"more")
        going.write_eof()
        await until(held[0].is_closing)
        going.close()
        places = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in places:  # both at once: its place is free, too
            held.append(writer)
            assert await reader.readline() == b"no\n"
        for reader, writer in places:
            writer.write(b"end\n")
            assert await reader.read() == b""
    for writer in (going, *held):
        writer.close()


async def test_relay_holds_nothing_back(tmp_path: Path) -> None:
    """The pieces of a stream do not wait until the one before is acknowledged."""
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as broker:
        broker.bind(str(path))
        broker.listen()
        port = int(start_relay(str(path)).rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as client,
            broker.accept()[0],  # by then the relay has accepted; it hangs up when the broker does
            accepted_side(client.getsockname()) as accepted,
        ):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_relay_without_a_broker_closes(tmp_path: Path) -> None:
    """A client is hung up on, not left waiting for ever, when the broker is not there."""
    url = start_relay(str(tmp_path / "none.sock"), wait_s=0.5)
    port = int(url.rpartition(":")[2])
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_relay_waits_for_a_broker_that_starts_again(tmp_path: Path) -> None:
    """What a client sent meanwhile is answered when the broker is back."""
    path = tmp_path / "broker.sock"

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    port = int(start_relay(str(path)).rpartition(":")[2])
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"early")
        writer.write_eof()
        await asyncio.sleep(0.7)
        async with await asyncio.start_unix_server(echo, path):
            assert await reader.read() == b"EARLY"
        writer.close()


@pytest.mark.alone
async def test_start_is_fast(bench: Bench) -> None:
    """The supervisor adds well under half a second to an agent."""
    started = time.monotonic()
    await run_shell(bench, "true")
    assert time.monotonic() - started < 1.0


async def test_a_log_is_followed_from_its_first_record_to_its_last(tmp_path: Path) -> None:
    """As the supervisor prints it, while it grows; and not for ever when its writer is gone."""
    log = tmp_path / "events.jsonl"
    records = [
        {"seq": 1, "t": 1.0, "kind": "started", "pid": os.getpid()},
        {"seq": 2, "t": 1.0, "kind": "line", "stream": "stdout", "text": "a", "truncated": False},
        {"seq": 3, "t": 1.0, "kind": "exit", "code": 0, "reason": "exited", "survivors": 0},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    log.write_text(lines[0] + lines[1][:10])
    follow = Path(follow_script.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", follow, log, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert (await process.stdout.readline()).decode() == lines[0]
        with log.open("a") as file:
            file.write(lines[1][10:] + lines[2])
        rest, _ = await process.communicate()
    assert (rest.decode(), process.returncode) == (lines[1] + lines[2], 0)
    log.write_text(json.dumps(records[0] | {"pid": 2**22 + 1}) + "\n")
    async with asyncio.timeout(20):
        abandoned = await asyncio.create_subprocess_exec(sys.executable, "-I", follow, log)
        assert await abandoned.wait() == 1

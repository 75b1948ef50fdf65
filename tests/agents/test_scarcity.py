"""What runs inside a sandbox goes on when descriptors, threads or the disk are used up for a moment."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentCommand
from agent_scripts.inside import follow
from agent_scripts.supervision import AgentExited, AgentLine, events_path, parse_record, supervise
from tests.agents.bench import LIMITS, Bench

_RELAY = """
import resource, socket, sys, threading, time
from agent_scripts.inside.relay import start_relay

def answer(listener):
    while True:
        with listener.accept()[0] as connection:
            connection.recv(100)
            connection.sendall(b"answer")

def ask(client):
    with client:
        try:
            client.sendall(b"question")
            return client.recv(100)
        except OSError:
            return b""

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
threading.Thread(target=answer, args=(listener,), daemon=True).start()
port = int(start_relay(sys.argv[1]).rpartition(":")[2])
client = socket.socket()
client.settimeout(5)
kind = getattr(resource, sys.argv[2])
_, hard = resource.getrlimit(kind)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(kind, (used if sys.argv[2] == "RLIMIT_AS" else client.fileno() + 1, hard))
client.connect(("127.0.0.1", port))
time.sleep(0.3)
resource.setrlimit(kind, (hard, hard))
print(ask(client))
for _ in range(70):  # more than there are slots
    last = ask(socket.create_connection(("127.0.0.1", port), timeout=5))
print(last)
"""

_USAGE = """
import resource, time
from agent_scripts.inside.supervisor import Usage
usage = Usage({"disk_paths": [], "max_disk_bytes": -1, "max_processes": 1000})
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
usage.start()
time.sleep(0.3)
print(repr(usage.excess))
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
time.sleep(1.5)
print(usage.excess)
"""

_RECORDS = """
import resource, sys
from agent_scripts.inside.supervisor import Recorder
recorder = Recorder(sys.argv[1])
recorder.write("line", text="one")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for size in (80, 80, hard):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    recorder.write("line", text="torn")
recorder.write("line", text="whole")
"""


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
        timeout=25,
    )


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_AS"])
def test_a_relay_without_descriptors_or_threads(limit: str, tmp_path: Path) -> None:
    """Whoever asks then is hung up on, or waits; whoever asks later is answered, and no slot is lost."""
    done = _run(_RELAY, str(tmp_path / "broker.sock"), limit)
    crowded, later = done.stdout.split()
    assert crowded in ("b''", "b'answer'")
    assert later == "b'answer'"
    assert done.stderr == ""


def test_usage_is_watched_on_without_descriptors() -> None:
    """A look that cannot be had is no end of looking."""
    done = _run(_USAGE)
    assert done.stdout.split() == ["''", "disk_limit"]
    assert done.stderr == ""


def test_a_log_on_a_full_disk_goes_on_with_a_new_line(tmp_path: Path) -> None:
    """What was torn costs no record but itself."""
    log = tmp_path / "events.jsonl"
    _run(_RECORDS, str(log))
    first, torn, *others = log.read_text().splitlines()
    assert json.loads(first)["text"] == "one"
    assert len(first) + 1 + len(torn) == 80
    assert [json.loads(line)["text"] for line in others] == ["torn", "whole"]


def test_a_torn_record_is_followed_past(tmp_path: Path) -> None:
    """Also one that the next record stands behind on the same line, and what is no record at all."""
    end = {"seq": 4, "t": 1.0, "kind": "exit", "code": 0, "reason": "exited", "survivors": 0}
    log = tmp_path / "events.jsonl"
    log.write_text(
        '{"seq": 1, "t": 1.0, "kind": "started", "pid": 1}\n'
        '{"seq": 2, "t": 1.0, "kind": "li{"seq": 3, "t": 1.0, "kind": "line"}\n'
        f"\n[]\n{'[' * 100_000}\n{json.dumps(end)}\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", str(follow.__file__), str(log)],
        capture_output=True,
        text=True,
        check=False,
        timeout=25,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(parse_record(done.stdout.splitlines()[-1]), AgentExited)


async def test_a_flood_of_empty_lines_is_bounded(bench: Bench) -> None:
    """What their records add counts for the limit of output: the log is about as large as that."""
    paths = bench.paths()
    command = AgentCommand(argv=("sh", "-c", "yes ''"), env={}, files=())
    limits = replace(LIMITS, max_output_bytes=1_000_000)
    turn = await bench.run(supervise(command, paths=paths, broker=None, limits=limits))
    assert turn.exited.reason == "output_limit"
    assert [record for record in turn.records if isinstance(record, AgentLine)]
    assert _size(events_path(paths)) < 1_001_000


def _size(path: str) -> int:
    return Path(path).stat().st_size

"""The script that prints a supervisor's log for a host that comes back."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from agent_scripts.adapter import AgentPaths
from agent_scripts.supervision import AgentExited, AgentLine, follow_log, is_caught_up, parse_record

SCRIPT = Path(__file__).parents[3] / "agent_scripts" / "inside" / "follow.py"
PID = 1
"""Lives as long as the test."""


def _write(path: Path, count: int, *, width: int = 10, is_over: bool = True) -> None:
    records: list[dict[str, object]] = [{"seq": 1, "t": 1.0, "kind": "started", "pid": PID}]
    for seq in range(2, count + 1):
        line = {"stream": "stdout", "text": "x" * width, "truncated": False}
        records.append({"seq": seq, "t": 1.0, "kind": "line", **line})
    if is_over:
        exited = {"code": 0, "reason": "exited", "survivors": 0}
        records.append({"seq": count + 1, "t": 1.0, "kind": "exit", **exited})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _follow(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", str(SCRIPT), str(path), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


def _numbers(output: str) -> list[int]:
    found = (parse_record(line) for line in output.splitlines())
    return [record.seq for record in found if record is not None]


def test_a_short_log_is_printed_whole(tmp_path: Path) -> None:
    """Whatever was known before: whoever reads it needs its beginning."""
    path = tmp_path / "events.jsonl"
    _write(path, 5)
    for arguments in ((), ("3", "100000"), ("0", "0")):
        done = _follow(path, *arguments)
        assert (done.returncode, _numbers(done.stdout)) == (0, [1, 2, 3, 4, 5, 6])


def test_of_a_long_log_only_what_is_new(tmp_path: Path) -> None:
    """From the record after the one that was known; the last one says how it ended."""
    path = tmp_path / "events.jsonl"
    _write(path, 300, width=1000)
    done = _follow(path, "297", "100000")
    assert (done.returncode, _numbers(done.stdout)) == (0, [298, 299, 300, 301])
    records = [parse_record(line) for line in done.stdout.splitlines()]
    assert isinstance(records[0], AgentLine)
    assert isinstance(records[-1], AgentExited)


def test_a_torn_record_is_no_obstacle(tmp_path: Path) -> None:
    """A full disk cuts one short: what follows it is printed."""
    path = tmp_path / "events.jsonl"
    _write(path, 300, width=1000)
    lines = path.read_text().splitlines(keepends=True)
    lines[100] = '{"seq": 101, "t"\n'
    path.write_text("".join(lines))
    assert _numbers(_follow(path, "298", "100000").stdout) == [299, 300, 301]


def test_it_says_when_it_has_caught_up(tmp_path: Path) -> None:
    """Once, after what was there; what comes later follows."""
    path = tmp_path / "events.jsonl"
    _write(path, 3, is_over=False)

    def end() -> None:
        time.sleep(0.5)
        with path.open("a") as file:
            exited = {"code": 0, "reason": "exited", "survivors": 0}
            file.write(json.dumps({"seq": 4, "t": 1.0, "kind": "exit", **exited}) + "\n")

    ending = threading.Thread(target=end)
    ending.start()
    lines = _follow(path, "2", "100000").stdout.splitlines()
    ending.join()
    assert [is_caught_up(line) for line in lines] == [False, False, False, True, False]


def test_it_waits_for_a_log_that_is_just_being_made(tmp_path: Path) -> None:
    """The supervisor may have been started a moment ago."""
    path = tmp_path / "events.jsonl"
    making = threading.Timer(0.5, lambda: _write(path, 2))
    making.start()
    assert _numbers(_follow(path, "0", "100000").stdout) == [1, 2, 3]
    making.join()


def test_the_command_needs_no_file_of_its_own_again() -> None:
    """It is what the supervisor brought: a later slice writes nothing into the sandbox to read on."""
    paths = AgentPaths(work="/work", home="/home", run="/run/1", environment="/env")
    command = follow_log(paths, after_seq=7)
    assert command.argv[2] == "/run/1/agent_scripts/inside/follow.py"
    assert command.argv[4] == "7"

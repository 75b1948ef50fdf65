"""The supervisor's command line and its records, as the host sees them."""

import ast
import json
import sys
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from agent_scripts.adapter import AgentCommand, AgentFile, AgentPaths
from agent_scripts.inside.supervisor import LineSplitter
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    AgentStarted,
    SupervisionLimits,
    events_path,
    parse_record,
    stop_path,
    supervise,
    supervise_later,
)

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r1", environment="/env")
_LIMITS = SupervisionLimits(
    timeout_s=600,
    idle_timeout_s=180,
    max_output_bytes=1000,
    max_line_bytes=100,
    max_disk_bytes=2**30,
    max_processes=512,
)
_COMMAND = AgentCommand(
    argv=("agent", "--flag"),
    env={"URL": "{relay}/v1", "KEY": "token"},
    files=(AgentFile(path="/orion/r1/in", data=b"x"),),
    stdin_path="/orion/r1/in",
)


def test_supervised_command_carries_all_in_its_configuration() -> None:
    """Argv, environment, stdin and limits of the agent travel in one file; nothing of them is on the command line."""
    command = supervise(_COMMAND, paths=_PATHS, broker="/broker/b.sock", limits=_LIMITS)
    assert command.argv == (
        "python3",
        "-I",
        "/orion/r1/agent_scripts/inside/supervisor.py",
        "/orion/r1/supervisor.json",
    )
    assert command.env == {}
    assert command.stdin_path is None
    files = {file.path: file.data for file in command.files}
    assert files["/orion/r1/in"] == b"x"
    assert json.loads(files["/orion/r1/supervisor.json"]) == {
        "argv": ["agent", "--flag"],
        "env": {"URL": "{relay}/v1", "KEY": "token"},
        "naming_relay": [],
        "cwd": "/work",
        "bin_path": "/env/added/bin",
        "stdin_path": "/orion/r1/in",
        "broker": "/broker/b.sock",
        "events_path": events_path(_PATHS),
        "stop_path": stop_path(_PATHS),
        "timeout_s": 600,
        "idle_timeout_s": 180,
        "max_output_bytes": 1000,
        "max_line_bytes": 100,
        "disk_paths": ["/work", "/home/agent"],
        "max_disk_bytes": 2**30,
        "max_processes": 512,
    }


def test_supervised_command_brings_every_file_it_imports() -> None:
    """The supervisor and the modules beside it are among the files, in their package layout."""
    command = supervise(_COMMAND, paths=_PATHS, broker="/s", limits=_LIMITS)
    sources = {PurePosixPath(file.path).name: file.data for file in command.files}
    assert b"def main()" in sources["supervisor.py"]
    imported = {"process_tree.py", "relay.py", "preload.py"}
    assert imported <= set(sources)


@pytest.mark.parametrize(
    "name",
    ["supervisor.py", "relay.py", "process_tree.py", "preload.py"],
)
def test_supervisor_files_run_on_old_interpreters(name: str) -> None:
    """Whatever `python3` a sandbox has from 3.9 on can read them, and they import nothing that is not its own."""
    command = supervise(_COMMAND, paths=_PATHS, broker="/s", limits=_LIMITS)
    (source,) = (file.data for file in command.files if PurePosixPath(file.path).name == name)
    tree = ast.parse(source, feature_version=(3, 9))
    modules = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert modules <= sys.stdlib_module_names | {"agent_scripts"}


def test_one_that_waits_is_given_the_rest() -> None:
    """Scripts and plan come before; the task is the command's own files and, last, the configuration; nothing else is new."""
    paths = replace(_PATHS, waiting="/orion/waiting")
    ahead = supervise_later(
        AgentCommand(argv=("agent",), env={"LANG": "C"}, files=()), paths=paths, max_wait_s=60
    )
    assert ahead.argv[2:] == (
        "/orion/waiting/agent_scripts/inside/supervisor.py",
        "/orion/waiting/supervisor.json",
        "/orion/waiting/plan.json",
    )
    assert json.loads(ahead.files[-1].data) == {
        "argv": ["agent"],
        "env": {"LANG": "C"},
        "cwd": "/work",
        "max_wait_s": 60,
    }
    task = supervise(_COMMAND, paths=paths, broker="/s", limits=_LIMITS)
    assert [file.path for file in task.files] == ["/orion/r1/in", "/orion/waiting/supervisor.json"]
    whole = supervise(_COMMAND, paths=_PATHS, broker="/s", limits=_LIMITS)
    assert task.files[-1].data == whole.files[-1].data


def test_relay_without_a_socket_is_refused() -> None:
    """A command that wants the relay cannot be supervised where no relay can be."""
    with pytest.raises(ValueError, match="no broker socket"):
        supervise(_COMMAND, paths=_PATHS, broker=None, limits=_LIMITS)


def test_records_are_parsed() -> None:
    """Each kind of record has its type."""
    assert parse_record('{"seq":1,"t":5,"kind":"started","pid":7}') == AgentStarted(
        seq=1, at_unix_s=5, pid=7
    )
    line = '{"seq":2,"t":5.5,"kind":"line","stream":"stderr","text":"a","truncated":true}'
    assert parse_record(line) == AgentLine(
        seq=2, at_unix_s=5.5, stream="stderr", text="a", truncated=True
    )
    end = '{"seq":3,"t":6,"kind":"exit","code":143,"reason":"stopped","survivors":0}'
    assert parse_record(end) == AgentExited(
        seq=3, at_unix_s=6, exit_code=143, reason="stopped", survivors=0
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "words",
        "[]",
        "3",
        "null",
        '{"seq":2,"t":5.5,"kind":"line","stream":"std',
        '{"seq":1,"t":5,"kind":"other"}',
        '{"seq":3,"t":6,"kind":"exit","code":1,"reason":"boredom","survivors":0}',
        '{"seq":"1","t":5,"kind":"started","pid":7}',
        "[" * 200_000,
        '{"a":' * 200_000,
    ],
)
def test_anything_else_is_no_record(line: str) -> None:
    """Half lines of a crash, foreign output and unknown words give None."""
    assert parse_record(line) is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_how_they_arrive(size: int) -> None:
    """Any cut of the stream into chunks gives the same lines, also inside a UTF-8 character."""
    data = "äöü\n\nlong line over the limit\nlast".encode()
    splitter = LineSplitter(12)
    lines = []
    for start in range(0, len(data), size):
        lines += splitter.feed(data[start : start + size])
    lines += splitter.end()
    assert lines == [("äöü", False), ("", False), ("long line ov …[cut]", True), ("last", False)]


@pytest.mark.parametrize("time", ["1e300", "NaN", "-1", "Infinity", "-Infinity", "4e9"])
def test_a_forged_time_is_no_record(time: str) -> None:
    """What a process inside wrote to the supervisor's stdout cannot carry a time that no clock can show."""
    line = f'{{"seq": 1, "t": {time}, "kind": "line", "stream": "stdout", "text": "x", "truncated": false}}'
    assert parse_record(line) is None


@pytest.mark.parametrize("seq", ["0", "-1", "2147483648", "1" + "0" * 30, "1e999"])
def test_a_forged_number_is_no_record(seq: str) -> None:
    """The run record could not hold it."""
    line = f'{{"seq": {seq}, "t": 1, "kind": "started", "pid": 7}}'
    assert parse_record(line) is None

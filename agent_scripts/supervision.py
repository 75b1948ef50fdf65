"""Wraps an agent's command in the supervisor, and reads the supervisor's records back. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from agent_scripts.adapter import AgentCommand, AgentFile, AgentPaths, ExitReason

_LATEST_UNIX_S = 4e9
"""In the year 2096."""
_MAX_SEQ = 2**31 - 1
"""What the run record can hold; more lines than any log has."""
_SUPERVISOR_FILES = (
    *("supervisor.py", "records.py", "relay.py", "process_tree.py", "usage.py"),
    *("standby.py", "waiting.py"),
)
_CONFIG, _PLAN = "supervisor.json", "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionLimits:
    """When the supervisor ends the agent by itself."""

    timeout_s: float
    idle_timeout_s: float
    """Longest time without a complete line."""
    max_output_bytes: int
    """Of stdout and stderr together, with what their records add: some 100 bytes a line, and what JSON escapes."""
    max_line_bytes: int
    max_disk_bytes: int
    """Of work directory, home and temporary directory together."""
    max_processes: int
    """What the sandbox refuses to exceed; an agent that stays close to it for some seconds is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted:
    seq: int
    at_unix_s: float
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    """One line without its newline. A truncated one ends in a mark and is no valid JSON any more."""

    seq: int
    at_unix_s: float
    stream: Literal["stdout", "stderr"]
    text: str = field(repr=False)
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExited:
    """The last record of every supervised run."""

    seq: int
    at_unix_s: float
    exit_code: int
    reason: ExitReason
    survivors: int
    """Processes of the agent's tree that a SIGKILL did not end within a second; 0 is proof that the tree is dead."""


AgentRecord = AgentStarted | AgentLine | AgentExited


def events_path(paths: AgentPaths) -> str:
    """The log of all records, one a line, from the first: to be tailed, and re-read after a restart of the host."""
    return f"{paths.run}/events.jsonl"


def stop_path(paths: AgentPaths) -> str:
    """Create this file to stop the agent, also before it has started; within 0.2 s it gets SIGTERM, 0.5 s later SIGKILL."""
    return f"{paths.run}/stop"


def added_path(paths: AgentPaths) -> str:
    """What the operator adds to the environment; its `bin` comes first in the agent's PATH."""
    return f"{paths.environment}/added"


def inside_path(paths: AgentPaths, name: str) -> str:
    """Where a file of `agent_scripts/inside` lies in the sandbox: its package layout is kept, so that it can import."""
    return f"{paths.waiting or paths.run}/agent_scripts/inside/{name}"


def inside_files(paths: AgentPaths, names: Sequence[str]) -> tuple[AgentFile, ...]:
    """Files of `agent_scripts/inside` as files to write into the sandbox."""
    return tuple(
        AgentFile(path=inside_path(paths, name), data=_inside_source(name)) for name in names
    )


def supervised(
    command: AgentCommand,
    *,
    paths: AgentPaths,
    broker: str | None,
    limits: SupervisionLimits,
    cwd: str = "",
) -> AgentCommand:
    """The same command under the supervisor. `paths.run` belongs to this one start: give every attempt its own.

    The result needs no environment and no stdin: both are in the supervisor's configuration, which the supervisor
    deletes as soon as it has read it. `cwd`: where the agent begins, if not in the work directory. With `paths.waiting` it runs already: writing the files starts the agent.

    Raises:
        ValueError: the command wants `{relay}`, but there is no socket to lead it to.
    """
    naming = [file.path for file in command.files if file.names_relay]
    if broker is None and (naming or any("{relay}" in value for value in command.env.values())):
        raise ValueError(
            "the agent's environment or files name {relay}, but the sandbox has no broker socket"
        )
    config_path = f"{paths.waiting or paths.run}/{_CONFIG}"
    config = {
        "argv": list(command.argv),
        "env": dict(command.env),
        "naming_relay": naming,
        "cwd": cwd or paths.work,
        "stdin_path": command.stdin_path,
        "bin_path": f"{added_path(paths)}/bin",
        "broker": broker,
        "events_path": events_path(paths),
        "stop_path": stop_path(paths),
        "disk_paths": [paths.work, paths.home],
        **asdict(limits),
    }
    files = (*command.files, *inside_files(paths, _SUPERVISOR_FILES))
    if paths.waiting:
        files = tuple(file for file in files if not file.path.startswith(f"{paths.waiting}/"))
    return AgentCommand(
        argv=("python3", "-I", inside_path(paths, "supervisor.py"), config_path),
        env={},
        # Last: whoever waits for it finds everything else there.
        files=(*files, AgentFile(path=config_path, data=json.dumps(config).encode())),
    )


def waiting(standby: AgentCommand | None, *, paths: AgentPaths, max_wait_s: float) -> AgentCommand:
    """A supervisor that waits in `paths.waiting` for what `supervised` makes with the same paths, its agent loaded.

    It ends by itself after `max_wait_s`, or when the agent ends before it has its task.
    """
    plan_path = f"{paths.waiting}/{_PLAN}"
    plan = {
        "argv": list(standby.argv) if standby else [],
        "env": dict(standby.env) if standby else {},
        "cwd": paths.work,
        "max_wait_s": max_wait_s,
    }
    script, config_path = inside_path(paths, "supervisor.py"), f"{paths.waiting}/{_CONFIG}"
    return AgentCommand(
        argv=("python3", "-I", script, config_path, plan_path),
        env={},
        files=(
            *(standby.files if standby else ()),
            *inside_files(paths, _SUPERVISOR_FILES),
            AgentFile(path=plan_path, data=json.dumps(plan).encode()),
        ),
    )


def is_waiting(line: str) -> bool:
    """Whether this line of its stdout says that it waits, with all loaded."""
    try:
        match json.loads(line):
            case {"kind": "waiting"}:
                return True
            case _:
                return False
    except ValueError:
        return False


def following(paths: AgentPaths) -> AgentCommand:
    """Prints the records of a supervised run again, then goes on until its exit record: after a restart of the host."""
    script = inside_path(paths, "follow.py")
    return AgentCommand(
        argv=("python3", "-I", script, events_path(paths)),
        env={},
        files=inside_files(paths, ("follow.py",)),
    )


def parse_record(line: str) -> AgentRecord | None:
    """The record in one line of the supervisor's stdout or log; None if there is none, as in a line cut by a crash.

    A process in the sandbox may write to the supervisor's stdout: what cannot be a time or a number gives None too.
    """
    try:
        match json.loads(line):
            case {"seq": int(seq), "t": float() | int() as at} if not (
                0 < seq <= _MAX_SEQ and 0 <= at < _LATEST_UNIX_S
            ):
                return None
            case {"kind": "started", "seq": int(seq), "t": float() | int() as at, "pid": int(pid)}:
                return AgentStarted(seq=seq, at_unix_s=at, pid=pid)
            case {
                "kind": "line",
                "seq": int(seq),
                "t": float() | int() as at,
                "stream": "stdout" | "stderr" as stream,
                "text": str(text),
                "truncated": bool(cut),
            }:
                return AgentLine(seq=seq, at_unix_s=at, stream=stream, text=text, truncated=cut)
            case {
                "kind": "exit",
                "seq": int(seq),
                "t": float() | int() as at,
                "code": int(code),
                "reason": "exited"
                | "timeout"
                | "idle"
                | "output_limit"
                | "disk_limit"
                | "process_limit"
                | "stopped" as reason,
                "survivors": int(left),
            }:
                return AgentExited(
                    seq=seq, at_unix_s=at, exit_code=code, reason=reason, survivors=left
                )
            case _:
                return None
    except (ValueError, RecursionError):
        return None


@cache
def _inside_source(name: str) -> bytes:
    return (Path(__file__).parent / "inside" / name).read_bytes()

"""Wraps an agent's command in the supervisor, and reads the supervisor's records back. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from agent_scripts.adapter import AgentCommand, AgentFile, AgentPaths, AgentTurn, ExitReason

_LATEST_UNIX_S = 4e9
"""In the year 2096."""
_MAX_SEQ = 2**31 - 1
"""What the run record can hold; more lines than any log has."""
_SUPERVISOR_FILES = (
    *("inside/supervisor.py", "inside/relay.py", "inside/process_tree.py", "inside/preload.py"),
    "inside/follow.py",
)
FED_BYTES = 2 * 1024 * 1024
"""A log of this length is read whole by each host that comes back; of a longer one only what is new, and all of it at the end."""
_CONFIG, _PLAN = "supervisor.json", "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionLimits:
    """When the supervisor ends the agent by itself."""

    timeout_s: float
    idle_timeout_s: float
    """Longest time without a complete line, counted from the first one on; until then `timeout_s` alone holds."""
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
    """Returns the path of the log of all records, one a line: to be tailed, and re-read after a restart of the host."""
    return f"{paths.run}/events.jsonl"


def stop_path(paths: AgentPaths) -> str:
    """Returns the file whose creation stops the agent, also before it started: SIGTERM within 0.2 s, SIGKILL 0.5 s later."""
    return f"{paths.run}/stop"


def told_path(paths: AgentPaths) -> str:
    """Returns the directory of what an agent is told while it works: `ID.json` each, an object with its `text`."""
    return f"{paths.run}/told"


def added_path(paths: AgentPaths) -> str:
    """Returns what the operator adds to the environment; its `bin` comes first in the agent's PATH."""
    return f"{paths.environment}/added"


def script_path(paths: AgentPaths, name: str) -> str:
    """Returns where a script of this package lies in the sandbox: the layout is kept, so that it can import."""
    return f"{paths.waiting or paths.run}/agent_scripts/{name}"


def script_files(paths: AgentPaths, names: Sequence[str]) -> tuple[AgentFile, ...]:
    """Returns scripts of this package, by their paths below it, as files to write into the sandbox."""
    return tuple(AgentFile(path=script_path(paths, name), data=_source(name)) for name in names)


def supervise(
    command: AgentCommand,
    *,
    paths: AgentPaths,
    broker: str | None,
    limits: SupervisionLimits,
    cwd: str = "",
) -> AgentCommand:
    """Returns the command under the supervisor. `paths.run` belongs to this one start: give every attempt its own.

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
    files = (*command.files, *script_files(paths, _SUPERVISOR_FILES))
    if paths.waiting:
        files = tuple(file for file in files if not file.path.startswith(f"{paths.waiting}/"))
    return AgentCommand(
        argv=("python3", "-I", script_path(paths, "inside/supervisor.py"), config_path),
        env={},
        # Last: whoever waits for it finds everything else there.
        files=(*files, AgentFile(path=config_path, data=json.dumps(config).encode())),
    )


def supervise_later(
    preloaded: AgentCommand | None, *, paths: AgentPaths, max_wait_s: float
) -> AgentCommand:
    """Returns a supervisor that waits in `paths.waiting` for what `supervise` makes with the same paths, its agent loaded.

    It ends by itself after `max_wait_s`, or when the agent ends before it has its task.
    """
    plan_path = f"{paths.waiting}/{_PLAN}"
    plan = {
        "argv": list(preloaded.argv) if preloaded else [],
        "env": dict(preloaded.env) if preloaded else {},
        "cwd": paths.work,
        "max_wait_s": max_wait_s,
    }
    script, config_path = script_path(paths, "inside/supervisor.py"), f"{paths.waiting}/{_CONFIG}"
    return AgentCommand(
        argv=("python3", "-I", script, config_path, plan_path),
        env={},
        files=(
            *(preloaded.files if preloaded else ()),
            *script_files(paths, _SUPERVISOR_FILES),
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


def follow_log(paths: AgentPaths, *, after_seq: int = 0) -> AgentCommand:
    """Returns what prints the records of a supervised run again and goes on to its exit: for a host that came back.

    After what is there at the beginning it says so (`is_caught_up`). Of a log longer than `FED_BYTES` it prints only records
    with numbers above `after_seq`.
    """
    script = script_path(paths, "inside/follow.py")
    return AgentCommand(
        argv=("python3", "-I", script, events_path(paths), str(after_seq), str(FED_BYTES)),
        env={},
        files=script_files(paths, ("inside/follow.py",)),
    )


def is_caught_up(line: str) -> bool:
    """Whether this line of `follow_log` says that all has been printed which was there when it began."""
    return line == '{"kind": "caught_up"}'


def parse_record(line: str) -> AgentRecord | None:
    """Returns the record in one line of the supervisor's stdout or log; None if there is none, as in a line cut by a crash.

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
def _source(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


_FILES = ("inside/interactive.py", "inside/relay.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveCommand:
    """Says how to start an agent that a person talks to in a terminal; stdin is the person's."""

    command: AgentCommand
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Members that JSON files of the agent must have, by the files' paths: what it would otherwise ask a newcomer."""


@runtime_checkable
class InteractiveAdapter(Protocol):
    """An agent that has such a form. Pure."""

    def interactive(self, turn: AgentTurn) -> InteractiveCommand:
        """Returns its own command line, without a message; of the turn, `messages` and `max_turns` do not count.

        Raises:
            ValueError: the session id is none that the agent could have.
        """
        ...


def at_terminal(interactive: InteractiveCommand, turn: AgentTurn, *, broker: str) -> AgentCommand:
    """Returns the command with the relay beside it, to be run on a terminal; `turn.paths.run` belongs to this one start."""
    command, paths = interactive.command, turn.paths
    config_path = f"{paths.run}/interactive.json"
    config = {
        "argv": list(command.argv),
        "env": dict(command.env),
        "cwd": paths.work,
        "broker": broker,
        "settings": interactive.settings,
    }
    return AgentCommand(
        argv=("python3", "-I", script_path(paths, "inside/interactive.py"), config_path),
        env={},
        files=(
            *command.files,
            *script_files(paths, _FILES),
            AgentFile(path=config_path, data=json.dumps(config).encode()),
        ),
    )

"""Scripts that run inside sandboxes, as their source, what runners are told, and commands that a runner gives a terminal."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Protocol, runtime_checkable

from typing_extensions import override

from sandbox_runtime.command import KILLED, Command, CommandSandbox, StartedProcess
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Terminal
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, TerminalSize

_FUTURE = "from __future__ import annotations\n"
_OURS = re.compile(r"^from (sandbox_runtime\.[\w.]+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)


def script_source(module: str) -> str:
    """Returns one script of a module and all of ours that it imports, in which none imports another any more.

    What they define must have names of its own in each.
    """
    parts: dict[str, str] = {}
    _collect(module, parts)
    return _FUTURE + "".join(parts.values())


def _collect(module: str, parts: dict[str, str]) -> None:
    folder, _, name = module.rpartition(".")
    text = (files(folder) / f"{name}.py").read_text("utf-8")
    for other in _OURS.findall(text):
        if other not in parts:
            _collect(other, parts)
    parts[module] = _OURS.sub("", text).replace(_FUTURE, "")


RUN_SOURCE = script_source("sandbox_runtime.providers.inside.run")
"""Runs one command. Its argument names the framing of output: `inherited`, `pipes` or `lines` (inside/output.py)."""
KILL_SOURCE = script_source("sandbox_runtime.providers.inside.kill")
"""Kills what a user runs, or what of it carries a mark."""


def encode_command(
    command: Command,
    *,
    work: str,
    limits: Mapping[str, int],
    user: int | None = None,
    window: int = 0,
    keep: int | None = None,
    limit_s: float | None = None,
    beat_s: float | None = None,
) -> bytes:
    """Returns the request for a command, as inside/command.py reads it and says what the options mean.

    It goes through stdin: neither lists of processes nor a service's records show it.
    """
    options: dict[str, object | None] = {
        **limits,
        "user": user,
        "window": window,
        "keep": keep,
        "limit_s": limit_s,
        "beat_s": beat_s,
        "terminal": None if command.terminal is None else digits(command.terminal),
        "bound": command.bound or None,
        "merged": command.merge_output or None,
    }
    fields = [
        " ".join(f"{name}={value}" for name, value in options.items() if value is not None),
        command.directory(work),
        str(len(command.argv)),
        *command.argv,
        *(f"{name}={value}" for name, value in command.env.items()),
    ]
    body = "\0".join(fields).encode("utf-8", "surrogateescape")
    return b"".join((b"%012d%012d" % (len(body), len(command.stdin)), body, command.stdin))


def digits(size: TerminalSize) -> str:
    """Returns a size as inside/output.py reads it."""
    return f"{min(size.rows, 9999):04}{min(size.columns, 9999):04}"


_PIECE_BYTES = 4096


@runtime_checkable
class OrderedProcess(StartedProcess, Protocol):
    """A process whose runner is inside/run.py and can be told more while it runs."""

    async def order(self, data: bytes) -> None:
        """Tells the runner something; lost at its end."""
        ...


class ProcessTerminal(Terminal):
    """The terminal of a process that was started with one."""

    def __init__(self, process: OrderedProcess) -> None:
        self._process = process
        self._events: AsyncIterator[ExecEvent] = process.events()
        self._exit_code: int | None = None
        self._failure: SandboxError | None = None
        self._closed = False

    @override
    async def read(self) -> bytes:
        try:
            match await anext(self._events):
                case ExecOutput(data=data):
                    return data
                case ExecExited(exit_code=code):
                    self._exit_code = code
        except StopAsyncIteration:
            pass
        except SandboxError as exc:  # its end, which `close` tells
            self._failure = exc
        return b""

    @override
    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            await self._process.order(b"I%04d" % len(piece) + piece)

    @override
    async def resize(self, size: TerminalSize) -> None:
        await self._process.order(b"R" + digits(size).encode())

    @override
    async def close(self) -> int:
        if not self._closed:
            self._closed = True
            with suppress(SandboxError):
                await self._process.kill()
            if self._failure is not None:
                raise self._failure
        return KILLED if self._exit_code is None else self._exit_code


class RunnerSandbox(CommandSandbox):
    """A sandbox whose commands have inside/run.py as their runner, which can give them a terminal."""

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        # Whatever terminal a person has, the commonest one is named unless `env` does.
        whole = {"TERM": "xterm-256color", **self._env, **(env or {})}
        process = await self._run(Command(argv=argv, env=whole, bound=True, terminal=size))
        if not isinstance(process, OrderedProcess):  # it was destroyed while it started
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, "the sandbox is destroyed")
        return ProcessTerminal(process)

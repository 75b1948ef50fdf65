"""What a fake is told to answer, and what it was asked."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import override

from sandbox_runtime.processes import KILLED
from sandbox_runtime.provider import Process
from sandbox_runtime.types import ExecEvent, ExecExited, ExecResult

"""Exit code after SIGKILL."""

Operation = Literal[
    "probe",
    "ensure_ready",
    "create",
    "exec",
    "spawn",
    "write_file",
    "write_files",
    "read_file",
    "snapshot",
    "destroy",
    "find_snapshot",
    "extend",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """One command as the fake received it."""

    operation: Literal["exec", "spawn"]
    argv: tuple[str, ...]
    cwd: str | None
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(repr=False)


Match = Sequence[str] | Callable[[FakeCall], bool]
"""Which commands a script answers: those whose argv begins so, or those the function likes."""
Stream = Callable[[FakeCall], AsyncIterator[ExecEvent]]
Reply = ExecResult | Callable[[FakeCall], ExecResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One scripted answer."""

    match: Match
    reply: Reply | None = None
    stream: Stream | None = None

    def answers(self, call: FakeCall) -> bool:
        if callable(self.match):
            return self.match(call)
        return call.argv[: len(self.match)] == tuple(self.match)

    def result(self, call: FakeCall) -> ExecResult | None:
        return self.reply(call) if callable(self.reply) else self.reply


class ScriptedProcess(Process):
    """A spawned process whose events a script yields; killing it ends them with exit code 137."""

    def __init__(self, events: AsyncIterator[ExecEvent]) -> None:
        self._events = events
        self._killed = False

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        async for event in self._events:
            if self._killed:
                break
            yield event
            if isinstance(event, ExecExited):
                return
        yield ExecExited(exit_code=KILLED)

    @override
    async def kill(self) -> None:
        self._killed = True

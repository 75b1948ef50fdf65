"""Processes that need no provider: one whose output is known beforehand."""

from collections.abc import AsyncIterator, Sequence

from typing_extensions import override

from sandbox_runtime.provider import Process
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, ExecResult, OutputStream

NOT_EXECUTABLE = 126
"""Exit code of a shell for a command that exists and cannot be run. Source: POSIX, Shell Command Language, 2.8.2."""


class EndedProcess(Process):
    """A command that is over: it could not be started, or its output was scripted."""

    def __init__(self, events: Sequence[ExecEvent]) -> None:
        self._events = events

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        for event in self._events:
            yield event

    @override
    async def kill(self) -> None:
        pass


def result_events(result: ExecResult) -> tuple[ExecEvent, ...]:
    """A result as the events a spawned process would have given."""
    streams = ((OutputStream.STDOUT, result.stdout), (OutputStream.STDERR, result.stderr))
    outputs = tuple(ExecOutput(stream=stream, data=data) for stream, data in streams if data)
    return (*outputs, ExecExited(exit_code=result.exit_code))

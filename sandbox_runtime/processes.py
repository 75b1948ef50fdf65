"""What providers share about processes: checks, results, and one whose output is known beforehand."""

from collections.abc import AsyncIterator, Mapping, Sequence

from typing_extensions import override

from sandbox_runtime.errors import SandboxError
from sandbox_runtime.output import BoundedBuffer
from sandbox_runtime.provider import Process
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, ExecResult, OutputStream

NOT_EXECUTABLE = 126
"""Exit code of a shell for a command that exists and cannot be run. Source: POSIX, Shell Command Language, 2.8.2."""
KILLED = 128 + 9
"""Of one that died by SIGKILL."""
START_ERROR_BYTES = 2000


class EndedProcess(Process):
    """A command that is over: it could not be started, or its output was scripted."""

    def __init__(self, events: Sequence[ExecEvent]) -> None:
        self._events = events

    @property
    def ended(self) -> bool:
        return True

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


def validate_command(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> None:
    """Raises: ValueError: what no system could start."""
    if not argv:
        raise ValueError("argv must not be empty")
    for text in (*argv, *env, *env.values(), cwd or ""):
        if "\0" in text:
            raise ValueError("NUL in a command, its environment or its directory")
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a name of an environment variable: {name!r}")


async def collect_result(process: Process, *, max_output_bytes: int) -> ExecResult:
    """Read a process to its end."""
    buffers = {stream: BoundedBuffer(max_output_bytes) for stream in OutputStream}
    exit_code = -1
    try:
        async for event in process.events():
            match event:
                case ExecOutput():
                    buffers[event.stream].feed(event.data)
                case ExecExited():
                    exit_code = event.exit_code
    except SandboxError as exc:
        said = buffers[OutputStream.STDERR].value() + buffers[OutputStream.STDOUT].value()
        reason = said.decode("utf-8", "replace").strip()[:START_ERROR_BYTES]
        raise SandboxError(exc.code, f"{exc}: {reason}") from exc
    stdout, stderr = buffers[OutputStream.STDOUT], buffers[OutputStream.STDERR]
    return ExecResult(
        exit_code=exit_code,
        stdout=stdout.value(),
        stderr=stderr.value(),
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
    )

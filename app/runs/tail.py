"""Follows a supervised agent: its records become progress, trace and outcome; a stop or the deadline ends it.

Where the connection to its output breaks while its sandbox lives on, the rest is read from the supervisor's log.
"""

import asyncio
import codecs
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from agent_scripts.adapter import AgentCommand, AgentExit, AgentPaths, EventParser, ExitReason
from agent_scripts.events import AgentEvent, ToolFinished, ToolStarted, TurnFinished
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    AgentStarted,
    following,
    parse_record,
    stop_path,
)
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.record_lines import RecordLines
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import ExecExited, ExecOutput, OutputStream

STOP_WRITE_TIMEOUT_S = 0.5
STOP_GRACE_S = 1.0
"""The supervisor sees the stop file within 0.1 s and needs 0.5 s from SIGTERM to SIGKILL; after this the tree is killed."""
DEADLINE_SLACK_S = 10.0
"""The supervisor ends the agent at the deadline; if even that fails, the host kills the tree this much later."""
STDERR_TAIL_CHARS = 64_000
"""A line about one MCP server that did not start has more than a thousand in codex, and comes twice."""
MAX_RECORD_CHARS = 6 * 4 * 1024 * 1024 + 1024
"""Of the longest line that a supervisor writes (`starting.MAX_LINE_BYTES`): each byte may be escaped as `\\u0001`, and there are
the other members of its record."""
RECONNECTIONS = 10
RECONNECTION_WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Before each try to make one."""
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a parser raises that met a value which it did not think of."""

_log = get_logger(__name__)


class AgentTail:
    """Follows one started agent to its end."""

    def __init__(
        self, attempt: Attempt, sandbox: Sandbox, paths: AgentPaths, parser: EventParser
    ) -> None:
        self._attempt = attempt
        self._sandbox = sandbox
        self._paths = paths
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = RecordLines(MAX_RECORD_CHARS)
        self._unreadable = 0
        self._stderr_pieces: list[str] = []
        self._stderr_chars = 0
        self._last_seq = -1
        self._seen_seq = -1
        """Records up to this one come again from the log."""
        self._processes: list[Process] = []
        """The agent's, then those that read its log."""
        self._exited: AgentExited | None = None
        self._process_exit: int | None = None
        self._tools: dict[str, tuple[ToolStarted, datetime]] = {}
        self._began_s = time.monotonic()
        self.exit_reason: ExitReason = "lost"

    @property
    def duration_s(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self, process: Process) -> TurnFinished:
        """The outcome of the turn; the process tree is dead when this returns.

        Raises:
            SandboxError: UNAVAILABLE when the sandbox vanished without anybody having asked it to stop.
        """
        self._processes = [process]
        failure: SandboxError | None = None
        try:
            async with open_task_group() as group:
                ending = group.create_task(self._end_on_stop())
                try:
                    async with asyncio.timeout(self._attempt.remaining_s() + DEADLINE_SLACK_S):
                        await self._follow(process)
                except SandboxError as exc:
                    failure = exc
                except TimeoutError:
                    self.exit_reason = "timeout"
                finally:
                    ending.cancel()
        finally:
            await self._kill()
        return self._outcome(failure)

    async def _follow(self, process: Process) -> None:
        for _ in range(RECONNECTIONS):
            try:
                await self._read(process)
            except SandboxError as exc:
                if self._attempt.stop.user is not None:
                    raise
                _log.warning("agent.connection_lost", reason=str(exc))
            else:
                return
            process = await self._reconnect()
            self._processes.append(process)
        await self._read(process)

    async def _reconnect(self) -> Process:
        """To the supervisor's log, from its beginning.

        Raises:
            SandboxError: the sandbox is gone, or cannot be reached for long.
        """
        self._seen_seq = self._last_seq
        self._decoder.reset()
        self._lines.reset()
        command = following(self._paths)
        *waits, last_wait_s = RECONNECTION_WAITS_S
        for wait_s in waits:
            await asyncio.sleep(wait_s)
            try:
                return await self._spawn(command)
            except SandboxError as exc:
                if not exc.retryable:
                    raise
        await asyncio.sleep(last_wait_s)
        return await self._spawn(command)

    async def _spawn(self, command: AgentCommand) -> Process:
        await self._sandbox.write_files({file.path: file.data for file in command.files})
        return await self._sandbox.spawn(command.argv)

    async def _read(self, process: Process) -> None:
        async for event in process.events():
            match event:
                case ExecOutput(stream=OutputStream.STDOUT, data=data):
                    for line in self._lines.feed(self._decoder.decode(data)):
                        self._handle(line)
                case ExecOutput(data=data):
                    self._keep_stderr(data.decode("utf-8", "replace"))
                case ExecExited(exit_code=exit_code):
                    self._process_exit = exit_code

    async def _end_on_stop(self) -> None:
        await self._attempt.stop.wait()
        try:
            async with asyncio.timeout(STOP_WRITE_TIMEOUT_S):
                await self._sandbox.write_file(stop_path(self._paths), b"")
            await asyncio.sleep(STOP_GRACE_S)
        except (SandboxError, OSError, TimeoutError):
            pass  # asking failed: the kill below needs nobody's help
        await self._kill()

    async def _kill(self) -> None:
        """All of them; one that cannot be reached is let be if the supervisor has said that the agent's tree is dead."""
        for process in reversed(self._processes):
            try:
                await process.kill()
            except SandboxError:
                if self._exited is None:
                    raise

    def _handle(self, line: str) -> None:
        record = parse_record(line)
        if record is None or record.seq <= self._seen_seq:
            return
        self._attempt.event_offset = self._last_seq = record.seq
        if isinstance(record, AgentLine):
            self._attempt.transcript.add(_log_line(record))
        match record:
            case AgentLine(stream="stdout", text=text, at_unix_s=at):
                for event in self._parse(text):
                    self._attempt.tracker.feed(event)
                    self._trace(event, datetime.fromtimestamp(at, UTC))
                    self._attempt.show_soon()
            case AgentLine(text=text):
                self._keep_stderr(text + "\n")
            case AgentExited(reason=reason):
                self._exited = record
                self.exit_reason = reason
            case AgentStarted():
                pass

    def _parse(self, line: str) -> Sequence[AgentEvent]:
        """Any process of the sandbox may have written it: none that a parser fails at ends the run."""
        try:
            return self._parser.feed(line)
        except _UNREADABLE as exc:
            if not self._unreadable:
                _log.warning("agent.line_unreadable", error=type(exc).__name__)
            self._unreadable += 1
            return ()

    def _keep_stderr(self, text: str) -> None:
        self._stderr_pieces.append(text)
        self._stderr_chars += len(text)
        if self._stderr_chars > 2 * STDERR_TAIL_CHARS:
            tail = self._stderr_tail()
            self._stderr_pieces, self._stderr_chars = [tail], len(tail)

    def _stderr_tail(self) -> str:
        return "".join(self._stderr_pieces)[-STDERR_TAIL_CHARS:]

    def _trace(self, event: AgentEvent, at: datetime) -> None:
        step = self._attempt.agent_step
        match event:
            case ToolStarted():
                self._tools[event.tool_id] = (event, at)
            case ToolFinished() if step is not None and event.tool_id in self._tools:
                started, started_at = self._tools.pop(event.tool_id)
                step.tool(
                    name=started.name,
                    argument=started.argument,
                    started_at=started_at,
                    ended_at=at,
                    is_error=event.is_error,
                )
            case _:
                pass

    def _outcome(self, failure: SandboxError | None) -> TurnFinished:
        is_stopped = self._attempt.stop.user is not None
        if self._exited is None and is_stopped:
            self.exit_reason = "stopped"
        if self._exited is None and self.exit_reason == "lost":
            raise failure or SandboxError(
                SandboxErrorCode.UNAVAILABLE,
                f"the agent's supervisor ended without a word (exit code {self._process_exit})",
            )
        if self._lines.dropped or self._unreadable:
            _log.warning(
                "agent.lines_skipped", too_long=self._lines.dropped, unreadable=self._unreadable
            )
        return self._parser.finish(
            AgentExit(
                exit_code=self._exited.exit_code if self._exited else None,
                reason=self.exit_reason,
                stderr_tail=self._stderr_tail(),
            )
        )


def _log_line(record: AgentLine) -> str:
    at = datetime.fromtimestamp(record.at_unix_s, UTC)
    return f"{at:%H:%M:%S} {'|' if record.stream == 'stdout' else '!'} {record.text}"

"""What an agent says, until its end or that of a slice: its numbered log, read and folded into the attempt."""

import asyncio
import codecs
import json
from collections.abc import (
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from datetime import UTC, datetime

from agent_scripts.adapter import (
    AgentCommand,
    AgentExit,
    AgentPaths,
    EventParser,
    ExitReason,
)
from agent_scripts.events import (
    AgentEvent,
    MessageHeard,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    AgentStarted,
    follow_log,
    is_caught_up,
    parse_record,
    stop_path,
    told_path,
)
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.environment import SAVING_S
from app.runs.history import meanwhile
from app.runs.request import RunId
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import ExecExited, ExecOutput, OutputStream

_log = get_logger(__name__)

STOP_WRITE_TIMEOUT_S = 0.5
STOP_GRACE_S = 1.0
"""The supervisor sees the stop file within 0.1 s and needs 0.5 s from SIGTERM to SIGKILL; after this the tree is killed."""
FOLLOWED_STOP_GRACE_S = 3.0
"""The same for an agent that an earlier slice started, whose end only its log tells; without that its sandbox goes."""
DEADLINE_SLACK_S = 10.0
"""The supervisor ends the agent at the deadline; if even that fails, the host kills the tree this much later."""
SHORTEST_LOOK_S = 1.0
"""At an attempt's deadline while its time stands still."""
STDERR_TAIL_CHARS = 64_000
"""A line about one MCP server that did not start has more than a thousand in codex, and comes twice."""
MAX_RECORD_CHARS = 6 * 4 * 1024 * 1024 + 1024
"""Of the longest line that a supervisor writes (`MAX_LINE_BYTES`): each byte may be escaped as `\\u0001`, and there are
the other members of its record."""
RECONNECTIONS = 10
RECONNECTION_WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Before each try to make one."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a parser raises that met a value which it did not think of."""


class AgentTail:
    """Follows one started agent to its end, or to that of a slice."""

    def __init__(
        self,
        attempt: Attempt,
        sandbox: Sandbox,
        paths: AgentPaths,
        new_parser: Callable[[], EventParser],
    ) -> None:
        self._attempt = attempt
        self._sandbox = sandbox
        self._paths = paths
        self._new_parser = new_parser
        self._parser = new_parser()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = RecordLines(MAX_RECORD_CHARS)
        self._unreadable = 0
        self._stderr_pieces: list[str] = []
        self._stderr_chars = 0
        self._last_seq = -1
        self._seen_seq = -1
        """Records up to this one come again from the log."""
        self._told_seq = attempt.event_offset
        """An earlier slice has told of those up to this one."""
        self._traced_seq = attempt.traced_seq
        self._is_partial = False
        """What came before was left out: the log is long."""
        self._is_caught_up = False
        """With what there was when this slice began."""
        self._slice: asyncio.Timeout | None = None
        """While it may end."""
        self._processes: list[Process] = []
        """The agent's, then those that read its log."""
        self._exited: AgentExited | None = None
        self._process_exit: int | None = None
        self._tools: dict[str, tuple[ToolStarted, datetime]] = {}
        self.exit_reason: ExitReason = "lost"

    @property
    def directory(self) -> str:
        return self._paths.run

    async def run(self, start: Callable[[], Awaitable[Process]] | None) -> TurnFinished | None:
        """Returns the outcome of the turn; the process tree is dead then. None: the slice has ended, and the agent works on, read by nobody.

        `start`: None = it was started by an earlier slice.

        Raises:
            SandboxError: UNAVAILABLE when the sandbox vanished without anybody having asked it to stop.
        """
        if start is not None:
            self._processes.append(await start())
        failure: SandboxError | None = None
        is_left = False
        try:
            async with open_task_group() as group:
                ending = group.create_task(self._end_on_stop())
                leaving = group.create_task(self._leave_on_hand_over())
                telling = group.create_task(self._tell_forever())
                until = asyncio.timeout(None)
                timing = group.create_task(self._end_at_deadline(until))
                try:
                    async with until:
                        is_left = await self._is_left()
                except SandboxError as exc:
                    failure = exc
                except TimeoutError:
                    self.exit_reason = "timeout"
                finally:
                    timing.cancel()
                    ending.cancel()
                    leaving.cancel()
                    telling.cancel()
        finally:
            if not is_left:
                await self._kill()
        if is_left:
            for process in self._processes:
                with suppress(SandboxError):  # its connection is lost: nobody reads it then, either
                    await process.detach()
            return None
        return self._outcome(failure)

    async def _end_at_deadline(self, until: asyncio.Timeout) -> None:
        """Ends the block after the attempt's time, which may stand still meanwhile."""
        slack_s = DEADLINE_SLACK_S
        while (left_s := await self._left_s()) > 0:
            if (
                self._attempt.time.still_s
            ):  # the supervisor's own limit is later by all that it may have been
                slack_s = 0
                with suppress(
                    SandboxError
                ):  # the provider lets it live no longer: it ends when it ends
                    await self._sandbox.extend(left_s + SAVING_S)
            await asyncio.sleep(max(left_s, SHORTEST_LOOK_S))
        until.reschedule(asyncio.get_running_loop().time() + slack_s)

    async def _left_s(self) -> float:
        """Returns what is left of the attempt's time."""
        attempt = self._attempt
        if attempt.remaining_s <= 0 and attempt.approvals is not None:
            with suppress(OSError):
                time = attempt.time
                time.note_still(await attempt.approvals.waited_s(time.started_at))
        return attempt.remaining_s

    async def _is_left(self) -> bool:
        """Follows it; returns whether the slice ended before it did."""
        block = self._slice = asyncio.timeout(None)
        try:
            async with block:
                if self._processes:
                    self._begin_slice()
                await self._follow()
        except TimeoutError:
            if not block.expired():
                raise
            if self._exited is None:
                return True
        finally:
            self._slice = None
        if self._exited is not None and self._is_partial:
            await self._read_whole()
        return False

    def _begin_slice(self) -> None:
        """Lets the slice end when its time is over: not before all is known that an earlier one knew, nor while the agent is stopped."""
        self._is_caught_up = True
        left_s = 0 if self._attempt.hand_over.is_set() else self._attempt.time.slice_left_s
        if left_s is not None and self._attempt.stop.user is None:
            self._end_slice_at(asyncio.get_running_loop().time() + left_s)

    async def _leave_on_hand_over(self) -> None:
        await self._attempt.hand_over.wait()
        if self._attempt.stop.user is None and self._is_caught_up:
            self._end_slice_at(asyncio.get_running_loop().time())

    def _end_slice_at(self, at_s: float | None) -> None:
        if self._slice is not None and not self._slice.expired():
            self._slice.reschedule(at_s)

    async def _read_whole(self) -> None:
        """Reads the log of an agent that has ended from its beginning, of which only a part was read."""
        self._is_partial = False
        self._parser = self._new_parser()
        self._attempt.tracker.restart()
        self._attempt.transcript.restart()
        self._told_seq = self._last_seq
        self._last_seq = self._seen_seq = -1
        self._tools.clear()
        self._decoder.reset()
        self._lines.reset()
        process = await self._spawn(follow_log(self._paths))
        self._processes.append(process)
        await self._read(process)

    async def _follow(self) -> None:
        if not self._processes:
            self._processes.append(await self._reconnect())
        process = self._processes[0]
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
        """Connects (anew) to the supervisor's log, from its beginning unless that is long.

        Raises:
            SandboxError: the sandbox is gone, or cannot be reached for long.
        """
        self._seen_seq = self._last_seq
        self._decoder.reset()
        self._lines.reset()
        command = follow_log(self._paths, after_seq=max(self._last_seq, self._told_seq))
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
        if self._attempt.checkpoint is None:  # else they are there
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
        self._end_slice_at(None)
        try:
            async with asyncio.timeout(STOP_WRITE_TIMEOUT_S):
                await self._sandbox.write_file(stop_path(self._paths), b"")
            is_ours = self._attempt.checkpoint is None
            await asyncio.sleep(STOP_GRACE_S if is_ours else FOLLOWED_STOP_GRACE_S)
        except (SandboxError, OSError, TimeoutError):
            pass  # asking failed: the kill below needs nobody's help
        await self._kill()

    async def _tell_forever(self) -> None:
        """Tells the agent of what is urgent; what it does not hear before it ends is a question of its own."""
        while True:
            request = await self._attempt.stop.unheard.get()
            path = f"{told_path(self._paths)}/{request.run_id}.json"
            data = json.dumps({"text": meanwhile(request)}).encode("ascii")
            try:
                await self._sandbox.write_file(path, data)
            except (SandboxError, OSError) as exc:
                _log.warning("agent.not_told", reason=str(exc))
            else:
                _log.info("agent.told", told=request.run_id)

    async def _kill(self) -> None:
        """Kills all processes; one that cannot be reached is let be if the supervisor has said that the agent's tree is dead."""
        for process in reversed(self._processes):
            try:
                await process.kill()
            except SandboxError:
                if self._exited is None:
                    raise

    def _handle(self, line: str) -> None:
        if is_caught_up(line):
            self._attempt.show()  # what came when the slice before could not show it any more
            self._begin_slice()
        record = parse_record(line)
        if record is None or record.seq <= self._seen_seq:
            return
        self._is_partial |= self._last_seq < 0 and record.seq > self._told_seq > 0
        self._last_seq = record.seq
        is_told = record.seq <= self._told_seq
        self._attempt.event_offset = max(self._attempt.event_offset, record.seq)
        if isinstance(record, AgentLine):
            self._attempt.transcript.add(_log_line(record), is_told=is_told)
        match record:
            case AgentLine(stream="stdout", text=text):
                for event in self._parse(text):
                    if isinstance(event, MessageHeard):
                        self._attempt.heard[RunId(event.message_id)] = None
                    self._attempt.tracker.feed(event)
                    self._trace(event, record)
                    self._attempt.show_soon(is_told=is_told)
            case AgentLine(text=text):
                self._keep_stderr(text + "\n")
            case AgentExited(reason=reason):
                self._exited = record
                self._attempt.has_exited = True
                self.exit_reason = reason
            case AgentStarted():
                pass

    def _parse(self, line: str) -> Sequence[AgentEvent]:
        """Any process of the sandbox may have written it: none that a parser fails at ends the run."""
        try:
            return self._parser.feed(line)
        except UNREADABLE as exc:
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

    def _trace(self, event: AgentEvent, line: AgentLine) -> None:
        """Tells the trace of what the agent heard, and of tool calls, each once; in a part of a log of none, as all of it comes at the end."""
        step, at = self._attempt.agent_step, datetime.fromtimestamp(line.at_unix_s, UTC)
        match event:
            case ToolStarted():
                self._tools[event.tool_id] = (event, at)
            case MessageHeard() if step is not None:
                step.set(heard_runs=" ".join(self._attempt.heard))
            case ToolFinished() if step is not None and event.tool_id in self._tools:
                started, started_at = self._tools.pop(event.tool_id)
                if self._is_partial or line.seq <= self._traced_seq:
                    return
                self._attempt.traced_seq = line.seq
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
    moment = f"{at:%H:%M:%S.%f}"[:-3]
    return f"{moment} {'|' if record.stream == 'stdout' else '!'} {record.text}"


class RecordLines:
    """Cuts one stream into lines. A line longer than `max_chars` is none: it is counted, and not kept while it comes."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._pieces: list[str] = []
        self._chars = 0
        self.dropped = 0
        """Lines that were too long."""

    def feed(self, text: str) -> Iterator[str]:
        """Yields the lines that end in this text, without their ends."""
        *ends, rest = text.split("\n")
        for end in ends:
            self._add(end)
            if self._chars > self._max_chars:
                self.dropped += 1
            else:
                yield "".join(self._pieces)
            self.reset()
        self._add(rest)

    def reset(self) -> None:
        self._pieces.clear()
        self._chars = 0

    def _add(self, piece: str) -> None:
        self._chars += len(piece)
        if self._chars > self._max_chars:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

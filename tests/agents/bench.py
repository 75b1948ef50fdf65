"""The real script under the real supervisor and relay; only the model behind the unix socket is ours."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp
from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentExit, AgentPaths, AgentTurn, TurnMessage
from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from agent_scripts.events import AgentEvent, TextDelta, TurnFinished
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    AgentRecord,
    SupervisionLimits,
    events_path,
    parse_record,
    stop_path,
    supervise,
)
from sandbox_runtime.task_group import open_task_group

RUN_TOKEN = "orun_test_0123456789abcdef"  # noqa: S105 - made up
LIMITS = SupervisionLimits(
    timeout_s=30,
    idle_timeout_s=25,
    max_output_bytes=10_000_000,
    max_line_bytes=1_000_000,
    max_disk_bytes=2**30,
    max_processes=512,
)
WAIT_S = 45


@dataclass
class Turn:
    """What one supervised turn gave."""

    records: list[AgentRecord] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)
    stderr: str = ""
    finished: TurnFinished = field(default_factory=lambda: TurnFinished(text=""))
    duration_s: float = 0.0

    @property
    def exited(self) -> AgentExited:
        last = self.records[-1]
        assert isinstance(last, AgentExited), self.records
        return last

    @property
    def streamed(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))


class Server(uvicorn.Server):
    """Uvicorn on a unix socket inside the test's own loop."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve(app: ASGIApp, path: Path) -> AsyncIterator[None]:
    """The app where Orion's broker would be: behind a unix socket, below /broker/anthropic."""
    broker = Starlette(routes=[Mount("/broker/anthropic", app=app)])
    config = uvicorn.Config(broker, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = Server(config)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        async with open_task_group() as tasks:
            tasks.create_task(server.serve(sockets=[listener]))
            async with asyncio.timeout(10):
                while not server.started:
                    await asyncio.sleep(0.01)
            try:
                yield
            finally:
                server.should_exit = True


@dataclass
class Bench:
    """Runs turns in one folder that stands for the sandbox."""

    root: Path
    socket_path: Path
    environment: Path
    number: int = 0
    keeps_stderr: bool = False
    """The supervisor's own, for the test to read."""

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def tmp(self) -> Path:
        path = self.root / "tmp"
        path.mkdir(exist_ok=True)
        return path

    def paths(self) -> AgentPaths:
        run = self.root / f"run{self.number}"
        run.mkdir(exist_ok=True)
        return AgentPaths(
            work=str(self.work),
            home=str(self.root / "home"),
            run=str(run),
            environment=str(self.environment),
        )

    def command(
        self,
        *texts: str,
        limits: SupervisionLimits = LIMITS,
        request: dict[str, Any] | None = None,
        paths: AgentPaths | None = None,
        **turn: Any,
    ) -> AgentCommand:
        """The supervised command of one turn; `request` changes fields of the script's request file."""
        self.number += 1
        paths = replace(paths, run=self.paths().run) if paths else self.paths()
        messages = [
            TurnMessage(role="assistant" if index % 2 else "user", text=text)
            for index, text in enumerate(texts)
        ]
        values: dict[str, Any] = {
            "system_prompt": "Be brief.",
            "model": "claude-sonnet-5-5",
            "max_output_tokens": 8192,
            "max_turns": 8,
            "run_token": RUN_TOKEN,
            **turn,
        }
        command = AnthropicAdapter().command(AgentTurn(messages=messages, paths=paths, **values))
        first, *files = command.files
        changed = {**json.loads(first.data), **(request or {})}
        command = replace(
            command, files=(replace(first, data=json.dumps(changed).encode()), *files)
        )
        return supervise(command, paths=paths, broker=str(self.socket_path), limits=limits)

    async def run(
        self,
        command: AgentCommand,
        *,
        on_record: Callable[[AgentRecord], None] = lambda _: None,
        process: asyncio.subprocess.Process | None = None,
    ) -> Turn:
        """Start the supervisor, unless it waits already, and follow it to its end."""
        write_files(command)
        turn = Turn()
        parser = AnthropicAdapter().parser()
        started = time.monotonic()
        process = process or await self.start(command)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(WAIT_S):
                async for data in process.stdout:
                    record = parse_record(data.decode())
                    assert record is not None
                    turn.records.append(record)
                    if isinstance(record, AgentLine):
                        if record.stream == "stdout":
                            turn.events.extend(parser.feed(record.text))
                        else:
                            turn.stderr += record.text + "\n"
                    on_record(record)
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        turn.duration_s = time.monotonic() - started
        assert read_log(self.paths()) == turn.records
        exited = turn.exited
        turn.finished = parser.finish(
            AgentExit(
                exit_code=exited.exit_code, reason=exited.reason, stderr_tail=turn.stderr[-2000:]
            )
        )
        return turn

    async def start(self, command: AgentCommand) -> asyncio.subprocess.Process:
        """The supervisor's process."""
        return await asyncio.create_subprocess_exec(
            *command.argv,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(self.tmp)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if self.keeps_stderr else None,
            limit=4_000_000,
        )

    async def ask(self, *texts: str, **options: Any) -> Turn:
        return await self.run(self.command(*texts, **options))

    def stop(self) -> None:
        Path(stop_path(self.paths())).touch()

    def stop_when(self, wanted: str) -> Callable[[AgentRecord], None]:
        """Stops the agent at the first line that holds `wanted`."""

        def look(record: AgentRecord) -> None:
            if isinstance(record, AgentLine) and wanted in record.text:
                self.stop()

        return look


def write_files(command: AgentCommand) -> None:
    """Each whole or not at all, as sandboxes write them: a supervisor may wait for one."""
    for file in command.files:
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_bytes(file.data)
        temporary.replace(path)


def read_log(paths: AgentPaths) -> list[AgentRecord | None]:
    """The supervisor's log so far."""
    log = Path(events_path(paths))
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return [parse_record(line) for line in lines]


async def request_log(bench: Bench) -> list[dict[str, Any]]:
    """What the offline model was asked, as its own log tells."""
    reader, writer = await asyncio.open_unix_connection(str(bench.socket_path), limit=10_000_000)
    writer.write(
        b"GET /broker/anthropic/requests HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(10):
        data = await reader.read()
    writer.close()
    requests: list[dict[str, Any]] = json.loads(data.partition(b"\r\n\r\n")[2])
    return requests


def processes_with(marker: str) -> list[str]:
    """Command lines of living processes that hold `marker`; zombies have none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if marker in line:
                found.append(line)
    return found

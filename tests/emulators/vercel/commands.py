"""Commands of an emulated session: their log, which is kept whole and told from the beginning to whoever asks."""

import asyncio
import codecs
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sandbox_runtime.task_group import TaskGroup
from tests.emulators.machine import Machine, MachineProcess

STDIN_S = 5.0
_PIECE = 64 * 1024


class Command:
    """One command; its output is text, as at the service: bytes that are not UTF-8 are lost."""

    def __init__(
        self, session_id: str, argv: Sequence[str], cwd: str, process: MachineProcess
    ) -> None:
        self.id = f"cmd_{secrets.token_hex(8)}"
        self._session_id = session_id
        self._argv = argv
        self._cwd = cwd
        self.process = process
        self._started_at = round(time.time() * 1000)
        self._log: list[tuple[str, str]] = []
        self._news = asyncio.Condition()
        self._open_streams = 2
        self.exit_code: int | None = None
        self.bytes_written = 0
        self._stdin_lock = asyncio.Lock()

    def state(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self._argv[0],
            "args": list(self._argv[1:]),
            "cwd": self._cwd,
            "sessionId": self._session_id,
            "exitCode": self.exit_code,
            "startedAt": self._started_at,
        }

    async def follow(self) -> None:
        """Until its end."""
        self.exit_code = await self.process.wait()
        async with self._news:
            self._news.notify_all()

    async def keep(self, name: str, reader: asyncio.StreamReader) -> None:
        """One of its streams, to the end."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            data = await reader.read(_PIECE)
            text = decoder.decode(data, final=not data)
            async with self._news:
                if text:
                    self._log.append((name, text))
                if not data:
                    self._open_streams -= 1
                self._news.notify_all()
            if not data:
                return

    async def wait(self) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self.exit_code is not None)

    async def lines(self) -> AsyncIterator[bytes]:
        """The log as newline-delimited JSON; ends with the command."""
        told = 0
        while True:
            async with self._news:
                while len(self._log) == told and not self._is_over:
                    await self._news.wait()
                fresh, is_over = self._log[told:], self._is_over
            for name, text in fresh:
                yield json.dumps({"stream": name, "data": text}).encode() + b"\n"
            told += len(fresh)
            if is_over and told == len(self._log):
                return

    @property
    def _is_over(self) -> bool:
        return self.exit_code is not None and self._open_streams == 0

    async def write(self, data: bytes, offset: int) -> bool:
        """What lies behind the bytes that it has; False when it does not take them in time."""
        stdin = self.process.stdin
        assert stdin is not None
        async with self._stdin_lock:
            fresh = data[max(0, self.bytes_written - offset) :]
            stdin.write(fresh)
            try:
                async with asyncio.timeout(STDIN_S):
                    await stdin.drain()
            except TimeoutError:
                return False
            self.bytes_written += len(fresh)
        return True

    @property
    def takes_input(self) -> bool:
        stdin = self.process.stdin
        return stdin is not None and not stdin.is_closing() and self.exit_code is None

    def close_input(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


async def start_command(
    group: TaskGroup,
    machine: Machine,
    session_id: str,
    body: Mapping[str, Any],
    *,
    env: Mapping[str, str],
) -> Command:
    """As a request asks for it."""
    argv = [body["command"], *body.get("args", ())]
    cwd = body.get("cwd") or "/vercel/sandbox"
    process = await machine.start(
        argv,
        user="root" if body.get("sudo") else "ubuntu",
        cwd=cwd,
        env={**env, **body.get("env", {})},
        stdin=bool(body.get("attachStdin")),
    )
    command = Command(session_id, argv, cwd, process)
    group.create_task(command.keep("stdout", process.stdout))
    group.create_task(command.keep("stderr", process.stderr))
    group.create_task(command.follow())
    return command

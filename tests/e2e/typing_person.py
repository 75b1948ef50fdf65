"""A person at a terminal: `orion …` on a pseudo-terminal of its own, typed at, watched, its window changed."""

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.e2e.harness import Stage

WAIT_S = 60.0


class Person:
    """Made by `sitting_at`."""

    def __init__(self, ours: int, theirs: int, process: asyncio.subprocess.Process) -> None:
        self._ours = ours
        self._theirs = theirs
        self._process = process
        self.shown = ""

    @property
    def settings(self) -> list[Any]:
        """Of the terminal, such as whether it echoes."""
        return termios.tcgetattr(self._theirs)

    async def types(self, text: str) -> None:
        await asyncio.to_thread(os.write, self._ours, text.encode())

    def presses_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def is_told_to_end(self) -> None:
        """SIGTERM to what runs on the terminal."""
        os.killpg(os.tcgetpgrp(self._ours), signal.SIGTERM)

    def widens_to(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def sees(self, text: str) -> None:
        """Returns when it is shown, from where the last look ended."""
        try:
            async with asyncio.timeout(WAIT_S):
                while text not in self.shown:
                    self._look()
                    await asyncio.sleep(0.02)
        except TimeoutError as exc:
            raise AssertionError(f"no {text!r} in {self.shown!r}") from exc
        self.shown = self.shown.partition(text)[2]

    async def leaves(self) -> int:
        """The command's exit code."""
        async with asyncio.timeout(WAIT_S):
            while self._process.returncode is None:
                self._look()
                await asyncio.sleep(0.02)
        self._look()
        return self._process.returncode

    def _look(self) -> None:
        try:
            while True:
                self.shown += os.read(self._ours, 65536).decode("utf-8", "replace")
        except BlockingIOError:
            return


@asynccontextmanager
async def sitting_at(stage: Stage, *arguments: str) -> AsyncIterator[Person]:
    """Runs `orion …` beside the stage's service until the block ends."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    # The terminal must be the process's own: that is how it hears of a change of its size.
    process = await asyncio.create_subprocess_exec(
        *("setsid", "--ctty", "--wait", sys.executable, "-m", "app.cli", *arguments),
        env=stage.orion.environment | {"TERM": "xterm", "PYTHONUNBUFFERED": "1"},
        cwd=Path(stage.orion.state_dir).parent,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        yield Person(ours, theirs, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)
        os.close(theirs)

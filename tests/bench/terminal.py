"""A terminal of the bench's own: a program in it, the keys that it is given, and the moment at which each byte of its screen came."""

import asyncio
import os
import pty
import re
import sys
import termios
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.processes import STOP_TIMEOUT_S, BenchError, child_environment, end

LINES, COLUMNS = 24, 80
TYPE = {"TERM": "xterm-256color", "COLORTERM": ""}
SHOWN_WITHIN_S = 60.0
SHOWN_OF_FAILURE = 1_000
"""Bytes."""


@dataclass(slots=True, kw_only=True)
class Terminal:
    """Made by `open_terminal`. It answers no question that a program asks about it, as a plain one would not."""

    fd: int
    started_s: float
    """By `time.perf_counter`, as all moments here."""
    screen: bytearray = field(default_factory=bytearray)
    """All that was written to it so far."""
    _ends: list[int] = field(default_factory=list)
    _moments: list[float] = field(default_factory=list)
    """Of each reading: where it ended, and when."""
    _came: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: bool = False

    def read(self) -> None:
        """Takes what has been written to it."""
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # Linux's EIO: whoever wrote has gone
            data = b""
        if not data:
            self._is_over = True
            asyncio.get_running_loop().remove_reader(self.fd)
        self.screen += data
        self._ends.append(len(self.screen))
        self._moments.append(time.perf_counter())
        self._came.set()

    def press(self, keys: bytes) -> tuple[int, float]:
        """Returns where the screen stood then, and the moment."""
        at = len(self.screen)
        pressed_s = time.perf_counter()
        os.write(self.fd, keys)
        return at, pressed_s

    async def shown(self, what: re.Pattern[bytes], *, since: int = 0) -> tuple[bytes, float]:
        """What was found of it, and the moment at which the last byte of that came.

        Raises:
            BenchError: the program ended without it, or it did not come in time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SHOWN_WITHIN_S):
                while True:
                    self._came.clear()
                    if found := what.search(self.screen, since):
                        place = bisect_left(self._ends, found.end())
                        return found.group(found.lastindex or 0), self._moments[place]
                    if self._is_over:
                        break
                    await self._came.wait()
        raise BenchError(
            f"{what.pattern!r} was not shown, but {bytes(self.screen[-SHOWN_OF_FAILURE:])!r}"
        )


@asynccontextmanager
async def open_terminal(
    argv: Sequence[str], *, directory: Path, settings: Mapping[str, str]
) -> AsyncIterator[Terminal]:
    """`python -m argv…` in a terminal of 80 by 24 while the block runs; then it is asked to end, and killed if it does not."""
    ours, its = pty.openpty()
    try:
        termios.tcsetwinsize(its, (LINES, COLUMNS))
        terminal = Terminal(fd=ours, started_s=time.perf_counter())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", *argv),
            env=child_environment({**settings, **TYPE}, directory=directory),
            cwd=directory,
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(its)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, terminal.read)
    try:
        yield terminal
    finally:
        await end(process, timeout_s=STOP_TIMEOUT_S)
        loop.remove_reader(ours)
        os.close(ours)

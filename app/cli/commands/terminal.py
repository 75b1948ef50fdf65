"""The terminal at which a person sits, connected to one in a sandbox; without one, stdin is a script."""

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from app.aio import open_task_group
from sandbox_runtime.provider import Sandbox, Terminal
from sandbox_runtime.types import ExecExited, ExecOutput, OutputStream, TerminalSize

Print = Callable[[str], None]
"""Shows a line to a person."""


def timed(write: Print, mask: Callable[[str], str]) -> Print:
    """Returns what writes each line, masked, behind the seconds since now."""
    started_s = time.monotonic()
    return lambda text: write(f"{time.monotonic() - started_s:8.2f} s  {mask(text)}")


MAX_SCRIPT_BYTES = 16 * 1024 * 1024
READ_BYTES = 64 * 1024
STDIN, STDOUT, STDERR = 0, 1, 2
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def is_at_terminal() -> bool:
    """Whether a person can type, and see what is shown."""
    return os.isatty(STDIN) and os.isatty(STDOUT)


async def run_script(sandbox: Sandbox) -> int:
    """Runs what stdin says with `sh`, its output as it comes; the exit code.

    Raises:
        ValueError: stdin holds more than `MAX_SCRIPT_BYTES`.
    """
    script = await asyncio.to_thread(sys.stdin.buffer.read, MAX_SCRIPT_BYTES + 1)
    if len(script) > MAX_SCRIPT_BYTES:
        raise ValueError(f"the script is longer than {MAX_SCRIPT_BYTES} bytes")
    process = await sandbox.spawn(["sh", "-s"], stdin=script)
    code = 1
    try:
        async for event in process.events():
            match event:
                case ExecOutput(stream=stream, data=data):
                    _show(STDOUT if stream is OutputStream.STDOUT else STDERR, data)
                case ExecExited(exit_code=exit_code):
                    code = exit_code
    finally:
        await process.kill()
    return code


async def run_on_terminal(sandbox: Sandbox, argv: Sequence[str], *, term: str) -> int:
    """Runs a command on a terminal in the sandbox, everything typed here; the exit code. The terminal here is as it was.

    Raises:
        SandboxError
    """
    terminal = await sandbox.open_terminal(argv, size=_size(), env={"TERM": term})
    try:
        with _raw():
            await _connect(terminal)
    finally:
        code = await terminal.close()
    return code


class _Keyboard:
    """Reads what is typed, and what the window does, while inside."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()
        self._resized = asyncio.Event()

    def __enter__(self) -> Self:
        self._loop.add_reader(STDIN, self._read)
        self._loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        for number in _ENDING:
            self._loop.add_signal_handler(number, self._typed.put_nowait, b"")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.remove_reader(STDIN)
        for number in (signal.SIGWINCH, *_ENDING):
            self._loop.remove_signal_handler(number)

    async def type_on(self, terminal: Terminal) -> None:
        """Types until the person's terminal is gone, or this process is told to end."""
        while data := await self._typed.get():
            await terminal.write(data)

    async def resize(self, terminal: Terminal) -> None:
        while True:
            await self._resized.wait()
            self._resized.clear()
            await terminal.resize(_size())

    def _read(self) -> None:
        try:
            data = os.read(STDIN, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(STDIN)
        self._typed.put_nowait(data)


async def _connect(terminal: Terminal) -> None:
    """Passes on until the command's end, or until nobody types any more."""
    with _Keyboard() as keyboard:
        async with open_task_group() as group:
            ends = [
                group.create_task(keyboard.type_on(terminal)),
                group.create_task(_show_all(terminal)),
            ]
            resizing = group.create_task(keyboard.resize(terminal))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (*ends, resizing):
                task.cancel()


async def _show_all(terminal: Terminal) -> None:
    while data := await terminal.read():
        _show(STDOUT, data)


@contextmanager
def _raw() -> Iterator[None]:
    """Sends every key to the sandbox while inside, Ctrl-C too."""
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)  # what was typed while the sandbox started is not lost
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


def _size() -> TerminalSize:
    """Returns the size of the window. Source: ioctl_tty(2), TIOCGWINSZ; zeros where nobody has said."""
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(STDOUT, termios.TIOCGWINSZ, b"\0" * 8))
    return TerminalSize(rows=rows or 24, columns=columns or 80)


def _show(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

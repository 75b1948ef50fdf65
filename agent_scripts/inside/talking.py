"""A command line that is spoken to over its stdin and stdout, a JSON object in each line: its turn first, and what it is told while it works.

`python3 -I TALK.py REQUEST.json COMMAND…` prints what the command line prints and exits as it does. Standard library only, and
nothing newer than Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

_LOOK_S = 0.1
_CHUNK_BYTES = 64 * 1024


class Listener:
    """A command line's stdin; what is written after its end is lost, and its exit code says why."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def tell(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(record).encode() + b"\n")
                self._process.stdin.flush()

    def hang_up(self) -> None:
        """It ends when it can be told no more."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()


class Talk(Protocol):
    """What one command line is told, and how far it is with it."""

    def begin(self) -> None:
        """Tells it its turn, or what comes before."""

    def look(self) -> None:
        """Called ten times a second: tells it what has come meanwhile, and hangs up when it is through."""

    def hear(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Hears what it has printed; returns what is to be printed behind that."""


def main(talk_with: Callable[[Listener, dict[str, Any]], Talk], argv: list[str]) -> int:
    """Runs the command line `argv[1:]` for the request in the file `argv[0]`; returns its exit code."""
    request = json.loads(Path(argv[0]).read_text("utf-8"))
    with subprocess.Popen(argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Asked to stop, it still says where it was.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        listener = Listener(process)
        talk = talk_with(listener, request)
        talk.begin()
        _relay(process, talk)
        listener.hang_up()  # here, where what it has not read is no error
        process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _relay(process: subprocess.Popen[bytes], talk: Talk) -> None:
    """Prints its lines as they come, until it closes its output."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(_LOOK_S):
                data = os.read(process.stdout.fileno(), _CHUNK_BYTES)
                if not data:
                    _print(pending)
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    _print(line + b"\n")
                    for record in talk.hear(_read(line)):
                        _print(json.dumps(record).encode() + b"\n")
            talk.look()


def _read(line: bytes) -> dict[str, Any]:
    """Returns the object in a line; an empty one where there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

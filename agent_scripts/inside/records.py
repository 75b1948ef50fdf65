"""What a supervisor writes: its numbered records, to a file and to the host, and the lines that go into them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

_STDOUT = 1
_WRITE_BYTES = 4096
_CUT_MARK = " …[cut]"


class Recorder:
    """Writes each record to events.jsonl at once, and to stdout as fast as the host reads it.

    Neither a full disk nor a closed or stuck stdout ever stops the supervisor. What waits for stdout is bounded by
    `max_output_bytes`.
    """

    def __init__(self, events_path: str) -> None:
        self._seq = 0
        path = Path(events_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log: Any = path.open("wb", buffering=0)
        self._is_torn = False
        """The last record in the log is a piece of one: the disk was full."""
        self.pending = bytearray()
        self._stdout_open = True

    def write(self, kind: str, **fields: object) -> int:
        """Returns: the record's size in bytes."""
        self._seq += 1
        record = {"seq": self._seq, "t": round(time.time(), 3), "kind": kind, **fields}
        data = json.dumps(record).encode() + b"\n"
        self._log_record(data)
        if self._stdout_open:
            self.pending += data
        return len(data)

    def _log_record(self, data: bytes) -> None:
        line = b"\n" + data if self._is_torn else data
        with contextlib.suppress(OSError):
            written = self._log.write(line)
            self._is_torn = written < len(line)

    def pump(self) -> None:
        """Hand stdout what it takes without blocking. Call it when poll says writable.

        Source: pipe(7), poll reports writable when PIPE_BUF (4096) bytes fit.
        """
        try:
            written = os.write(_STDOUT, self.pending[:_WRITE_BYTES])
            del self.pending[:written]
        except OSError:
            self._stdout_open = False
            self.pending.clear()


class LineSplitter:
    """Cuts one stream into lines of at most `max_line_bytes`; the rest of a longer line is dropped."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._carry = bytearray()
        self._truncated = False

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        *complete, rest = data.split(b"\n")
        lines = []
        for piece in complete:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[tuple[str, bool]]:
        """A last line without newline counts."""
        return [self._take()] if self._carry else []

    def _add(self, piece: bytes) -> None:
        room = self._max - len(self._carry)
        self._carry += piece[:room]
        self._truncated = self._truncated or len(piece) > room

    def _take(self) -> tuple[str, bool]:
        text = self._carry.decode("utf-8", "replace") + (_CUT_MARK if self._truncated else "")
        line = (text, self._truncated)
        self._carry.clear()
        self._truncated = False
        return line

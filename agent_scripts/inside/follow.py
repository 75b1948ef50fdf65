"""Prints a supervisor's log from its first record to its last, as the supervisor would have, for a host that came back.

Usage: `python3 -I follow.py EVENTS.jsonl [AFTER BYTES]`. Exit code 0 after the exit record, 1 when the agent is gone and none
came. With a number of a record and a size: a log that is longer is printed from the next record on; and a record of the kind
`caught_up` comes after what was there at the beginning. Standard library only, and nothing newer than Python 3.9: this runs
on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

_POLL_S = 0.1
_SILENCE_S = 5.0
"""After the agent's end the supervisor kills what is left and records the exit within two seconds."""
_START_S = 30.0
"""On a busy machine a supervisor that was started just now makes its log, and starts the agent, that late at most."""
_SEQ = re.compile(rb'\{"seq": (\d+),')
_CAUGHT_UP = b'{"kind": "caught_up"}\n'


def main(path: str, after: str = "", most_bytes: str = "0") -> int:
    """Follows the log; returns the exit code."""
    if after:
        _wait_for(path)
    with Path(path).open("rb") as log:
        is_long = os.fstat(log.fileno()).st_size > int(most_bytes)
        return _follow(log, skipped=int(after or 0) if is_long else 0, is_behind=bool(after))


def _wait_for(path: str) -> None:
    until = time.monotonic() + _START_S
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(_POLL_S)


def _follow(log: BinaryIO, *, skipped: int, is_behind: bool) -> int:
    pid, silent_s, carry = 0, 0.0, b""
    while True:
        data = log.read(64 * 1024)
        *lines, carry = (carry + data).split(b"\n")
        for line in lines:
            is_shown = not _is_before(line, skipped)
            if is_shown:
                skipped = 0
                sys.stdout.buffer.write(line + b"\n")
            if is_shown or not pid:
                record = _read(line)
                if record.get("kind") == "exit" and is_shown:
                    return 0
                if record.get("kind") == "started":
                    pid = record.get("pid", 0)
        if is_behind and not data:
            sys.stdout.buffer.write(_CAUGHT_UP)
            is_behind = False
        sys.stdout.buffer.flush()
        if data:
            continue
        is_gone = not pid or not Path(f"/proc/{pid}").exists()
        silent_s = silent_s + _POLL_S if is_gone else 0.0
        if silent_s > (_SILENCE_S if pid else _START_S):
            return 1
        time.sleep(_POLL_S)


def _is_before(line: bytes, seq: int) -> bool:
    """Whether its number is not above; what has none, torn when the disk was full, is like the one before."""
    if not seq:
        return False
    found = _SEQ.match(line)
    return found is None or int(found.group(1)) <= seq


def _read(line: bytes) -> dict[str, Any]:
    """Returns the record; an empty one for a line that was torn when the disk was full."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

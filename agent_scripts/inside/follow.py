"""Prints a supervisor's log from its first record to its last, as the supervisor would have, for a host that came back.

Usage: `python3 -I follow.py EVENTS.jsonl [AFTER BYTES]`. Exit code 0 after the exit record, 1 when the agent is gone and none
came. With a number of a record and a size: a longer log is printed from the next record on; and a record of the kind
`caught_up` comes after what was there at the beginning. Standard library only, and nothing newer than Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.1
_SILENCE_S = 5.0
"""After the agent's end the supervisor kills what is left and records the exit within two seconds."""


_START_S = 30.0
"""A supervisor on a busy machine makes its log that late at most: it may have been started just now."""
_SEQ = re.compile(rb'\{"seq": (\d+),')
_CAUGHT_UP = b'{"kind": "caught_up"}\n'


def main(path: str, after: str = "", most_bytes: str = "0") -> int:
    """Follows the log; returns the exit code."""
    pid, silent_s, carry, is_behind = 0, 0.0, b"", bool(after)
    until = time.monotonic() + _START_S
    while after and not Path(path).exists() and time.monotonic() < until:
        time.sleep(_POLL_S)
    with Path(path).open("rb") as log:
        is_long = os.fstat(log.fileno()).st_size > int(most_bytes)
        skipped = int(after or 0) if is_long else 0
        while True:
            data = log.read(64 * 1024)
            *lines, carry = (carry + data).split(b"\n")
            for line in lines:
                if skipped and _is_before(line, skipped):
                    if not pid:
                        pid = _read(line).get("pid", 0)
                    continue
                skipped = 0
                sys.stdout.buffer.write(line + b"\n")
                record = _read(line)
                if record.get("kind") == "exit":
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
            if silent_s > _SILENCE_S:
                return 1
            time.sleep(_POLL_S)


def _is_before(line: bytes, seq: int) -> bool:
    """Whether its number is not above; what has none, torn when the disk was full, is like the one before."""
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

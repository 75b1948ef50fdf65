"""Prints a supervisor's log from its first record to its last, as the supervisor would have, for a host that came back.

Usage: `python3 -I follow.py EVENTS.jsonl`. Exit code 0 after the exit record, 1 when the agent is gone and none came.
Standard library only, and nothing newer than Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.1
_SILENCE_S = 5.0
"""After the agent's end the supervisor kills what is left and records the exit within two seconds."""


def main(path: str) -> int:
    """Follows the log; returns the exit code."""
    pid, silent_s, carry = 0, 0.0, b""
    with Path(path).open("rb") as log:
        while True:
            data = log.read(64 * 1024)
            *lines, carry = (carry + data).split(b"\n")
            for line in lines:
                sys.stdout.buffer.write(line + b"\n")
                record = _read(line)
                if record.get("kind") == "exit":
                    return 0
                if record.get("kind") == "started":
                    pid = record.get("pid", 0)
            sys.stdout.buffer.flush()
            if data:
                continue
            is_gone = not pid or not Path(f"/proc/{pid}").exists()
            silent_s = silent_s + _POLL_S if is_gone else 0.0
            if silent_s > _SILENCE_S:
                return 1
            time.sleep(_POLL_S)


def _read(line: bytes) -> dict[str, Any]:
    """Returns the record; an empty one for a line that was torn when the disk was full."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

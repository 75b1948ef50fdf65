"""A supervisor that is started before there is anything to supervise: it has the agent loaded, and waits for its configuration."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
import time
from pathlib import Path
from typing import Any

from agent_scripts.inside.standby import READY, Standby

_POLL_S = 0.01
"""A look takes some 20 µs; the wait for the configuration grows by half of this."""
_STDERR_BYTES = 4096


class EndedError(Exception):
    """There is nothing more to wait for; says why."""


def wait_for_config(path: Path, plan: dict[str, Any]) -> tuple[dict[str, Any], Standby | None]:
    """The configuration once it is written at `path`, and the agent that was loaded meanwhile.

    `plan`: `argv` (empty = no agent can be loaded ahead), `env`, `cwd`, `max_wait_s`. One line on stdout says when all is
    loaded: `{"kind": "waiting", …}`.

    Raises:
        EndedError: after `max_wait_s`, or when the agent ended while it waited.
    """
    standby = None
    if plan["argv"]:
        environment = {**os.environ, **plan["env"]}
        standby = Standby(plan["argv"], env=environment, cwd=plan["cwd"])
    try:
        _wait(path, standby, max_wait_s=plan["max_wait_s"])
        # It is put there whole, under its name at the end. Source: sandbox_runtime.exec_files.
        return json.loads(path.read_text("utf-8")), standby
    except BaseException:
        if standby is not None:
            standby.end()
        raise


def _wait(path: Path, standby: Standby | None, *, max_wait_s: float) -> None:
    deadline = time.monotonic() + max_wait_s
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        if standby is None:
            _tell_waiting()
        elif standby.process.stdout is not None:
            selector.register(standby.process.stdout, selectors.EVENT_READ)
        while not path.exists():
            if time.monotonic() > deadline:
                raise EndedError(f"nobody needed this within {max_wait_s:g} s")
            if not selector.get_map():
                time.sleep(_POLL_S)
            for key, _ in selector.select(_POLL_S) if selector.get_map() else ():
                data = os.read(key.fd, _STDERR_BYTES)
                if not data:
                    raise EndedError(f"the agent ended while it waited: {_last_words(standby)}")
                said += data
                if said.startswith(READY.encode() + b"\n"):
                    said.clear()
                    _tell_waiting()


def _tell_waiting() -> None:
    sys.stdout.write(json.dumps({"kind": "waiting", "seq": 0, "t": round(time.time(), 3)}) + "\n")
    sys.stdout.flush()


def _last_words(standby: Standby | None) -> str:
    if standby is None or standby.process.stderr is None:
        return ""
    os.set_blocking(standby.process.stderr.fileno(), False)
    with contextlib.suppress(OSError):
        return os.read(standby.process.stderr.fileno(), _STDERR_BYTES).decode("utf-8", "replace")
    return ""

"""An agent's process that is started ahead of its task: both sides of the pipe by which it is told what to do.

It holds no secret and nothing of a user before that: its command line and environment are those of any sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_scripts.inside import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WAIT = "--wait"
"""The argument with which an agent waits instead of working."""
READY = "ready"
_STDIN = 0


class PreloadedAgent:
    """The supervisor's side."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> None:
        """`argv`: what an agent's command begins with. Raises: OSError: it cannot be started."""
        self._argv = list(argv)
        self._cwd = cwd
        self.process = subprocess.Popen(
            [*self._argv, WAIT],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        process_tree.lower_priority(self.process.pid)

    def begin(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin_path: str | None
    ) -> bool:
        """Lets it do what a process started with these would; False = it cannot, and is gone."""
        task = {"argv": argv[1:], "env": dict(env), "stdin_path": stdin_path}
        pipe = self.process.stdin
        is_same = list(argv[: len(self._argv)]) == self._argv and cwd == self._cwd
        with contextlib.suppress(OSError):
            if is_same and pipe is not None and self.process.poll() is None:
                pipe.write(json.dumps(task).encode())
                pipe.close()
                return True
        self.end()
        return False

    def end(self) -> None:
        """Kills it, and waits for that."""
        self.process.kill()
        # Closed it may be, and then `communicate` fails.
        pipe, self.process.stdin = self.process.stdin, None
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
        self.process.communicate()


def wait_for_task() -> None:
    """Says for the agent that all is loaded, then becomes the process that is asked for. Ends with the supervisor."""
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    told = sys.stdin.buffer.read()
    if not told:
        os._exit(0)  # the supervisor ended
    task: dict[str, Any] = json.loads(told)
    sys.argv[:] = task["argv"]
    os.environ.clear()
    os.environ.update(task["env"])
    with Path(task["stdin_path"] or os.devnull).open("rb") as stdin:
        os.dup2(stdin.fileno(), _STDIN)


_POLL_S = 0.01
"""A look takes some 20 µs; the wait for the configuration grows by half of this."""
_STDERR_BYTES = 4096


class EndedError(Exception):
    """There is nothing more to wait for; says why."""


def wait_for_config(
    path: Path, plan: dict[str, Any]
) -> tuple[dict[str, Any], PreloadedAgent | None]:
    """Returns the configuration once it is written at `path`, and the agent that was loaded meanwhile.

    `plan`: `argv` (empty = no agent can be loaded ahead), `env`, `cwd`, `max_wait_s`. One line on stdout says when all is
    loaded: `{"kind": "waiting", …}`.

    Raises:
        EndedError: after `max_wait_s`, or when the agent ended while it waited.
    """
    preloaded = None
    if plan["argv"]:
        environment = {**os.environ, **plan["env"]}
        preloaded = PreloadedAgent(plan["argv"], env=environment, cwd=plan["cwd"])
    try:
        _wait(path, preloaded, max_wait_s=plan["max_wait_s"])
        # It is put there whole, under its name at the end. Source: sandbox_runtime.command.
        return json.loads(path.read_text("utf-8")), preloaded
    except BaseException:
        if preloaded is not None:
            preloaded.end()
        raise


def _wait(path: Path, preloaded: PreloadedAgent | None, *, max_wait_s: float) -> None:
    deadline = time.monotonic() + max_wait_s
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        if preloaded is None:
            _tell_waiting()
        elif preloaded.process.stdout is not None:
            selector.register(preloaded.process.stdout, selectors.EVENT_READ)
        while not path.exists():
            if time.monotonic() > deadline:
                raise EndedError(f"nobody needed this within {max_wait_s:g} s")
            if not selector.get_map():
                time.sleep(_POLL_S)
            for key, _ in selector.select(_POLL_S) if selector.get_map() else ():
                data = os.read(key.fd, _STDERR_BYTES)
                if not data:
                    raise EndedError(f"the agent ended while it waited: {_last_words(preloaded)}")
                said += data
                if said.startswith(READY.encode() + b"\n"):
                    said.clear()
                    _tell_waiting()


def _tell_waiting() -> None:
    sys.stdout.write(json.dumps({"kind": "waiting", "seq": 0, "t": round(time.time(), 3)}) + "\n")
    sys.stdout.flush()


def _last_words(preloaded: PreloadedAgent | None) -> str:
    if preloaded is None or preloaded.process.stderr is None:
        return ""
    os.set_blocking(preloaded.process.stderr.fileno(), False)
    with contextlib.suppress(OSError):
        return os.read(preloaded.process.stderr.fileno(), _STDERR_BYTES).decode("utf-8", "replace")
    return ""

"""An agent's process that is started ahead of its task: both sides of the pipe by which it is told what to do.

It holds no secret and nothing of a user before that: its command line and environment are those of any sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_scripts.inside import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WAIT = "--wait"
"""The argument with which an agent waits instead of working."""
READY = "ready"
_STDIN = 0


class Standby:
    """The supervisor's side."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> None:
        """`argv`: what an agent's command begins with.

        Raises:
            OSError: it cannot be started.
        """
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
        process_tree.give_way(self.process.pid)

    def begin(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin_path: str | None
    ) -> bool:
        """Let it do what a process started with these would; False = it cannot, and is gone."""
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
        """Kill it, and wait for that."""
        self.process.kill()
        self.process.communicate()


def wait_for_task() -> None:
    """The agent's side: say that all is loaded, then become the process that is asked for. Ends with the supervisor."""
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

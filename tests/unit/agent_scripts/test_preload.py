"""Who is loaded ahead, and does not live to see its task."""

import sys
import time
from pathlib import Path

from agent_scripts.inside.preload import PreloadedAgent


def test_one_that_takes_no_task_is_gone(tmp_path: Path) -> None:
    """It closed its end just before: the supervisor starts another one, and does not fail."""
    code = f"import os, pathlib, time; os.close(0); pathlib.Path({str(tmp_path / 'deaf')!r}).touch(); time.sleep(60)"
    agent = PreloadedAgent([sys.executable, "-c", code], env={}, cwd=str(tmp_path))
    deadline = time.monotonic() + 20
    while not (tmp_path / "deaf").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    argv = [*agent.process.args, "more"]  # type: ignore[misc]  # a list, as given
    assert not agent.begin(argv, env={}, cwd=str(tmp_path), stdin_path=None)
    assert agent.process.returncode == -9

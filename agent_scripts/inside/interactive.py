"""Runs an agent's own command line at a person's terminal, with the relay to the broker beside it.

Usage: `python3 -I interactive.py CONFIG.json`; exits as the agent does. Standard library only, and nothing newer than
Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside.relay import broker_url, start_egress


def main(path: str) -> int:
    """Runs the command line; returns its exit code."""
    config = json.loads(Path(path).read_text("utf-8"))
    Path(path).unlink()
    for name, members in config["settings"].items():
        _set_members(Path(name), members)
    url = broker_url(config["broker"])
    start_egress(config["broker"])
    env = {name: value.replace("{relay}", url) for name, value in config["env"].items()}
    # Handlers, not SIG_IGN, which the agent would inherit: Ctrl-C is for it alone.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, lambda *_: None)
    done = subprocess.run(config["argv"], env={**os.environ, **env}, cwd=config["cwd"], check=False)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _set_members(path: Path, members: dict[str, Any]) -> None:
    """Sets members of a JSON file of the agent's; the rest of it stays, an unreadable one is begun anew."""
    found: Any = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text("utf-8"))
    kept = found if isinstance(found, dict) else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**kept, **members}), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The agents' environments, prepared once per recipe and kept in the user's cache.

`python -m tests.e2e.prepared` prepares them all, one after the other: tests that need one wait for it.
"""

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from pathlib import Path

from agent_scripts.adapter import AgentPaths
from agent_scripts.registry import agent_specs, create_adapter
from tests.e2e.orion_process import run_cli, scrubbed_environment

PREPARED = tuple(spec.name for spec in agent_specs() if spec.protocol is not None)
"""All that can answer without a key of their maker's in the sandbox."""
VENDORS = tuple(name for name in PREPARED if name not in ("anthropic", "claude"))
"""Command lines of other makers than the model's that most tests use."""
PREPARE_TIMEOUT_S = 300.0


def prepared_state_dir(agent: str = "anthropic") -> Path:
    """A state directory whose agent environment is ready; never written to."""
    cache = Path(os.path.expandvars("$XDG_CACHE_HOME"))
    root = (cache if cache.is_absolute() else Path.home() / ".cache") / "orion-tests"
    root.mkdir(parents=True, exist_ok=True)
    paths = AgentPaths(work="/work", home="/home", run="/run", environment="/env")
    host = hashlib.sha256(f"{sys.base_prefix} {sys.version} {root}".encode()).hexdigest()[:8]
    ready = root / f"{create_adapter(agent).environment(paths).name}-{host}"
    with (root / f"{agent}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _prepare(ready, root / f"new-{secrets.token_hex(4)}", agent)
    return ready


def _prepare(ready: Path, state_dir: Path, agent: str) -> None:
    """`orion snapshots build` makes it."""
    environment = scrubbed_environment() | {
        "ORION_STATE_DIR": str(state_dir),
        "ORION_AGENT": agent,
    }
    try:
        code, output = asyncio.run(
            run_cli("snapshots", "build", environment=environment, timeout_s=PREPARE_TIMEOUT_S)
        )
        assert code == 0, output
        state_dir.rename(ready)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


if __name__ == "__main__":
    for name in PREPARED:
        prepared_state_dir(name)

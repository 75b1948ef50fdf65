"""The agent's packages as files, for machines without an index of packages: downloaded once, into the user's cache."""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parents[2] / "agent_scripts/agents/anthropic/environment/requirements.lock"
DOWNLOAD_S = 300


def ensure_wheels() -> Path:
    """A directory with all of them."""
    cache = Path(os.path.expandvars("$XDG_CACHE_HOME"))
    root = (cache if cache.is_absolute() else Path.home() / ".cache") / "orion-tests"
    root.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    ready, making = root / f"wheels-{digest}", root / f"wheels-{digest}.new"
    with (root / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            pip = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-input", "-q"]
            argv = [*pip, "--only-binary", ":all:", "-d", str(making), "-r", str(LOCK)]
            subprocess.run(argv, check=True, timeout=DOWNLOAD_S)
            making.rename(ready)
    return ready

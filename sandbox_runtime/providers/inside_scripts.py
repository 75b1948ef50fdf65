"""Scripts that run inside sandboxes, as their source."""

import re
from importlib.resources import files

_FUTURE = "from __future__ import annotations\n"
_OURS = re.compile(r"^from (sandbox_runtime\.[\w.]+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)


def script_source(module: str) -> str:
    """One script of a module and all of ours that it imports, in which none imports another any more.

    What they define must have names of its own in each.
    """
    parts: dict[str, str] = {}
    _collect(module, parts)
    return _FUTURE + "".join(parts.values())


def _collect(module: str, parts: dict[str, str]) -> None:
    folder, _, name = module.rpartition(".")
    text = (files(folder) / f"{name}.py").read_text("utf-8")
    for other in _OURS.findall(text):
        if other not in parts:
            _collect(other, parts)
    parts[module] = _OURS.sub("", text).replace(_FUTURE, "")

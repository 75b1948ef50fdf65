"""Scripts that run inside sandboxes, as their source, and what runners are told."""

import re
from importlib.resources import files

from sandbox_runtime.command_sandbox import Command

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


def encode_request(body: bytes, stdin: bytes) -> bytes:
    """As inside/command.py reads it. Through stdin: neither lists of processes nor a service's records show it."""
    return b"".join((b"%012d%012d" % (len(body), len(stdin)), body, stdin))


def encode_command(command: Command, *options: str, cwd: str) -> bytes:
    """The request for a command, as two of the runners read it: their own options first."""
    fields = [
        "1" if command.bound else "0",
        "1" if command.merge_output else "0",
        *options,
        cwd,
        str(len(command.argv)),
        *command.argv,
        *(f"{name}={value}" for name, value in command.env.items()),
    ]
    return encode_request("\0".join(fields).encode("utf-8", "surrogateescape"), command.stdin)

"""How wishes of a person become calls of the tools that a request offers: the tools of each agent, by name."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.playground.offline.question import Tool

_WRITTEN = "Written by Orion's offline model.\n"
_WHY = "Run what was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    """Without its namespace."""
    input: dict[str, Any] = field(repr=False)
    """Of a freeform tool: its text, as `input`."""
    label: str = ""
    """What the person asked for."""
    is_freeform: bool = False
    namespace: str = ""

    @property
    def written(self) -> str:
        """What the model writes to make the call."""
        return str(self.input["input"]) if self.is_freeform else json.dumps(self.input)


_Arguments = Callable[[str, Tool], dict[str, Any]]


def _command(argument: str, tool: Tool) -> dict[str, Any]:
    is_list = tool.properties.get("command", {}).get("type") == "array"
    return {"command": ["bash", "-lc", argument] if is_list else argument}


def _patch(argument: str, tool: Tool) -> dict[str, Any]:
    lines = "".join(f"+{line}\n" for line in _WRITTEN.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {argument}\n{lines}*** End Patch\n"
    return {"patchText" if "patchText" in tool.properties else "input": patch}


# Names and arguments as the agents offered them when they were run, 2026-11: our own script, Claude Code 2.1.330, Codex
# 0.169.0, Gemini CLI 0.61.0, OpenCode 1.18.33 and Copilot CLI 1.0.102. The first that is offered is used.
_RUN: Mapping[str, _Arguments] = {
    "shell": _command,
    "Bash": lambda argument, _: {"command": argument, "description": _WHY},
    "exec_command": lambda argument, _: {"cmd": argument},
    "run_shell_command": lambda argument, _: {"command": argument, "description": _WHY},
    "bash": lambda argument, _: {"command": argument, "description": _WHY},
}
_WRITE: Mapping[str, _Arguments] = {
    "edit_file": lambda argument, _: {"path": argument, "action": "create", "text": _WRITTEN},
    "Write": lambda argument, _: {"file_path": argument, "content": _WRITTEN},
    "write_file": lambda argument, _: {"file_path": argument, "content": _WRITTEN},
    "write": lambda argument, _: {"filePath": argument, "content": _WRITTEN},
    "create": lambda argument, _: {"path": argument, "file_text": _WRITTEN},
    "apply_patch": _patch,
}


def find_call(kind: str, argument: str, tools: Mapping[str, Tool]) -> ToolCall | str:
    """The call for a `run:`, `edit:` or `call:` line, or the name of the tool that would be needed."""
    argument = argument.strip().strip("`").strip()
    if kind == "call":
        name, _, given = argument.partition(" ")
        found = _find(name, tools)
        return _call(tools[found], _object(given), label=found) if found else name
    known = _RUN if kind == "run" else _WRITE
    for name, arguments in known.items():
        if name in tools:
            return _call(tools[name], arguments(argument, tools[name]), label=argument)
    if kind == "edit" and not isinstance(
        written := find_call("run", _shell_write(argument), tools), str
    ):
        return replace(written, label=argument)
    return next(iter(known))


def _find(name: str, tools: Mapping[str, Tool]) -> str:
    """That tool; or the only one of a server's that is called so, whatever the agent puts before it."""
    if name in tools:
        return name
    found = [one for one in tools if re.fullmatch(rf".*[_.-]{re.escape(name)}", one)]
    return found[0] if len(found) == 1 else ""


def _call(tool: Tool, given: dict[str, Any], *, label: str) -> ToolCall:
    return ToolCall(
        name=tool.name.removeprefix(tool.namespace).removeprefix("__")
        if tool.namespace
        else tool.name,
        input={"input": str(given.get("input", ""))} if tool.is_freeform else given,
        label=label,
        is_freeform=tool.is_freeform,
        namespace=tool.namespace,
    )


def _shell_write(path: str) -> str:
    """For agents that write files by commands."""
    folder = path.rpartition("/")[0]
    make = f"mkdir -p {shlex.quote(folder)} && " if folder else ""
    return f"{make}printf %s {shlex.quote(_WRITTEN)} > {shlex.quote(path)}"


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}

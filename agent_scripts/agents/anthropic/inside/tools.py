"""The anthropic agent's two tools: a shell, and exact edits of text files. Whatever fails is told to the model."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_scripts.inside import process_tree

_MAX_FILE_BYTES = 1_000_000
_DEFAULT_TIMEOUT_S = 120
_POLL_S = 0.05
_READ_BYTES = 64 * 1024
_KILL_S = 1.0
_DRAIN_S = 0.5
_MARKER = "ORION_TOOL_CALL"

TOOLS: list[dict[str, Any]] = [
    {
        "name": "shell",
        "description": (
            "Run a command with bash in the working directory and return its output and exit code. Every call starts a"
            " fresh shell. Long output is cut in the middle. A background process must have its output redirected to a"
            " file. At the time limit the command and all its children are killed."
        ),
        "input_schema": {
            "type": "object",
            "properties": {
                "command": {
                    "type": "string",
                    "description": "What bash runs; may have several lines.",
                },
                "timeout_s": {
                    "type": "number",
                    "description": "Time limit in seconds; default 120, at most 300.",
                },
            },
            "required": ["command"],
        },
    },
    {
        "name": "edit_file",
        "description": (
            "View or change one UTF-8 text file. view: numbered lines, optionally start_line to end_line. create: write"
            " `text` to the file, replacing it. replace: put `text` where `old_text` stands, which must match exactly"
            " and only once. insert: put `text` as new lines after line `line` (0 = at the top)."
        ),
        "input_schema": {
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "description": "Absolute, or relative to the working directory.",
                },
                "action": {"type": "string", "enum": ["view", "create", "replace", "insert"]},
                "text": {"type": "string"},
                "old_text": {"type": "string"},
                "line": {"type": "integer"},
                "start_line": {"type": "integer"},
                "end_line": {"type": "integer"},
            },
            "required": ["path", "action"],
        },
    },
]


class ToolError(Exception):
    """The call failed; the message is for the model."""


@dataclass(frozen=True)
class ToolLimits:
    """Says what one tool call may take, and where it works."""

    work: str
    timeout_s: float
    output_bytes: int
    secret: str
    """Never in the environment of a command."""


def run_tool(name: str, arguments: object, limits: ToolLimits) -> tuple[str, bool]:
    """Returns what the tool gave back, and whether it is an error."""
    try:
        return _use(name, arguments, limits)
    except ToolError as exc:
        return str(exc), True
    except (OSError, ValueError) as exc:
        return f"{type(exc).__name__}: {exc}", True


def cut_middle(data: bytes, max_bytes: int) -> str:
    """Returns text with its head and tail kept when it is too long."""
    if len(data) <= max_bytes:
        return data.decode("utf-8", "replace")
    half = max_bytes // 2
    return _join(data[:half], data[-half:], len(data) - 2 * half)


class Output:
    """Keeps the head and the tail of a stream of any length."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        return _join(self._head, self._tail, self._dropped)


def _use(name: str, arguments: object, limits: ToolLimits) -> tuple[str, bool]:
    if not isinstance(arguments, dict):
        raise ToolError("the input must be an object")
    if name == "shell":
        return _run_shell(arguments, limits)
    if name == "edit_file":
        text = _edit_file(arguments, limits)
        return cut_middle(text.encode("utf-8", "replace"), limits.output_bytes), False
    raise ToolError(f"there is no tool {name!r}; known: shell, edit_file")


def _join(head: bytes | bytearray, tail: bytes | bytearray, dropped: int) -> str:
    mark = f"\n[... {dropped} bytes cut ...]\n"
    return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


def _run_shell(arguments: dict[str, Any], limits: ToolLimits) -> tuple[str, bool]:
    command = _text(arguments, "command")
    wanted = arguments.get("timeout_s", _DEFAULT_TIMEOUT_S)
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or wanted <= 0:
        raise ToolError("timeout_s must be a positive number of seconds")
    timeout_s = min(wanted, limits.timeout_s)
    mark = f"{_MARKER}={uuid.uuid4().hex}"
    environment = {name: value for name, value in os.environ.items() if limits.secret not in value}
    output = Output(limits.output_bytes)
    with subprocess.Popen(
        [shutil.which("bash") or "/bin/sh", "-c", command],
        cwd=limits.work,
        env={**environment, _MARKER: mark.partition("=")[2]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        timed_out = _follow(process, output, timeout_s=timeout_s, mark=mark.encode())
    text = output.text()
    text += "\n" if text and not text.endswith("\n") else ""
    if timed_out:
        return f"{text}[killed: still running after {timeout_s:g} s]", True
    return f"{text}[exit code {process.returncode}]", process.returncode != 0


def _follow(
    process: subprocess.Popen[bytes], output: Output, *, timeout_s: float, mark: bytes
) -> bool:
    """Collects output until the shell has ended; returns whether it had to be killed for that."""
    assert process.stdout is not None  # noqa: S101 - given PIPE above
    fd = process.stdout.fileno()
    deadline = time.monotonic() + timeout_s
    timed_out = False
    drain_until = None
    while True:
        if select.select([fd], [], [], _POLL_S)[0]:
            data = os.read(fd, _READ_BYTES)
            if not data:
                break
            output.add(data)
        now = time.monotonic()
        if process.poll() is not None:
            # A background process that keeps the pipe open is left alone, but not waited for.
            drain_until = drain_until or now + _DRAIN_S
            if now > drain_until:
                return timed_out
        elif now > deadline:
            timed_out = True
            _kill_call(process.pid, mark)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        timed_out = True
        _kill_call(process.pid, mark)
    return timed_out


def _kill_call(pid: int, mark: bytes) -> None:
    """Kills the shell, its tree, and what left the tree: a daemon keeps the mark in its environment."""
    process_tree.send({pid, *process_tree.descendants(pid)}, signal.SIGKILL)
    process_tree.kill_until_gone(lambda: process_tree.marked(mark), timeout_s=_KILL_S)


def _edit_file(arguments: dict[str, Any], limits: ToolLimits) -> str:
    path = Path(limits.work) / _text(arguments, "path")
    action = arguments.get("action")
    if action == "create":
        text = _text(arguments, "text", may_be_empty=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, text)
        return f"wrote {len(text.encode())} bytes to {path}"
    if action not in {"view", "replace", "insert"}:
        raise ToolError("action must be one of view, create, replace, insert")
    content = _read_text(path)
    if action == "view":
        return _view(content, arguments)
    if action == "replace":
        return _replace(path, content, arguments)
    return _insert(path, content, arguments)


def _view(content: str, arguments: dict[str, Any]) -> str:
    lines = content.splitlines()
    first = max(1, _number(arguments, "start_line", 1))
    last = min(len(lines), _number(arguments, "end_line", len(lines)))
    shown = [f"{number:6}\t{lines[number - 1]}" for number in range(first, last + 1)]
    return "\n".join(shown) or f"[no lines {first} to {last}; the file has {len(lines)}]"


def _replace(path: Path, content: str, arguments: dict[str, Any]) -> str:
    old = _text(arguments, "old_text")
    count = content.count(old)
    if count == 0:
        raise ToolError(
            f"old_text is not in {path}; it must match exactly, spaces and line ends too: view the file"
        )
    if count > 1:
        raise ToolError(f"old_text stands {count} times in {path}; give more of its surroundings")
    before, _, after = content.partition(old)
    _write(path, before + _text(arguments, "text", may_be_empty=True) + after)
    return f"replaced at line {before.count(chr(10)) + 1} of {path}"


def _insert(path: Path, content: str, arguments: dict[str, Any]) -> str:
    lines = content.splitlines(keepends=True)
    line = _number(arguments, "line", -1)
    if not 0 <= line <= len(lines):
        raise ToolError(f"line must be from 0 to {len(lines)}")
    text = _text(arguments, "text")
    before = "".join(lines[:line])
    before += "\n" if before and not before.endswith("\n") else ""
    _write(path, before + text + ("" if text.endswith("\n") else "\n") + "".join(lines[line:]))
    return f"inserted after line {line} of {path}"


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise ToolError(f"{path} is a directory; list it with the shell tool")
    if path.exists() and not path.is_file():
        raise ToolError(f"{path} is a device or the like, no file; use the shell tool")
    if path.exists() and path.stat().st_size > _MAX_FILE_BYTES:
        raise ToolError(f"{path} has over {_MAX_FILE_BYTES} bytes; use the shell tool")
    with contextlib.suppress(UnicodeDecodeError):
        return path.read_bytes().decode("utf-8")  # bytes: line ends stay as they are
    raise ToolError(f"{path} is not UTF-8 text")


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def _text(arguments: dict[str, Any], name: str, *, may_be_empty: bool = False) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise ToolError(f"{name} must be given as text")
    return value


def _number(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int):
        raise ToolError(f"{name} must be a whole number")
    return value

"""What a push says that it will change, read from its first lines, and how it is told no; pure.

Source: gitprotocol-pack(5), "Reference Update Request and Packfile Transfer" and "Report Status"; gitprotocol-common(5), pkt-line.
"""

import re
from dataclasses import dataclass

MAX_COMMAND_BYTES = 64 * 1024
"""One push of Orion's says one command; by hand it may be some hundreds."""
_LENGTH_CHARS = 4
_MIN_LINE = 4
_NO_ID = re.compile(rb"0{40}(?:0{24})?")
_COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) ([^\0\n ]+)\n?")
_SHALLOW = re.compile(rb"shallow [0-9a-f]{40,64}\n?")


class CommandError(ValueError):
    """No push that can be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCommand:
    ref: str
    is_delete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCommands:
    """All of a push; none in the request by which git tries the connection."""

    commands: tuple[PushCommand, ...]
    capabilities: frozenset[str]


def read_commands(body: bytes) -> PushCommands | None:
    """The commands at the beginning of a push; None = they are not there to their end yet.

    Raises:
        CommandError: these are no commands that Orion lets pass.
    """
    found: list[PushCommand] = []
    capabilities: frozenset[str] = frozenset()
    at = 0
    while True:
        if len(body) < at + _LENGTH_CHARS:
            return None
        try:
            length = int(body[at : at + _LENGTH_CHARS], 16)
        except ValueError:
            raise CommandError("a push begins with lines of git's own form") from None
        if length == 0:
            return PushCommands(commands=tuple(found), capabilities=capabilities)
        if length <= _MIN_LINE:
            raise CommandError("a push begins with lines of git's own form")
        if len(body) < at + length:
            return None
        line = body[at + _LENGTH_CHARS : at + length]
        if not _SHALLOW.fullmatch(line):
            if not found:  # servers read them behind any command; a second one with some is refused
                line, _, said = line.partition(b"\0")
                capabilities = _read_capabilities(said)
            found.append(_read_command(line))
        at += length


def _read_capabilities(said: bytes) -> frozenset[str]:
    """Their names alone: to git, `push-options=x` is `push-options`."""
    return frozenset(one.partition("=")[0] for one in said.decode("utf-8", "replace").split())


def _read_command(line: bytes) -> PushCommand:
    command = _COMMAND.fullmatch(line)
    if command is None:
        raise CommandError("only plain updates may be pushed, without certificates")
    return PushCommand(
        ref=command[3].decode("utf-8", "replace"), is_delete=bool(_NO_ID.fullmatch(command[2]))
    )


def find_refusal(commands: PushCommands, branch: str) -> str:
    """Why it may not pass; empty = it may. `branch`: the thread's own, all that may be created and updated; empty = nothing."""
    for command in commands.commands:
        if not branch:
            return "nothing may be pushed yet"
        if command.ref != f"refs/heads/{branch}":
            return f"only the branch {branch} may be pushed from here"
        if command.is_delete:
            return "nothing may be deleted from here"
    return "" if "push-options" not in commands.capabilities else "push options may not be sent"


def render_refusal(commands: PushCommands, reason: str) -> bytes:
    """The report by which a server refuses each command: git shows `! [remote rejected] … (reason)`."""
    lines = [b"unpack ok\n"]
    lines += [f"ng {command.ref} {reason}\n".encode() for command in commands.commands]
    report = b"".join(map(_line, lines)) + b"0000"
    is_banded = bool({"side-band-64k", "side-band"} & commands.capabilities)
    return _line(b"\x01" + report) + b"0000" if is_banded else report


def _line(data: bytes) -> bytes:
    return f"{len(data) + _LENGTH_CHARS:04x}".encode() + data

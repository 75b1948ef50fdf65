"""What adapters share: prompt, files, session arguments, the table of MCP servers, and what is installed, pinned. Pure."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from typing_extensions import override

from agent_scripts.adapter import (
    AgentAdapter,
    AgentFile,
    AgentPaths,
    AgentSession,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
    TurnMessage,
)

RUN_TOKEN = "{run_token}"  # noqa: S105 - stands for one
"""In `AgentTurn.mcp_config`."""
RELAY = "${ORION_RELAY}"
"""Begins the URL of every server that only the broker speaks to; each agent has its own way to write the variable."""
Toml = str | bool | int | Sequence["Toml"] | Mapping[str, "Toml"]
_MARK_CHARS = 12


class CliFiles:
    """Files of one start; a name that is no absolute path lies below the run directory."""

    def __init__(self, turn: AgentTurn) -> None:
        self._turn = turn
        self._files: list[AgentFile] = []

    def add(self, name: str, text: str, *, names_relay: bool = False) -> str:
        """Adds a file, and returns its path; lone surrogates of the text are replaced."""
        path = str(PurePosixPath(self._turn.paths.run, name))
        data = text.encode("utf-8", "replace")
        self._files.append(AgentFile(path=path, data=data, names_relay=names_relay))
        return path

    def add_prompt(self, before: str = "") -> str:
        """Adds the turn's messages as one text, behind `before`."""
        return self.add("prompt.txt", before + render_prompt(self._turn.messages))

    def add_token(self) -> str:
        """Adds the run token: in the environment, every command that the agent runs would inherit it."""
        return self.add("token", self._turn.run_token)

    def all(self) -> tuple[AgentFile, ...]:
        return tuple(self._files)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionArguments:
    """Says how a command line is told its session; `{id}` stands for the id."""

    called: str
    """For errors, such as `session id of Codex`."""
    form: re.Pattern[str]
    begin: Sequence[str] = ()
    """Empty: the agent makes the id of a new session itself."""
    resume: Sequence[str]
    newest: Sequence[str]
    """To resume the newest session of its home."""

    def of(self, session: AgentSession | None) -> Sequence[str]:
        """Returns the arguments for that session.

        Raises:
            ValueError: the id is none that the agent could have, so nothing of it may reach a command line.
        """
        if session is None or not (session.resume or self.begin):
            return ()
        if session.id is None:
            return self.newest
        if not self.form.fullmatch(session.id):
            raise ValueError(f"not a {self.called}: {session.id[:80]!r}")
        wanted = self.resume if session.resume else self.begin
        return tuple(part.replace("{id}", session.id) for part in wanted)


def plain_environment(paths: AgentPaths) -> Mapping[str, str]:
    """Returns what each agent has in its environment."""
    return {"HOME": paths.home, "LANG": "C.UTF-8", "NO_PROXY": "127.0.0.1"}


def render_prompt(messages: Sequence[TurnMessage]) -> str:
    """Returns the last message, behind the ones before it, if there are any.

    The line that divides them holds a digest of all of it, so that no message can contain it. What no UTF-8 text or C string
    can carry is gone: NUL, lone surrogates.
    """
    *earlier, last = [(message.role, _clean(message.text)) for message in messages]
    if not earlier:
        return last[1]
    everything = "\0".join(text for _, text in (*earlier, last))
    mark = hashlib.sha256(everything.encode()).hexdigest()[:_MARK_CHARS]
    names = {"user": "people wrote", "assistant": "you answered"}
    history = "\n".join(f"--- {mark} {names[role]} ---\n{text}" for role, text in earlier)
    return (
        "What was said in this thread before, for your information; answer only the message behind it.\n"
        f"{history}\n--- {mark} end of the history, answer this ---\n{last[1]}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideServer:
    """Started by the agent, spoken to over its stdin and stdout."""

    name: str
    command: str
    args: Sequence[str]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedServer:
    """Behind the relay, over HTTP."""

    name: str
    path: str
    """Behind the relay's base URL; begins with a slash."""


def read_servers(config: bytes) -> tuple[InsideServer | RelayedServer, ...]:
    """Returns the servers of `AgentTurn.mcp_config`, in its order; none for an empty one.

    A relayed one wants the run token as its bearer. What of a server has another form than it must have is left out.

    Raises:
        ValueError: it is no JSON object with `mcpServers`, or one of them is neither a command nor behind the relay.
    """
    if not config:
        return ()
    servers = json.loads(config)["mcpServers"]
    return tuple(_read_server(name, server) for name, server in servers.items())


def inside_entry(server: InsideServer) -> Mapping[str, Any]:
    """Returns the form of one started by the agent that most of them read."""
    return {"command": server.command, "args": list(server.args), "env": dict(server.env)}


def server_table(
    config: bytes,
    *,
    relayed: Callable[[str], Mapping[str, Any]],
    inside: Callable[[InsideServer], Mapping[str, Any]] = inside_entry,
    common: Mapping[str, Any] = {},
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the entries of all servers by name, in an agent's own form; `relayed` gets the path behind the relay's base URL.

    Raises:
        ValueError: as `read_servers`.
    """
    entries = (
        (one.name, relayed(one.path) if isinstance(one, RelayedServer) else inside(one))
        for one in read_servers(config)
    )
    return {name: {**entry, **common} for name, entry in entries}


def render_toml(table: Mapping[str, Toml]) -> str:
    """Returns TOML, which the standard library only reads: a line for each key, tables in braces; empty ones are left out."""
    lines = [
        f"{_quoted(key)} = {_render_value(value)}" for key, value in table.items() if value != {}
    ]
    return "\n".join([*lines, ""])


def _clean(text: str) -> str:
    return (
        text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", errors="replace")
    )


def _read_server(name: str, server: Mapping[str, Any]) -> InsideServer | RelayedServer:
    match server:
        case {"command": str(command)}:
            args, env = server.get("args"), server.get("env")
            return InsideServer(
                name=name,
                command=command,
                args=[str(part) for part in args] if isinstance(args, list) else [],
                env={key: str(value) for key, value in env.items()}
                if isinstance(env, dict)
                else {},
            )
        case {"url": str(url)} if url.startswith(f"{RELAY}/"):
            return RelayedServer(name=name, path=url.removeprefix(RELAY))
        case _:
            raise ValueError(f"MCP server {name}: neither a command nor behind the relay")


def _render_value(value: Toml) -> str:
    """Returns a value as TOML; lone surrogates of a text are replaced."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _quoted(value)
        case Mapping():
            pairs = [f"{_quoted(key)} = {_render_value(item)}" for key, item in value.items()]
            return f"{{{', '.join(pairs)}}}"
        case _:
            return f"[{', '.join(_render_value(item) for item in value)}]"


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, too; it leaves one character bare that TOML does not take so.
    sound = text.encode("utf-8", "replace").decode()
    return json.dumps(sound, ensure_ascii=False).replace("\x7f", "\\u007f")


_PACKAGE = Path(__file__).parent
_SHARED_FILES = ("install.py", "requirements.lock")
_OWN_FILES = ("install.json", "package.json", "package-lock.json")
_PIP = "-m pip install --require-hashes --no-input --disable-pip-version-check --no-cache-dir -q -r"


def pinned_recipe(
    agent: str,
    *,
    files: Sequence[AgentFile],
    commands: Sequence[Sequence[str]],
    product: str = "",
) -> EnvironmentRecipe:
    """Returns a recipe whose name changes with anything in it."""
    content = json.dumps(commands).encode() + b"".join(file.data for file in files)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{agent}-{digest[:12]}"
    return EnvironmentRecipe(name=name, files=files, commands=commands, product=product)


def install_locked(root: str) -> Sequence[Sequence[str]]:
    """Returns the commands that make `root/venv` with what `root/requirements.lock` pins by hashes."""
    pip = (f"{root}/venv/bin/python", *_PIP.split(), f"{root}/requirements.lock")
    return (("python3", "-m", "venv", f"{root}/venv"), pip)


def npm_recipe(agent: str, paths: AgentPaths) -> EnvironmentRecipe:
    """Returns what `agents/AGENT/environment` pins, installed by `npm/install.py`, which says what must be there.

    Node comes from a wheel.
    """
    root, own = paths.environment, _PACKAGE / "agents" / agent / "environment"
    sources = [_PACKAGE / "npm" / name for name in _SHARED_FILES]
    sources += [own / name for name in _OWN_FILES]
    pinned = json.loads((own / "package.json").read_bytes())["dependencies"]
    return pinned_recipe(
        agent,
        files=[AgentFile(path=f"{root}/{one.name}", data=one.read_bytes()) for one in sources],
        commands=(
            *install_locked(root),
            (f"{root}/venv/bin/python", f"{root}/install.py", root),
        ),
        product=", ".join(f"{name} {version}" for name, version in pinned.items()),
    )


class NpmAdapter(AgentAdapter):
    """A command line from npm, pinned in its folder, whose output `output` reads."""

    output: type[EventParser]

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        return npm_recipe(self.name, paths)

    @override
    def parser(self) -> EventParser:
        return self.output()

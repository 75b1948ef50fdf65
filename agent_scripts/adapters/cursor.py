"""The `cursor` agent: Cursor's command line. EXPERIMENTAL: nobody here ever ran it.

All here is from documentation, and tested with an executable that replays its shapes. Neither an installation nor an answer of
the real one has been seen. It differs from all other agents:

- It cannot be told a base URL: it speaks to its maker's servers, not to the broker. Its REAL key is in the sandbox, where
  everything that it runs can read it, and its sandbox needs a way to those servers. The operator must allow both.
- Models, calls, tokens and money are not checked and not counted by Orion.
- Its maker's installer takes the newest version; there is nothing to pin it by.

Source: cursor.com/docs/cli, "Headless", "Output format", "Parameters", "MCP" and "Installation", read 2026-11.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_scripts.adapter import (
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
    ModelProtocol,
)
from agent_scripts.adapters.cursor_output import CursorParser
from agent_scripts.mcp_servers import InsideServer, RelayedServer, read_servers
from agent_scripts.prompts import render_prompt

_SESSION_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{7,63}")
_INSTALL = "curl https://cursor.com/install -fsS | bash"
_FIXED_ARGUMENTS = (
    *("--print", "--output-format", "stream-json"),
    # It refuses to work without the first, writes no file without the second, uses no MCP server without the third.
    *("--trust", "--force", "--approve-mcps"),
)
_MAX_PROMPT_BYTES = 120_000
"""It takes a prompt as an argument only, and Linux has a limit for one: 128 KiB. Source: execve(2), MAX_ARG_STRLEN."""


class CursorAdapter:
    """Implements AgentAdapter."""

    name = "cursor"
    protocol = ModelProtocol.OPENAI
    """The seam has no word for "none": nothing of this agent's asks the broker for a model."""
    default_model = "auto"
    has_sessions = True
    takes_session_id = False
    reserved_bytes = 32 * 2**30
    helper_models: Sequence[str] = ()

    def model_id(self, name: str) -> str:
        return name

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        root = paths.environment
        command = ("env", f"HOME={root}", "bash", "-o", "pipefail", "-c", _INSTALL)
        check = (f"{root}/.local/bin/cursor-agent", "--version")
        digest = hashlib.sha256(json.dumps([command, check]).encode()).hexdigest()
        return EnvironmentRecipe(
            name=f"{self.name}-{digest[:12]}", files=(), commands=(command, check)
        )

    def command(self, turn: AgentTurn) -> AgentCommand:
        """How to answer this turn.

        Raises:
            ValueError: the session id is none that the agent could have; its key is missing; the message is too long for it.
        """
        if not turn.vendor_key:
            raise ValueError("cursor has no key: it may not be in the sandbox, or is not set")
        paths = turn.paths
        prompt = _prompt(turn)
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model]
        if turn.session is not None and turn.session.resume:
            arguments += _resumption(turn.session.id)
        config = json.dumps({"mcpServers": _mcp_servers(turn.mcp_config)}).encode()
        return AgentCommand(
            argv=(
                f"{paths.environment}/.local/bin/cursor-agent",
                # A prompt that begins with a dash is none of its options.
                *(*arguments, *turn.extra_arguments, "--", prompt),
            ),
            env={
                "ORION_RELAY": "{relay}",
                "NO_PROXY": "127.0.0.1",
                "LANG": "C.UTF-8",
                "HOME": paths.home,
                "CURSOR_API_KEY": turn.vendor_key,
                "ORION_RUN_TOKEN": turn.run_token,
            },
            files=(AgentFile(path=f"{paths.home}/.cursor/mcp.json", data=config),),
        )

    def standby(self, paths: AgentPaths) -> None:
        """It has no way to be told its task later."""
        del paths

    def parser(self) -> EventParser:
        return CursorParser()


def _prompt(turn: AgentTurn) -> str:
    """With as much as it takes of what was said before."""
    # It has no option for instructions but files in the work tree.
    instructions = f"{turn.system_prompt.strip()}\n\n" if turn.system_prompt.strip() else ""
    for first in range(len(turn.messages)):
        prompt = instructions + render_prompt(turn.messages[first:])
        if len(prompt.encode()) <= _MAX_PROMPT_BYTES:
            return prompt
    raise ValueError(f"cursor takes at most {_MAX_PROMPT_BYTES} bytes of a message")


def _mcp_servers(config: bytes) -> Mapping[str, Any]:
    return {server.name: _server(server) for server in read_servers(config)}


def _server(server: InsideServer | RelayedServer) -> Mapping[str, Any]:
    match server:
        case InsideServer(command=command, args=args, env=env):
            return {"command": command, "args": list(args), "env": dict(env)}
        case RelayedServer(path=path):
            # A token of one run has no place in a home that is saved.
            return {
                "url": f"${{env:ORION_RELAY}}{path}",
                "headers": {"Authorization": "Bearer ${env:ORION_RUN_TOKEN}"},
            }


def _resumption(session_id: str | None) -> Sequence[str]:
    if session_id is None:
        return ("--continue",)
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"not a session id of Cursor: {session_id[:80]!r}")
    return ("--resume", session_id)

"""The `gemini` agent: Gemini CLI, the vendor's command line, without a person at it.

What is said here of its options, variables and files was seen with version 0.61.0, 2026-11, unless another source stands
there. It has no option for the longest answer; the broker holds the run's limit.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_scripts.adapter import (
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentSession,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
    ModelProtocol,
)
from agent_scripts.adapters.gemini_output import GeminiParser
from agent_scripts.mcp_servers import InsideServer, RelayedServer, read_servers
from agent_scripts.npm_environment import npm_recipe
from agent_scripts.prompts import render_prompt
from agent_scripts.session_ids import checked_uuid

_DEFAULT_MODEL = "gemini-2.5-pro"
_INSTRUCTIONS = "ORION.md"
_TOKEN = "GEMINI_API_KEY"  # noqa: S105 - the variable's name
_MAX_ATTEMPTS = 3
_FIXED_ARGUMENTS = (
    *("--output-format", "stream-json", "--approval-mode", "yolo"),
    # As an option, not as a variable: at the time it reads settings the work tree is not trusted yet, and its .gemini/settings.json
    # with hooks, MCP servers and another way to log in is left out. Not trusted at all, it would refuse to work (exit code 55).
    "--skip-trust",
    *("--extensions", "none"),
)
_FIXED_ENV = {
    "ORION_RELAY": "{relay}",
    "NO_PROXY": "127.0.0.1",
    "LANG": "C.UTF-8",
    # Otherwise it starts itself again as a child.
    "GEMINI_CLI_NO_RELAUNCH": "true",
}
_MCP_TIMEOUT_MS = 60_000
"""For the start of an MCP server, which the turn waits for, and for each call of a tool: it has one setting for both."""
_UNUSED_TOOLS = ("google_web_search", "web_fetch")
"""They ask other models, or reach the network."""


class GeminiAdapter:
    """Implements AgentAdapter."""

    name = "gemini"
    protocol = ModelProtocol.GEMINI
    default_model = _DEFAULT_MODEL
    has_sessions = True
    takes_session_id = True
    reserved_bytes = 32 * 2**30
    """Node: for WebAssembly, which is hardly used."""
    helper_models: Sequence[str] = ()
    """None: with a model named it asks no router, and what would ask another one is turned off."""

    def model_id(self, name: str) -> str:
        return name

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        return npm_recipe(self.name, paths)

    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        prompt_path = f"{paths.run}/prompt.txt"
        prompt = render_prompt(turn.messages)
        files = {
            # It takes a first line that begins with a slash for one of its own commands, such as /help.
            prompt_path: f"\n{prompt}".encode(),
            f"{paths.home}/.gemini/settings.json": json.dumps(_settings(turn)).encode(),
            # Reports of failed requests, which hold the whole conversation, go to its temporary directory: in here nothing saves
            # them. It must be there.
            f"{paths.run}/scratch/.keep": b"",
        }
        if turn.system_prompt.strip():
            path = f"{paths.home}/.gemini/{_INSTRUCTIONS}"
            files[path] = turn.system_prompt.encode("utf-8", "replace")
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        root = paths.environment
        return AgentCommand(
            argv=(
                *(f"{root}/node", f"{root}/gemini/bundle/gemini.js"),
                *(*arguments, *turn.extra_arguments),
            ),
            env={
                **_FIXED_ENV,
                _TOKEN: turn.run_token,
                "GOOGLE_GEMINI_BASE_URL": turn.model_url,
                "HOME": paths.home,
                "TMPDIR": f"{paths.run}/scratch",
            },
            files=tuple(AgentFile(path=path, data=data) for path, data in files.items()),
            stdin_path=prompt_path,
        )

    def standby(self, paths: AgentPaths) -> None:
        """It has no way to be told its task later."""
        del paths

    def parser(self) -> EventParser:
        return GeminiParser()


def _settings(turn: AgentTurn) -> Mapping[str, Any]:
    names = [_INSTRUCTIONS] if turn.system_prompt.strip() else []
    return {
        "security": {
            "auth": {
                # A base URL alone makes it choose another way to log in, which then fails (exit code 41).
                "selectedType": "gemini-api-key",
                # Not looked at again: that would read .gemini/.env of the work tree, which by then is trusted.
                "useExternal": True,
            },
            # The token is in the environment, but not in that of the commands that the agent runs.
            "environmentVariableRedaction": {"enabled": True, "blocked": [_TOKEN]},
        },
        # Otherwise .env of the work tree is read, where a proxy could stand.
        "advanced": {"ignoreLocalEnv": True},
        "hooksConfig": {"enabled": False},
        "skills": {"enabled": False},
        "experimental": {"enableAgents": False},
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": _MAX_ATTEMPTS,
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "model": {"maxSessionTurns": turn.max_turns, "disableLoopDetection": True},
        "context": {"fileName": [*names, "GEMINI.md", "AGENTS.md"]},
        "tools": {"exclude": list(_UNUSED_TOOLS)},
        "mcpServers": {server.name: _server(server) for server in read_servers(turn.mcp_config)},
    }


def _server(server: InsideServer | RelayedServer) -> Mapping[str, Any]:
    common = {"trust": True, "timeout": _MCP_TIMEOUT_MS}
    match server:
        case InsideServer(command=command, args=args, env=env):
            return {"command": command, "args": list(args), "env": dict(env), **common}
        case RelayedServer(path=path):
            # It puts variables in by itself; a token of one run has no place in a home that is saved.
            headers = {"Authorization": f"Bearer ${_TOKEN}"}
            return {"httpUrl": f"$ORION_RELAY{path}", "headers": headers, **common}


def _session_arguments(session: AgentSession) -> Sequence[str]:
    if session.id is None:
        return ("--resume", "latest")
    session_id = checked_uuid(session.id, agent="Gemini CLI")
    return ("--resume" if session.resume else "--session-id", session_id)

"""The `copilot` agent: GitHub Copilot's command line, without a person at it and without an account at GitHub.

What is said here of its options, variables and files was seen with version 1.0.102, 2026-11, unless another source stands
there. It has no option for the number of model calls; the broker holds the run's limit.

It speaks Anthropic's protocol with its provider: of the three forms that it knows, that one tells which of the input came from
a cache, and is served by the same part of the broker as the other agents with the same default model.
"""

import json
import shlex
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
from agent_scripts.adapters.copilot_output import CopilotParser
from agent_scripts.claude_models import DEFAULT_MODEL, claude_model
from agent_scripts.mcp_servers import InsideServer, RelayedServer, read_servers
from agent_scripts.npm_environment import npm_recipe
from agent_scripts.prompts import render_prompt
from agent_scripts.session_ids import checked_uuid

_FIXED_ARGUMENTS = (
    *("--output-format", "json", "--stream", "on", "--no-color"),
    # Its tools may do anything in the sandbox. This does not trust the work tree: the variable COPILOT_ALLOW_ALL=true would, and
    # run its hooks and MCP servers.
    *("--allow-all", "--no-ask-user"),
    *("--disable-builtin-mcps", "--no-auto-update", "--disable-client-telemetry"),
)
_FIXED_ENV = {
    "NO_PROXY": "127.0.0.1",
    "LANG": "C.UTF-8",
    "COPILOT_PROVIDER_TYPE": "anthropic",
    # No login, telemetry, updates, tools of the web, MCP server of GitHub.
    "COPILOT_OFFLINE": "true",
    "COPILOT_AUTO_UPDATE": "false",
}


class CopilotAdapter:
    """Implements AgentAdapter."""

    name = "copilot"
    protocol = ModelProtocol.ANTHROPIC
    default_model = DEFAULT_MODEL
    has_sessions = True
    takes_session_id = True
    reserved_bytes = 32 * 2**30
    """Node: for WebAssembly, which is hardly used."""
    helper_models: Sequence[str] = ()
    """None: with a provider of one's own, all calls name its one model."""

    def model_id(self, name: str) -> str:
        return claude_model(name)

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        return npm_recipe(self.name, paths)

    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        prompt_path = f"{paths.run}/prompt.txt"
        token_path = f"{paths.run}/token"
        prompt = render_prompt(turn.messages)
        files = [
            AgentFile(path=prompt_path, data=f"\n{prompt}".encode()),
            AgentFile(path=token_path, data=turn.run_token.encode()),
        ]
        arguments = list(_FIXED_ARGUMENTS)
        env = {**_FIXED_ENV, **_environment(turn, token_path)}
        if turn.system_prompt.strip():
            folder = f"{paths.run}/instructions"
            path = f"{folder}/.github/instructions/orion.instructions.md"
            text = f'---\napplyTo: "**"\n---\n{turn.system_prompt}'
            files.append(AgentFile(path=path, data=text.encode("utf-8", "replace")))
            env["COPILOT_CUSTOM_INSTRUCTIONS_DIRS"] = folder
        if turn.mcp_config:
            mcp_path = f"{paths.run}/mcp.json"
            # A variable in a URL is refused before it is read.
            config = json.dumps(_mcp_config(turn)).encode()
            files.append(AgentFile(path=mcp_path, data=config, names_relay=True))
            arguments += ["--additional-mcp-config", f"@{mcp_path}"]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        root = paths.environment
        return AgentCommand(
            argv=(
                *(f"{root}/node", f"{root}/unpacked/index.js"),
                *(*arguments, *turn.extra_arguments),
            ),
            env=env,
            files=files,
            stdin_path=prompt_path,
        )

    def standby(self, paths: AgentPaths) -> None:
        """It has no way to be told its task later."""
        del paths

    def parser(self) -> EventParser:
        return CopilotParser()


def _environment(turn: AgentTurn, token_path: str) -> Mapping[str, str]:
    paths = turn.paths
    return {
        "HOME": paths.home,
        "COPILOT_HOME": f"{paths.home}/.copilot",
        "COPILOT_PROVIDER_BASE_URL": turn.model_url,
        # Neither the token nor this is in the environment of the commands that the agent runs.
        "COPILOT_PROVIDER_API_KEY_COMMAND": f"cat {shlex.quote(token_path)}",
        "COPILOT_MODEL": turn.model,
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": str(turn.max_output_tokens),
    }


def _mcp_config(turn: AgentTurn) -> Mapping[str, Any]:
    servers = read_servers(turn.mcp_config)
    return {"mcpServers": {server.name: _server(server, turn.run_token) for server in servers}}


def _server(server: InsideServer | RelayedServer, token: str) -> Mapping[str, Any]:
    # With an empty list of tools the model would get none.
    match server:
        case InsideServer(command=command, args=args, env=env):
            return {
                "type": "local",
                "command": command,
                "args": list(args),
                "env": dict(env),
                "tools": ["*"],
            }
        case RelayedServer(path=path):
            return {
                "type": "http",
                "url": f"{{relay}}{path}",
                "headers": {"Authorization": f"Bearer {token}"},
                "tools": ["*"],
            }


def _session_arguments(session: AgentSession) -> Sequence[str]:
    if session.id is None:
        return ("--continue",)
    # `--session-id` alone would begin a session that is not there, without the history.
    session_id = checked_uuid(session.id, agent="Copilot")
    return (f"--resume={session_id}",) if session.resume else ("--session-id", session_id)

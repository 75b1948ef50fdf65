"""The `copilot` agent: GitHub Copilot's command line, without a person at it and without an account at GitHub.

What is said here of its options, variables and files was seen with version 1.0.102, 2026-11, unless another source stands
there. It has no option for the number of model calls; the broker holds the run's limit.

It speaks Anthropic's protocol with its provider: of the three forms that it knows, that one tells which of the input came from
a cache, and is served by the same part of the broker as the other agents with the same default model.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentTurn
from agent_scripts.agents import claude_model
from agent_scripts.agents.copilot import SPEC
from agent_scripts.agents.copilot.output import CopilotParser
from agent_scripts.cli_agent import (
    CliFiles,
    NpmAdapter,
    SessionArguments,
    inside_entry,
    plain_environment,
    server_table,
)
from agent_scripts.cli_output import UUID

_FIXED_ARGUMENTS = (
    *("--output-format", "json", "--stream", "on", "--no-color"),
    # Its tools may do anything in the sandbox. This does not trust the work tree: the variable COPILOT_ALLOW_ALL=true would, and
    # run its hooks and MCP servers.
    *("--allow-all", "--no-ask-user"),
    *("--disable-builtin-mcps", "--no-auto-update", "--disable-client-telemetry"),
)
_SESSION = SessionArguments(
    called="session id of Copilot",
    form=UUID,
    # This alone would also begin a session that was to be resumed and is not there, without the history.
    begin=("--session-id", "{id}"),
    resume=("--resume={id}",),
    newest=("--continue",),
)
_FIXED_ENV = {
    "COPILOT_PROVIDER_TYPE": "anthropic",
    # No login, telemetry, updates, tools of the web, MCP server of GitHub.
    "COPILOT_OFFLINE": "true",
    "COPILOT_AUTO_UPDATE": "false",
}


class CopilotAdapter(NpmAdapter):
    spec = SPEC
    output = CopilotParser

    @override
    def model_id(self, name: str) -> str:
        return claude_model(name)

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        paths, files = turn.paths, CliFiles(turn)
        prompt_path, token_path = files.add_prompt(before="\n"), files.add_token()
        arguments = list(_FIXED_ARGUMENTS)
        env = {**_FIXED_ENV, **_environment(turn, token_path)}
        if turn.system_prompt.strip():
            folder = f"{paths.run}/instructions"
            text = f'---\napplyTo: "**"\n---\n{turn.system_prompt}'
            files.add(f"{folder}/.github/instructions/orion.instructions.md", text)
            env["COPILOT_CUSTOM_INSTRUCTIONS_DIRS"] = folder
        if turn.mcp_config:
            # A variable in a URL is refused before it is read.
            path = files.add("mcp.json", json.dumps(_mcp_config(turn)), names_relay=True)
            arguments += ["--additional-mcp-config", f"@{path}"]
        arguments += _SESSION.of(turn.session)
        root = paths.environment
        return AgentCommand(
            argv=(
                *(f"{root}/node", f"{root}/unpacked/index.js"),
                *(*arguments, *turn.extra_arguments),
            ),
            env=env,
            files=files.all(),
            stdin_path=prompt_path,
        )


def _environment(turn: AgentTurn, token_path: str) -> Mapping[str, str]:
    paths = turn.paths
    return {
        **plain_environment(paths),
        "COPILOT_HOME": f"{paths.home}/.copilot",
        "COPILOT_PROVIDER_BASE_URL": turn.model_url,
        # Neither the token nor this is in the environment of the commands that the agent runs.
        "COPILOT_PROVIDER_API_KEY_COMMAND": f"cat {shlex.quote(token_path)}",
        "COPILOT_MODEL": turn.model,
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": str(turn.max_output_tokens),
    }


def _mcp_config(turn: AgentTurn) -> Mapping[str, Any]:
    headers = {"Authorization": f"Bearer {turn.run_token}"}
    servers = server_table(
        turn.mcp_config,
        relayed=lambda path: {"type": "http", "url": f"{{relay}}{path}", "headers": headers},
        inside=lambda server: {"type": "local", **inside_entry(server)},
        # With an empty list of tools the model would get none.
        common={"tools": ["*"]},
    )
    return {"mcpServers": servers}

"""The `gemini` agent: Gemini CLI, the vendor's command line, without a person at it.

What is said here of its options, variables and files was seen with version 0.61.0, 2026-11, unless another source stands
there. It has no option for the longest answer; the broker holds the run's limit.
"""

import json
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentTurn
from agent_scripts.agents.gemini import SPEC
from agent_scripts.agents.gemini.output import GeminiParser
from agent_scripts.cli_agent import (
    CliFiles,
    NpmAdapter,
    SessionArguments,
    plain_environment,
    server_table,
)
from agent_scripts.cli_output import UUID

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
_SESSION = SessionArguments(
    called="session id of Gemini CLI",
    form=UUID,
    begin=("--session-id", "{id}"),
    resume=("--resume", "{id}"),
    newest=("--resume", "latest"),
)
_FIXED_ENV = {
    "ORION_RELAY": "{relay}",
    # Otherwise it starts itself again as a child.
    "GEMINI_CLI_NO_RELAUNCH": "true",
}
_MCP_TIMEOUT_MS = 60_000
"""For the start of an MCP server, which the turn waits for, and for each call of a tool: it has one setting for both."""
_UNUSED_TOOLS = ("google_web_search", "web_fetch")
"""They ask other models, or reach the network."""


class GeminiAdapter(NpmAdapter):
    spec = SPEC
    output = GeminiParser

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        paths, files = turn.paths, CliFiles(turn)
        # It takes a first line that begins with a slash for one of its own commands, such as /help.
        prompt_path = files.add_prompt(before="\n")
        files.add(f"{paths.home}/.gemini/settings.json", json.dumps(_settings(turn)))
        # Reports of failed requests, which hold the whole conversation, go to its temporary directory: in here nothing saves
        # them. It must be there.
        files.add("scratch/.keep", "")
        if turn.system_prompt.strip():
            files.add(f"{paths.home}/.gemini/{_INSTRUCTIONS}", turn.system_prompt)
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model, *_SESSION.of(turn.session)]
        root = paths.environment
        return AgentCommand(
            argv=(
                *(f"{root}/node", f"{root}/gemini/bundle/gemini.js"),
                *(*arguments, *turn.extra_arguments),
            ),
            env={
                **plain_environment(paths),
                **_FIXED_ENV,
                _TOKEN: turn.run_token,
                "GOOGLE_GEMINI_BASE_URL": turn.model_url,
                "TMPDIR": f"{paths.run}/scratch",
            },
            files=files.all(),
            stdin_path=prompt_path,
        )


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
        "mcpServers": server_table(
            turn.mcp_config,
            relayed=lambda path: {
                "httpUrl": f"$ORION_RELAY{path}",
                # It puts variables in by itself; a token of one run has no place in a home that is saved.
                "headers": {"Authorization": f"Bearer ${_TOKEN}"},
            },
            common={"trust": True, "timeout": _MCP_TIMEOUT_MS},
        ),
    }

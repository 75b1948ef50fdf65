"""The `opencode` agent: OpenCode, the open command line, without a person at it.

What is said here of its options, variables and files was seen with version 1.18.33, 2026-11, unless another source stands
there. Its packages are pinned for Linux on x86-64 alone.

OPENCODE_DISABLE_PROJECT_CONFIG does not reach its second reader of configuration, which runs every plugin that a work tree has or
names, before anybody was asked. There is no option against it, so a work tree with plugins is refused. A failed call is tried
again 5 times within a minute; there is no option against that either.
"""

import json
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentTurn
from agent_scripts.agents.opencode import SPEC
from agent_scripts.agents.opencode.output import SESSION_ID, OpenCodeParser
from agent_scripts.cli_agent import (
    CliFiles,
    NpmAdapter,
    SessionArguments,
    plain_environment,
    server_table,
)

# It makes the ids of its sessions itself, and tells them in every line.
_SESSION = SessionArguments(
    called="session of OpenCode",
    form=SESSION_ID,
    resume=("--session", "{id}"),
    newest=("--continue",),
)
_CONTEXT_TOKENS = 128_000
"""It shortens a conversation before this; for a model with more room that is early, never wrong."""
_MCP_START_MS = 10_000


class OpenCodeAdapter(NpmAdapter):
    spec = SPEC
    output = OpenCodeParser

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        paths, files = turn.paths, CliFiles(turn)
        prompt_path, token_path = files.add_prompt(), files.add_token()
        system_path = files.add("system.md", turn.system_prompt)
        config = _config(turn, token_path=token_path, system_path=system_path)
        config_path = files.add("opencode.json", json.dumps(config))
        for name, text in _INSTALLED.items():
            files.add(f"config/opencode/{name}", text)
        arguments = [*_FIXED_ARGUMENTS, "--model", _model(turn), *turn.extra_arguments]
        arguments += _SESSION.of(turn.session)
        return AgentCommand(
            argv=(
                *("sh", "-c", _WITHOUT_PLUGINS),
                *(f"{paths.environment}/opencode/bin/opencode", "run", *arguments),
            ),
            env={
                **plain_environment(paths),
                **_FIXED_ENV,
                "OPENCODE_CONFIG": config_path,
                "ORION_OPENAI_URL": f"{turn.model_url}/v1",
                # Where it looks for settings and code of the person's; none of it is the person's here.
                "XDG_CONFIG_HOME": f"{paths.run}/config",
                "OPENCODE_TEST_HOME": f"{paths.run}/no-home",
            },
            files=files.all(),
            stdin_path=prompt_path,
        )


_WITHOUT_PLUGINS = """\
found=
for folder in .opencode/plugin .opencode/plugins; do
    if [ -e "$folder" ] || [ -L "$folder" ]; then found=$folder; fi
done
for file in opencode.json opencode.jsonc .opencode/opencode.json .opencode/opencode.jsonc; do
    if grep -sqi -e plugin -e '\\\\u' "$file"; then found=$file; fi
done
if [ -n "$found" ]; then
    echo "OpenCode would run the plugins of this work tree: $found" >&2
    exit 78
fi
exec "$0" "$@"
"""
"""Or with a name that is written in escapes, which might hide one. The directory is the one that it is started in."""

_FIXED_ARGUMENTS = (
    *("--format", "json", "--pure"),
    # Without a title it asks the model for one.
    *("--title", "Orion"),
    # On stderr: it tells of an MCP server that did not start nowhere else.
    *("--print-logs", "--log-level", "WARN"),
)
_PLUGIN_API = "@opencode-ai/plugin"
_INSTALLED = {
    "package-lock.json": json.dumps({"packages": {"": {"dependencies": {_PLUGIN_API: "*"}}}}),
    "node_modules/none": "",
}
"""Else it installs this package for plugins that it may not have, or asks for it in vain. Source: its `Npm.install`."""
_FIXED_ENV = {
    "ORION_RELAY": "{relay}",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


def _model(turn: AgentTurn) -> str:
    return f"openai/{turn.model}"


def _config(turn: AgentTurn, *, token_path: str, system_path: str) -> Mapping[str, Any]:
    limit = {"context": _CONTEXT_TOKENS, "output": turn.max_output_tokens}
    options = {
        "baseURL": "{env:ORION_OPENAI_URL}",
        # From a file, not from the environment, which every command that the agent runs would inherit.
        "apiKey": f"{{file:{token_path}}}",
    }
    return {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "model": _model(turn),
        "small_model": _model(turn),
        "instructions": [system_path],
        # These two reach the network, and a question waits for a person.
        "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny", "question": "deny"},
        "enabled_providers": ["openai"],
        "provider": {"openai": {"options": options, "models": {turn.model: {"limit": limit}}}},
        "mcp": server_table(
            turn.mcp_config,
            inside=lambda server: {
                "type": "local",
                "command": [server.command, *server.args],
                "environment": dict(server.env),
            },
            relayed=lambda path: {
                "type": "remote",
                "url": f"{{env:ORION_RELAY}}{path}",
                "headers": {"Authorization": f"Bearer {{file:{token_path}}}"},
                "oauth": False,
            },
            common={"enabled": True, "timeout": _MCP_START_MS},
        ),
    }

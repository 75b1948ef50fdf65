"""The `opencode` agent: OpenCode, the open command line, without a person at it.

What is said here of its options, variables and files was seen with version 1.18.33, 2026-11, unless another source stands
there. Its packages are pinned for Linux on x86-64 alone.

OPENCODE_DISABLE_PROJECT_CONFIG does not reach its second reader of configuration, which runs every plugin that a work tree has or
names, before anybody was asked. There is no option against it, so a work tree with plugins is refused. A failed call is tried
again 5 times within a minute; there is no option against that either.
"""

import json
import re
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
from agent_scripts.adapters.opencode_output import OpenCodeParser
from agent_scripts.mcp_servers import InsideServer, RelayedServer, read_servers
from agent_scripts.npm_environment import npm_recipe
from agent_scripts.prompts import render_prompt

_SESSION_ID = re.compile(r"ses_[0-9A-Za-z]{10,40}")
_CONTEXT_TOKENS = 128_000
"""It shortens a conversation before this; for a model with more room that is early, never wrong."""
_MCP_START_MS = 10_000


class OpenCodeAdapter:
    """Implements AgentAdapter."""

    name = "opencode"
    protocol = ModelProtocol.OPENAI
    default_model = "gpt-5.4"
    has_sessions = True
    takes_session_id = False
    reserved_bytes = 64 * 2**30
    """Bun takes all that there is, within 4 GiB it runs out of it."""
    helper_models: Sequence[str] = ()
    """None: its small model is the run's own."""

    def model_id(self, name: str) -> str:
        return name

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        return npm_recipe(self.name, paths)

    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        prompt_path, system_path = f"{paths.run}/prompt.txt", f"{paths.run}/system.md"
        token_path, config_path = f"{paths.run}/token", f"{paths.run}/opencode.json"
        prompt = render_prompt(turn.messages)
        config = _config(turn, token_path=token_path, system_path=system_path)
        files = {
            prompt_path: prompt.encode(),
            token_path: turn.run_token.encode(),
            system_path: turn.system_prompt.encode("utf-8", "replace"),
            config_path: json.dumps(config).encode(),
        }
        arguments = [*_FIXED_ARGUMENTS, "--model", _model(turn), *turn.extra_arguments]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        return AgentCommand(
            argv=(
                *("sh", "-c", _WITHOUT_PLUGINS),
                *(f"{paths.environment}/opencode/bin/opencode", "run", *arguments),
            ),
            env={
                **_FIXED_ENV,
                "HOME": paths.home,
                "OPENCODE_CONFIG": config_path,
                "ORION_OPENAI_URL": f"{turn.model_url}/v1",
                # Where it looks for settings and code of the person's; none of it is the person's here.
                "XDG_CONFIG_HOME": f"{paths.run}/config",
                "OPENCODE_TEST_HOME": f"{paths.run}/no-home",
            },
            files=tuple(AgentFile(path=path, data=data) for path, data in files.items()),
            stdin_path=prompt_path,
        )

    def standby(self, paths: AgentPaths) -> None:
        """It has no way to be told its task later."""
        del paths

    def parser(self) -> EventParser:
        return OpenCodeParser()


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
_FIXED_ENV = {
    "ORION_RELAY": "{relay}",
    "NO_PROXY": "127.0.0.1",
    "LANG": "C.UTF-8",
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
        "mcp": {
            server.name: _mcp_server(server, token_path) for server in read_servers(turn.mcp_config)
        },
    }


def _mcp_server(server: InsideServer | RelayedServer, token_path: str) -> Mapping[str, Any]:
    if isinstance(server, InsideServer):
        how: Mapping[str, Any] = {
            "type": "local",
            "command": [server.command, *server.args],
            "environment": dict(server.env),
        }
    else:
        how = {
            "type": "remote",
            "url": f"{{env:ORION_RELAY}}{server.path}",
            "headers": {"Authorization": f"Bearer {{file:{token_path}}}"},
            "oauth": False,
        }
    return {**how, "enabled": True, "timeout": _MCP_START_MS}


def _session_arguments(session: AgentSession) -> Sequence[str]:
    """It makes the ids of its sessions itself, and tells them in every line."""
    if not session.resume:
        return ()
    if session.id is None:
        return ("--continue",)
    if not _SESSION_ID.fullmatch(session.id):
        raise ValueError(f"not a session of OpenCode: {session.id[:80]!r}")
    return ("--session", session.id)

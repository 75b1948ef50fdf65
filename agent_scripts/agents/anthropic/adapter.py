"""The `anthropic` agent: our own script on the Anthropic SDK, with a shell and an edit tool."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typing_extensions import override

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
)
from agent_scripts.agents import claude_model
from agent_scripts.agents.anthropic import SPEC
from agent_scripts.agents.anthropic.output import AnthropicParser
from agent_scripts.cli_agent import (
    InsideServer,
    RelayedServer,
    inside_entry,
    install_locked,
    pinned_recipe,
    plain_environment,
    read_servers,
)
from agent_scripts.supervision import script_files, script_path, told_path

_INSIDE = "agents/anthropic/inside"
_SCRIPT_FILES = (
    *(f"{_INSIDE}/agent.py", f"{_INSIDE}/lazy_sdk.py", f"{_INSIDE}/tools.py"),
    f"{_INSIDE}/mcp_servers.py",
    *("inside/process_tree.py", "inside/preload.py", "inside/messages.py"),
)
_LOCK = Path(__file__).parent / "environment" / "requirements.lock"
_MODEL_SILENCE_S = 90
_TOOL_TIMEOUT_S = 300
_TOOL_OUTPUT_BYTES = 30_000


class AnthropicAdapter(AgentAdapter):
    spec = SPEC

    @override
    def model_id(self, name: str) -> str:
        return claude_model(name)

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        root = paths.environment
        python, lock = f"{root}/venv/bin/python", _LOCK.read_bytes()
        (version,) = re.findall(rb"^anthropic==(\S+)", lock, re.MULTILINE)
        return pinned_recipe(
            self.name,
            files=(AgentFile(path=f"{root}/requirements.lock", data=lock),),
            commands=(
                *install_locked(root),
                # An inherited PYTHONDONTWRITEBYTECODE would leave each run to compile the SDK anew: seconds.
                (python, "-m", "compileall", "-q", f"{root}/venv/lib"),
                (python, "-c", "import anthropic, mcp"),
            ),
            product=f"anthropic {version.decode()}",
        )

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        request_path, servers_path = f"{paths.run}/request.json", f"{paths.run}/mcp.json"
        servers = [_server(one) for one in read_servers(turn.mcp_config)]
        request = {
            "model": turn.model,
            "system": turn.system_prompt,
            "messages": [asdict(message) for message in turn.messages],
            "max_tokens": turn.max_output_tokens,
            "max_turns": turn.max_turns,
            "silence_timeout_s": _MODEL_SILENCE_S,
            "work": paths.work,
            "told_path": told_path(paths),
            "tool_timeout_s": _TOOL_TIMEOUT_S,
            "tool_output_bytes": _TOOL_OUTPUT_BYTES,
            "servers_path": servers_path if servers else "",
        }
        return AgentCommand(
            argv=(*_script(paths), request_path),
            env={
                "ANTHROPIC_BASE_URL": turn.model_url,
                "ANTHROPIC_API_KEY": turn.run_token,
                **plain_environment(paths),
            },
            # ASCII escapes carry whatever a message holds, lone surrogates too.
            files=(
                AgentFile(path=request_path, data=json.dumps(request).encode("ascii")),
                *(
                    [
                        AgentFile(
                            path=servers_path, data=json.dumps(servers).encode(), names_relay=True
                        )
                    ]
                    if servers
                    else []
                ),
                *script_files(paths, _SCRIPT_FILES),
            ),
        )

    @override
    def preload(self, paths: AgentPaths) -> AgentCommand:
        return AgentCommand(
            argv=_script(paths),
            env=plain_environment(paths),
            files=script_files(paths, _SCRIPT_FILES),
        )

    @override
    def parser(self) -> EventParser:
        return AnthropicParser()


def _server(server: InsideServer | RelayedServer) -> Mapping[str, Any]:
    """Returns a server as `inside/mcp_servers.py` reads it."""
    if isinstance(server, RelayedServer):
        return {"name": server.name, "url": f"{{relay}}{server.path}"}
    return {"name": server.name, **inside_entry(server)}


def _script(paths: AgentPaths) -> tuple[str, str]:
    return f"{paths.environment}/venv/bin/python", script_path(paths, f"{_INSIDE}/agent.py")

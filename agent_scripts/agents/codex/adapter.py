"""The `codex` agent: OpenAI's Codex, the vendor's command line, without a person at it.

What is said here of its options, variables and files was seen with version 0.169.0, 2026-11, unless another source stands
there.
"""

import json
from collections.abc import Mapping

from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentTurn
from agent_scripts.agents.codex import SPEC
from agent_scripts.agents.codex.output import CodexParser
from agent_scripts.cli_agent import (
    CliFiles,
    NpmAdapter,
    SessionArguments,
    Toml,
    plain_environment,
    render_prompt,
    render_toml,
    server_table,
)
from agent_scripts.cli_output import UUID
from agent_scripts.supervision import script_files, script_path, told_path

_SCRIPT_FILES = ("agents/codex/inside/talk.py", "inside/talking.py", "inside/messages.py")
# It makes the ids of its threads itself, and tells them at once.
_SESSION = SessionArguments(called="thread of Codex", form=UUID, resume=("{id}",), newest=("",))
_TOKEN_VARIABLE = "ORION_RUN_TOKEN"  # noqa: S105 - its name
_MAX_RETRIES = 2
_MCP_START_S = 10
"""A server that does not answer by then is left out; until then the turn waits for it."""


class CodexAdapter(NpmAdapter):
    spec = SPEC
    output = CodexParser

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        files = CliFiles(turn)
        codex_home = f"{turn.paths.home}/.codex"
        # Made anew at every start: whatever the agent left there is gone.
        files.add(f"{codex_home}/config.toml", render_toml(_config(turn)), names_relay=True)
        request = {
            "text": render_prompt(turn.messages),
            "images": [image.path for one in turn.messages for image in one.images],
            "options": {"model": turn.model, **_FIXED_OPTIONS},
            "resume": next(iter(_SESSION.of(turn.session)), None),
            "rules": f"{codex_home}/rules",
            "told_path": told_path(turn.paths),
        }
        script = script_path(turn.paths, _SCRIPT_FILES[0])
        return AgentCommand(
            argv=(
                *("python3", "-I", script, files.add("request.json", json.dumps(request))),
                *(f"{turn.paths.environment}/codex/bin/codex", "app-server", "--strict-config"),
                *turn.extra_arguments,
            ),
            env={
                **plain_environment(turn.paths),
                **_FIXED_ENV,
                "CODEX_HOME": codex_home,
                _TOKEN_VARIABLE: turn.run_token,
            },
            files=(*files.all(), *script_files(turn.paths, _SCRIPT_FILES)),
        )


# The sandbox is ours, and nobody is there to be asked.
_FIXED_OPTIONS = {"approvalPolicy": "never", "sandbox": "danger-full-access"}
_FIXED_ENV = {"RUST_LOG": "error"}
_FEATURES_LEFT_OUT = (
    # They reach the network from elsewhere, or wait for a person or an app.
    *("apps", "browser_use", "computer_use", "image_generation", "in_app_browser"),
    # Code and orders that are neither ours nor the person's.
    *("hooks", "plugins", "remote_plugin"),
    # They outlive the turn.
    "goals",
)


def _config(turn: AgentTurn) -> Mapping[str, Toml]:
    instructions = turn.system_prompt.strip().encode("utf-8", "replace").decode()
    return {
        "model_provider": "orion",
        "model_providers": {
            "orion": {
                "name": "Orion",
                "base_url": f"{turn.model_url}/v1",
                "env_key": _TOKEN_VARIABLE,
                "wire_api": "responses",
                "request_max_retries": _MAX_RETRIES,
                "stream_max_retries": _MAX_RETRIES,
            }
        },
        **({"developer_instructions": instructions} if instructions else {}),
        "web_search": "disabled",
        # A login shell would read the profile of the home, and forget our PATH.
        "allow_login_shell": False,
        "check_for_update_on_startup": False,
        "cli_auth_credentials_store": "file",
        "analytics": {"enabled": False},
        "history": {"persistence": "none"},
        "agents": {"enabled": False},
        "skills": {"bundled": {"enabled": False}},
        "features": dict.fromkeys(_FEATURES_LEFT_OUT, False),
        # Of the work tree, AGENTS.md and skills are read; its .codex is not.
        "projects": {turn.paths.work: {"trust_level": "untrusted"}},
        # What the agent runs inherits all but what is ours.
        "shell_environment_policy": {"inherit": "all", "exclude": ["ORION_*", "RUST_LOG"]},
        "mcp_servers": server_table(
            turn.mcp_config,
            relayed=lambda path: {
                "url": f"{{relay}}{path}",
                "bearer_token_env_var": _TOKEN_VARIABLE,
            },
            common={"startup_timeout_sec": _MCP_START_S},
        ),
    }

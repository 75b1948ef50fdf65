"""The `codex` agent: OpenAI's Codex, the vendor's command line, without a person at it.

What is said here of its options, variables and files was seen with version 0.169.0, 2026-11, unless another source stands
there.
"""

import re
from collections.abc import Mapping, Sequence

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
from agent_scripts.adapters.codex_output import CodexParser
from agent_scripts.mcp_servers import InsideServer, RelayedServer, read_servers
from agent_scripts.npm_environment import npm_recipe
from agent_scripts.prompts import render_prompt
from agent_scripts.toml_text import Toml, render_toml

_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN_VARIABLE = "ORION_RUN_TOKEN"  # noqa: S105 - its name
_MAX_RETRIES = 2
_MCP_START_S = 10
"""A server that does not answer by then is left out; until then the turn waits for it."""


class CodexAdapter:
    """Implements AgentAdapter."""

    name = "codex"
    protocol = ModelProtocol.OPENAI
    default_model = "gpt-5.4"
    has_sessions = True
    takes_session_id = False
    reserved_bytes = 0
    helper_models: Sequence[str] = ()
    """None: it asks for no other model than the one it is given."""

    def model_id(self, name: str) -> str:
        return name

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        return npm_recipe(self.name, paths)

    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        codex_home = f"{paths.home}/.codex"
        prompt_path = f"{paths.run}/prompt.txt"
        prompt = render_prompt(turn.messages)
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model, *turn.extra_arguments]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        return AgentCommand(
            argv=(
                *(f"{paths.environment}/codex/bin/codex", "exec"),
                *(*arguments, "-"),
            ),
            env={
                **_FIXED_ENV,
                "HOME": paths.home,
                "CODEX_HOME": codex_home,
                _TOKEN_VARIABLE: turn.run_token,
            },
            files=(
                AgentFile(path=prompt_path, data=prompt.encode()),
                AgentFile(
                    # Made anew at every start: whatever the agent left there is gone.
                    path=f"{codex_home}/config.toml",
                    data=render_toml(_config(turn)).encode(),
                    names_relay=True,
                ),
            ),
            stdin_path=prompt_path,
        )

    def standby(self, paths: AgentPaths) -> None:
        """It takes 0.3 s to start, and has no way to be told its task later."""
        del paths

    def parser(self) -> EventParser:
        return CodexParser()


_FIXED_ARGUMENTS = (
    *("--json", "--strict-config", "--ignore-rules"),
    # The sandbox is ours; this also lets it work outside of a repository.
    "--dangerously-bypass-approvals-and-sandbox",
)
_FIXED_ENV = {
    "NO_PROXY": "127.0.0.1",
    "LANG": "C.UTF-8",
    # Failed MCP servers are told on stderr only, and only at this level.
    "RUST_LOG": "error,codex_mcp::rmcp_client=warn",
}
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
        "mcp_servers": {
            server.name: _mcp_server(server) for server in read_servers(turn.mcp_config)
        },
    }


def _mcp_server(server: InsideServer | RelayedServer) -> Mapping[str, Toml]:
    start: Mapping[str, Toml] = {"startup_timeout_sec": _MCP_START_S}
    match server:
        case InsideServer(command=command, args=args, env=env):
            return {"command": command, "args": list(args), "env": dict(env), **start}
        case RelayedServer(path=path):
            url = f"{{relay}}{path}"
            return {"url": url, "bearer_token_env_var": _TOKEN_VARIABLE, **start}


def _session_arguments(session: AgentSession) -> Sequence[str]:
    """It makes the ids of its threads itself, and tells them at once."""
    if not session.resume:
        return ()
    if session.id is None:
        return ("resume", "--last")
    if not _SESSION_ID.fullmatch(session.id):
        raise ValueError(f"not a thread of Codex: {session.id[:80]!r}")
    return ("resume", session.id)

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
from agent_scripts.toml_text import Toml, render_toml, render_value

_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN_VARIABLE = "ORION_RUN_TOKEN"  # noqa: S105 - its name
_URL_VARIABLE = "ORION_CODEX_URL_{}"
_ELSEWHERE_URL = "http://127.0.0.1:9/given-on-the-command-line"
_MAX_RETRIES = 2
_MCP_START_S = 10
"""A server that does not answer by then is left out; until then the turn waits for it."""


class CodexAdapter:
    """Implements AgentAdapter."""

    name = "codex"
    protocol = ModelProtocol.OPENAI
    default_model = "gpt-5.4"
    has_sessions = True
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
        is_resumed = turn.session is not None and turn.session.resume
        prompt = render_prompt(turn.messages, with_history=not is_resumed)
        servers = read_servers(turn.mcp_config)
        files = {
            prompt_path: prompt.encode(),
            # Its own config.toml, made anew at every start: whatever the agent left there is gone.
            f"{codex_home}/config.toml": render_toml(_config(turn, servers)).encode(),
        }
        urls = _urls(turn, servers)
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model, *turn.extra_arguments]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        return AgentCommand(
            argv=(
                *("sh", "-c", _script(urls), f"{paths.environment}/codex/bin/codex"),
                *("exec", *arguments, "-"),
            ),
            env={
                **_FIXED_ENV,
                **urls,
                "HOME": paths.home,
                "CODEX_HOME": codex_home,
                _TOKEN_VARIABLE: turn.run_token,
            },
            files=tuple(AgentFile(path=path, data=data) for path, data in files.items()),
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
    "ORION_RELAY": "{relay}",
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


def _config(turn: AgentTurn, servers: Sequence[InsideServer | RelayedServer]) -> Mapping[str, Toml]:
    """All but the URLs: the relay's port is known in the sandbox alone."""
    instructions = turn.system_prompt.strip().encode("utf-8", "replace").decode()
    return {
        "model_provider": "orion",
        "model_providers": {
            "orion": {
                "name": "Orion",
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
        "mcp_servers": {server.name: _mcp_server(server) for server in servers},
    }


def _mcp_server(server: InsideServer | RelayedServer) -> Mapping[str, Toml]:
    # Without a URL of some kind the file is refused, before the one from the command line is looked at.
    table: Mapping[str, Toml] = {
        "url": _ELSEWHERE_URL,
        "bearer_token_env_var": _TOKEN_VARIABLE,
    }
    if isinstance(server, InsideServer):
        table = {"command": server.command, "args": list(server.args), "env": dict(server.env)}
    return {**table, "startup_timeout_sec": _MCP_START_S}


def _urls(turn: AgentTurn, servers: Sequence[InsideServer | RelayedServer]) -> Mapping[str, str]:
    """Settings with URLs, as variables: in their values the relay's own is put in."""
    found = {"model_providers.orion.base_url": f"{turn.model_url}/v1"}
    for server in servers:
        if isinstance(server, RelayedServer):
            found[f"mcp_servers.{server.name}.url"] = f"{{relay}}{server.path}"
    return {
        _URL_VARIABLE.format(number): f"{key}={render_value(url)}"
        for number, (key, url) in enumerate(found.items())
    }


def _script(variables: Mapping[str, str]) -> str:
    """A constant but for the number of variables; all that is given goes through it as it is."""
    settings = " ".join(f'-c "${name}"' for name in variables)
    return f'exec "$0" {settings} "$@"'


def _session_arguments(session: AgentSession) -> Sequence[str]:
    """It makes the ids of its threads itself, and tells them at once."""
    if not session.resume:
        return ()
    if not _SESSION_ID.fullmatch(session.id):
        raise ValueError(f"not a thread of Codex: {session.id[:80]!r}")
    return ("resume", session.id)

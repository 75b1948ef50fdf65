"""The `claude` agent: Claude Code, the vendor's command line, without a person at it.

What is said here of its options, variables and files was seen with version 2.1.330, 2026-11, unless another source stands
there.
"""

import json
import re
import shlex
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
from agent_scripts.adapters.claude_code_output import ClaudeCodeParser
from agent_scripts.claude_models import DEFAULT_MODEL, claude_model
from agent_scripts.interactive import InteractiveCommand
from agent_scripts.npm_environment import npm_recipe
from agent_scripts.prompts import render_prompt

_WINDOW = re.compile(r"\[1m\]$", re.IGNORECASE)
"""Behind a model's name it asks for the larger window; the CLI takes it off before it asks for the model."""
_TOOLS = ("Bash", "Edit", "NotebookEdit", "Read", "Task", "Write")
"""Those that do their work in the sandbox within the turn.

Left out: WebSearch and WebFetch reach the network from elsewhere, AskUserQuestion and plans wait for a person, schedules and
monitors outlive the turn. The full set also costs some 11,000 tokens of every request.
"""
_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_RETRIES = 2


class ClaudeCodeAdapter:
    """Implements AgentAdapter."""

    name = "claude"
    protocol = ModelProtocol.ANTHROPIC
    default_model = DEFAULT_MODEL
    has_sessions = True
    takes_session_id = True
    reserved_bytes = 0
    helper_models: Sequence[str] = ()
    """None: the command's environment points every helper of the CLI to the run's own model."""

    def model_id(self, name: str) -> str:
        return claude_model(_WINDOW.sub("", name))

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        return npm_recipe(self.name, paths)

    def command(self, turn: AgentTurn) -> AgentCommand:
        paths = turn.paths
        prompt_path = f"{paths.run}/prompt.txt"
        token_path = f"{paths.run}/token"
        system_path = f"{paths.run}/system.md"
        mcp_path = f"{paths.run}/mcp.json"
        prompt = render_prompt(turn.messages)
        # The CLI takes a first line that begins with a slash for one of its own commands, such as /clear.
        files = {prompt_path: f"\n{prompt}".encode(), token_path: turn.run_token.encode()}
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model, "--max-turns", str(turn.max_turns)]
        if turn.system_prompt.strip():
            files[system_path] = turn.system_prompt.encode("utf-8", "replace")
            arguments += ["--append-system-prompt-file", system_path]
        if turn.mcp_config:
            files[mcp_path] = turn.mcp_config.replace(_RUN_TOKEN, turn.run_token.encode())
            arguments += [f"--mcp-config={mcp_path}"]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        arguments += ["--settings", _key_settings(token_path), *turn.extra_arguments]
        return AgentCommand(
            argv=(f"{paths.environment}/claude-code/claude", *arguments),
            env={**_FIXED_ENV, **_environment(turn)},
            files=tuple(AgentFile(path=path, data=data) for path, data in files.items()),
            stdin_path=prompt_path,
        )

    def interactive(self, turn: AgentTurn) -> InteractiveCommand:
        paths = turn.paths
        token_path = f"{paths.run}/token"
        arguments = [*_INTERACTIVE_ARGUMENTS, "--model", turn.model]
        if turn.session is not None:
            arguments += _session_arguments(turn.session)
        arguments += ["--settings", _key_settings(token_path)]
        return InteractiveCommand(
            command=AgentCommand(
                argv=(f"{paths.environment}/claude-code/claude", *arguments),
                env={**_FIXED_ENV, **_environment(turn)},
                files=(AgentFile(path=token_path, data=turn.run_token.encode()),),
            ),
            settings={
                f"{paths.home}/.claude/.claude.json": {
                    "hasCompletedOnboarding": True,
                    "projects": {paths.work: {"hasTrustDialogAccepted": True}},
                }
            },
        )

    def standby(self, paths: AgentPaths) -> None:
        """It takes 0.3 s to start, and has no way to be told its task later."""
        del paths

    def parser(self) -> EventParser:
        return ClaudeCodeParser()


_RUN_TOKEN = b"{run_token}"
_FIXED_ARGUMENTS = (
    *("--print", "--output-format", "stream-json", "--verbose", "--include-partial-messages"),
    *("--permission-mode", "bypassPermissions", f"--tools={','.join(_TOOLS)}"),
    # No settings, hooks, commands, skills, MCP servers or CLAUDE.md of the work tree or the home. Neither --bare nor --safe-mode
    # is enough: with either, `env` in a repository's .claude/settings.json still sent the requests elsewhere.
    *("--setting-sources=", "--strict-mcp-config", "--disable-slash-commands"),
)
# A person is asked before a tool is used; of the work tree, still nothing is obeyed.
_INTERACTIVE_ARGUMENTS = (
    *("--permission-mode", "default", f"--tools={','.join(_TOOLS)}"),
    *("--setting-sources=", "--strict-mcp-config"),
)
_FIXED_ENV = {
    "ORION_RELAY": "{relay}",
    "NO_PROXY": "127.0.0.1",
    "LANG": "C.UTF-8",
    # It refuses to skip permissions as root without this word that it is in a sandbox.
    "IS_SANDBOX": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": str(_MAX_RETRIES),
    # A command left in the background would outlive the answer, and end with the sandbox unheard.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # What it remembers of a thread is its session; notes of its own would be read as orders by every later one.
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    # `@path` in a message is what a person wrote, not a file to attach.
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    # Without this, MCP tools hide behind a search tool that not every gateway knows.
    "ENABLE_TOOL_SEARCH": "false",
    # For the start of an MCP server, in ms; until then the turn waits.
    "MCP_TIMEOUT": "10000",
}
_MODEL_VARIABLES = (
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


def _key_settings(token_path: str) -> str:
    """The token comes from a file, not from the environment, which every command that the agent runs would inherit."""
    return json.dumps({"apiKeyHelper": f"cat {shlex.quote(token_path)}"})


def _environment(turn: AgentTurn) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": turn.model_url,
        "HOME": turn.paths.home,
        "CLAUDE_CONFIG_DIR": f"{turn.paths.home}/.claude",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(turn.max_output_tokens),
        **dict.fromkeys(_MODEL_VARIABLES, turn.model),
    }


def _session_arguments(session: AgentSession) -> Sequence[str]:
    if session.id is None:
        return ("--continue",)
    # Nothing but the plain form: the same number can be written with braces, or as a URN.
    if not _SESSION_ID.fullmatch(session.id):
        raise ValueError(f"not a session id of Claude Code: {session.id[:80]!r}")
    return ("--resume" if session.resume else "--session-id", session.id)

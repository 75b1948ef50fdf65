"""The `claude` agent: Claude Code, the vendor's command line, without a person at it.

What is said here of its options, variables and files was seen with version 2.1.330, 2026-11, unless another source stands
there.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from typing_extensions import override

from agent_scripts.adapter import AgentCommand, AgentTurn
from agent_scripts.agents import claude_model
from agent_scripts.agents.claude import SPEC
from agent_scripts.agents.claude.output import ClaudeCodeParser
from agent_scripts.cli_agent import (
    RUN_TOKEN,
    CliFiles,
    NpmAdapter,
    SessionArguments,
    plain_environment,
    render_prompt,
)
from agent_scripts.cli_output import UUID
from agent_scripts.supervision import InteractiveCommand, script_files, script_path, told_path

_WINDOW = re.compile(r"\[1m\]$", re.IGNORECASE)
"""Behind a model's name it asks for the larger window; the CLI takes it off before it asks for the model."""
_TOOLS = ("Bash", "Edit", "NotebookEdit", "Read", "Task", "Write")
"""Those that do their work in the sandbox within the turn.

Left out: WebSearch and WebFetch reach the network from elsewhere, AskUserQuestion (for which `ask_person` stands) and plans wait for a
person, schedules and monitors outlive the turn. The full set also costs some 11,000 tokens of every request.
"""
_SESSION = SessionArguments(
    called="session id of Claude Code",
    form=UUID,
    begin=("--session-id", "{id}"),
    resume=("--resume", "{id}"),
    newest=("--continue",),
)
_MAX_RETRIES = 2
_SCRIPT_FILES = ("agents/claude/inside/talk.py", "inside/talking.py", "inside/messages.py")


class ClaudeCodeAdapter(NpmAdapter):
    spec = SPEC
    output = ClaudeCodeParser

    @override
    def model_id(self, name: str) -> str:
        return claude_model(_WINDOW.sub("", name))

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        files = CliFiles(turn)
        images = [asdict(image) for one in turn.messages for image in one.images]
        # The CLI takes a first line that begins with a slash for one of its own commands, such as /clear.
        message = {"text": f"\n{render_prompt(turn.messages)}", "images": images}
        request = {"message": message, "told_path": told_path(turn.paths)}
        request_path, token_path = files.add("request.json", json.dumps(request)), files.add_token()
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model, "--max-turns", str(turn.max_turns)]
        if turn.system_prompt.strip():
            path = files.add("system.md", turn.system_prompt)
            arguments += ["--append-system-prompt-file", path]
        if turn.mcp_config:
            config = turn.mcp_config.decode().replace(RUN_TOKEN, turn.run_token)
            arguments += [f"--mcp-config={files.add('mcp.json', config)}"]
        arguments += [*_SESSION.of(turn.session), "--settings", _key_settings(token_path)]
        return AgentCommand(
            argv=(
                *("python3", "-I", script_path(turn.paths, _SCRIPT_FILES[0]), request_path),
                *(*_program(turn), *arguments, *turn.extra_arguments),
            ),
            env={**_FIXED_ENV, **_environment(turn)},
            files=(*files.all(), *script_files(turn.paths, _SCRIPT_FILES)),
        )

    def interactive(self, turn: AgentTurn) -> InteractiveCommand:
        paths, files = turn.paths, CliFiles(turn)
        arguments = [*_INTERACTIVE_ARGUMENTS, "--model", turn.model, *_SESSION.of(turn.session)]
        arguments += ["--settings", _key_settings(files.add_token())]
        return InteractiveCommand(
            command=AgentCommand(
                argv=(*_program(turn), *arguments),
                env={**_FIXED_ENV, **_environment(turn)},
                files=files.all(),
            ),
            settings={
                f"{paths.home}/.claude/.claude.json": {
                    "hasCompletedOnboarding": True,
                    "projects": {paths.work: {"hasTrustDialogAccepted": True}},
                }
            },
        )


_FIXED_ARGUMENTS = (
    *("--print", "--output-format", "stream-json", "--verbose", "--include-partial-messages"),
    *("--input-format", "stream-json"),
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
    *("ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_FABLE_MODEL"),
    *("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL"),
    *("ANTHROPIC_DEFAULT_SONNET_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
)


def _program(turn: AgentTurn) -> Sequence[str]:
    return (f"{turn.paths.environment}/claude-code/claude",)


def _key_settings(token_path: str) -> str:
    """Names the file with the token; the environment is inherited by every command that the agent runs."""
    return json.dumps({"apiKeyHelper": f"cat {shlex.quote(token_path)}"})


def _environment(turn: AgentTurn) -> Mapping[str, str]:
    return {
        **plain_environment(turn.paths),
        "ANTHROPIC_BASE_URL": turn.model_url,
        "CLAUDE_CONFIG_DIR": f"{turn.paths.home}/.claude",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(turn.max_output_tokens),
        **dict.fromkeys(_MODEL_VARIABLES, turn.model),
    }

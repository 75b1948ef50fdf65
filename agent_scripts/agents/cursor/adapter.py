"""The `cursor` agent: Cursor's command line. EXPERIMENTAL: nobody here ever ran it.

All here is from documentation, and tested with an executable that replays its shapes. Neither an installation nor an answer of
the real one has been seen. It differs from all other agents:

- It cannot be told a base URL: it speaks to its maker's servers, not to the broker. Its REAL key is in the sandbox, where
  everything that it runs can read it, and its sandbox needs a way to those servers. The operator must allow both.
- Models, calls, tokens and money are not checked and not counted by Orion.
- Its maker's installer takes the newest version; there is nothing to pin it by.

Source: cursor.com/docs/cli, "Headless", "Output format", "Parameters", "MCP" and "Installation", read 2026-11.
"""

import json

from typing_extensions import override

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentPaths,
    AgentTurn,
    EnvironmentRecipe,
    EventParser,
)
from agent_scripts.agents.cursor import SPEC
from agent_scripts.agents.cursor.output import SESSION_ID, CursorParser
from agent_scripts.cli_agent import (
    CliFiles,
    SessionArguments,
    pinned_recipe,
    plain_environment,
    render_prompt,
    server_table,
)

_SESSION = SessionArguments(
    called="session id of Cursor",
    form=SESSION_ID,
    resume=("--resume", "{id}"),
    newest=("--continue",),
)
_INSTALL = "curl https://cursor.com/install -fsS | bash"
_FIXED_ARGUMENTS = (
    *("--print", "--output-format", "stream-json"),
    # It refuses to work without the first, writes no file without the second, uses no MCP server without the third.
    *("--trust", "--force", "--approve-mcps"),
)
_MAX_PROMPT_BYTES = 120_000
"""It takes a prompt as an argument only, and Linux has a limit for one: 128 KiB. Source: execve(2), MAX_ARG_STRLEN."""


class CursorAdapter(AgentAdapter):
    spec = SPEC

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        root = paths.environment
        command = ("env", f"HOME={root}", "bash", "-o", "pipefail", "-c", _INSTALL)
        check = (f"{root}/.local/bin/cursor-agent", "--version")
        return pinned_recipe(self.name, files=(), commands=(command, check))

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        """Returns how to answer this turn.

        Raises:
            ValueError: the session id is none that the agent could have; its key is missing; the message is too long for it.
        """
        if not turn.vendor_key:
            raise ValueError("cursor has no key: it may not be in the sandbox, or is not set")
        paths, files = turn.paths, CliFiles(turn)
        prompt = _prompt(turn)
        arguments = [*_FIXED_ARGUMENTS, "--model", turn.model, *_SESSION.of(turn.session)]
        # A token of one run has no place in a home that is saved.
        servers = server_table(
            turn.mcp_config,
            relayed=lambda path: {
                "url": f"${{env:ORION_RELAY}}{path}",
                "headers": {"Authorization": "Bearer ${env:ORION_RUN_TOKEN}"},
            },
        )
        files.add(f"{paths.home}/.cursor/mcp.json", json.dumps({"mcpServers": servers}))
        return AgentCommand(
            argv=(
                f"{paths.environment}/.local/bin/cursor-agent",
                # A prompt that begins with a dash is none of its options.
                *(*arguments, *turn.extra_arguments, "--", prompt),
            ),
            env={
                **plain_environment(paths),
                "ORION_RELAY": "{relay}",
                "CURSOR_API_KEY": turn.vendor_key,
                "ORION_RUN_TOKEN": turn.run_token,
            },
            files=files.all(),
        )

    @override
    def parser(self) -> EventParser:
        return CursorParser()


def _prompt(turn: AgentTurn) -> str:
    """Returns the message behind as much of the history as an argument can hold."""
    # It has no option for instructions but files in the work tree.
    instructions = f"{turn.system_prompt.strip()}\n\n" if turn.system_prompt.strip() else ""
    for first in range(len(turn.messages)):
        prompt = instructions + render_prompt(turn.messages[first:])
        if len(prompt.encode()) <= _MAX_PROMPT_BYTES:
            return prompt
    raise ValueError(f"cursor takes at most {_MAX_PROMPT_BYTES} bytes of a message")

"""The real Claude Code in a real local sandbox: files, memory, failures, nothing of the work tree in charge."""

import json
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentSession
from agent_scripts.agents.claude.adapter import ClaudeCodeAdapter
from agent_scripts.events import AgentErrorCode, ToolStarted
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import Sandbox
from tests.agents.agent_rig import AgentRig, open_rig

pytestmark = [pytest.mark.agents, pytest.mark.bubblewrap, pytest.mark.timeout(420)]

_SESSION = "5e551000-0000-4000-8000-000000000001"
_SETTINGS = {
    "env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"},
    "hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch /work/hooked"}]}]},
}
_HOSTILE = {
    "CLAUDE.md": b"planted words",
    ".claude/settings.json": json.dumps(_SETTINGS).encode(),
    ".claude/settings.local.json": json.dumps(_SETTINGS).encode(),
    ".claude/commands/hello.md": b"planted words",
    ".mcp.json": b'{"mcpServers":{"evil":{"command":"touch","args":["/work/started"]}}}',
    "/home/agent/.claude/settings.json": json.dumps(_SETTINGS).encode(),
    "/home/agent/.claude/CLAUDE.md": b"planted words",
}


@pytest.mark.long
async def test_claude_code(tmp_path: Path) -> None:
    """Installed once, then: a file and a follow-up that remembers, an unknown session, a hostile work tree, a secret token."""
    async with open_rig(tmp_path / "state", ClaudeCodeAdapter()) as rig:
        await _writes_a_file_and_remembers(rig)
        async with open_sandbox(rig.provider, rig.spec()) as sandbox:
            await _begins_anew_without_its_session(rig, sandbox)
            await _obeys_no_work_tree(rig, sandbox)
            await _shows_no_token(rig, sandbox)
            await _takes_any_prompt(rig, sandbox)


async def _writes_a_file_and_remembers(rig: AgentRig) -> None:
    """The follow-up, in a sandbox made from the first one's snapshot, finds its file and its session."""
    async with open_sandbox(rig.provider, rig.spec()) as sandbox:
        session = AgentSession(id=_SESSION, resume=False)
        first = await rig.ask(sandbox, "edit: notes.txt", session=session)
        assert first.finished.error is None, first.finished.detail
        assert first.finished.agent_session_id == _SESSION
        assert [event.name for event in first.events if isinstance(event, ToolStarted)] == ["Write"]
        assert await sandbox.read_file("notes.txt") == b"Written by Orion's offline model.\n"
        assert {call.model for call in first.calls} == {rig.adapter.spec.default_model}
        assert sum(call.usage.output_tokens for call in first.calls) > 0
        saved = await sandbox.snapshot()
    async with open_sandbox(rig.provider, rig.spec(saved.id)) as sandbox:
        session = AgentSession(id=_SESSION, resume=True)
        second = await rig.ask(sandbox, "run: cat notes.txt", session=session)
        assert "Written by Orion's offline model." in second.finished.text
        third = await rig.ask(sandbox, "and now?", session=session)
        assert "Before that you wrote: “run: cat notes.txt”" in third.finished.text
        fourth = await rig.ask(sandbox, "go on", session=AgentSession(id=None, resume=True))
        assert fourth.finished.agent_session_id == _SESSION
        assert "Before that you wrote: “and now?”" in fourth.finished.text


async def _begins_anew_without_its_session(rig: AgentRig, sandbox: Sandbox) -> None:
    """A session that is not there is told as such, without a model call; the history then goes before the message."""
    texts = ("my name is Ada", "Nice to meet you.", "what is my name?")
    lost = await rig.ask(sandbox, *texts, session=AgentSession(id=_SESSION, resume=True))
    assert lost.finished.error is AgentErrorCode.SESSION_NOT_FOUND
    assert lost.calls == []
    anew = await rig.ask(sandbox, *texts, session=AgentSession(id=_SESSION, resume=False))
    assert "You wrote: “what is my name?”" in anew.finished.text
    assert "Before that you wrote: “my name is Ada”" in anew.finished.text


async def _obeys_no_work_tree(rig: AgentRig, sandbox: Sandbox) -> None:
    """Hooks, settings, MCP servers and instructions that lie in the work tree or the home do nothing."""
    await sandbox.write_files(_HOSTILE)
    turn = await rig.ask(sandbox, "hello")
    assert turn.finished.error is None, turn.finished.detail
    assert "planted" not in "".join(turn.lines)
    listed = await sandbox.exec(["ls", "/work"], timeout_s=10)
    assert listed.text.split() == ["CLAUDE.md"]


async def _shows_no_token(rig: AgentRig, sandbox: Sandbox) -> None:
    """A command of the agent that prints its environment does not print the run token."""
    turn = await rig.ask(sandbox, "run: env")
    assert "HOME=/home/agent" in turn.finished.text
    assert "sk-ant-" not in turn.finished.text


async def _takes_any_prompt(rig: AgentRig, sandbox: Sandbox) -> None:
    """Options, quotes, substitutions, file mentions, commands of the CLI and great length are a message like any other."""
    odd = "--help \"$(id)\" `id` '@CLAUDE.md' \0"
    for text in (odd, "/clear", "/compact now", "a\n/cost", "x" * 200_000):
        turn = await rig.ask(sandbox, text)
        assert turn.finished.error is None, turn.finished.detail
        shown = " ".join(text.replace("\0", "").split())[:150]
        assert f"You wrote: “{shown}" in turn.finished.text

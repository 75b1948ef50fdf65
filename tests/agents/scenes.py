"""What every command line of an agent must do in a real sandbox; for those that make the ids of their sessions themselves."""

from agent_scripts.adapter import AgentSession
from agent_scripts.events import AgentErrorCode, ToolStarted
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import Sandbox
from tests.agents.agent_rig import AgentRig


async def writes_a_file_and_remembers(rig: AgentRig) -> None:
    """The follow-up, in a sandbox made from the first one's snapshot, finds its file and its session."""
    async with open_sandbox(rig.provider, rig.spec()) as sandbox:
        first = await rig.ask(sandbox, "edit: notes.txt")
        assert first.finished.error is None, first.finished.detail
        assert [event for event in first.events if isinstance(event, ToolStarted)]
        assert await sandbox.read_file("notes.txt") == b"Written by Orion's offline model.\n"
        assert {call.model for call in first.calls} == {rig.adapter.spec.default_model}
        assert sum(call.usage.output_tokens for call in first.calls) > 0
        saved = await sandbox.snapshot()
    session_id = first.finished.agent_session_id
    assert session_id is not None
    async with open_sandbox(rig.provider, rig.spec(saved.id)) as sandbox:
        session = AgentSession(id=session_id, resume=True)
        second = await rig.ask(sandbox, "and now?", session=session)
        assert second.finished.error is None, second.finished.detail
        assert second.finished.agent_session_id == session_id
        assert "Before that you wrote: “edit: notes.txt”" in second.finished.text
        third = await rig.ask(sandbox, "go on", session=AgentSession(id=None, resume=True))
        assert third.finished.error is None, third.finished.detail
        assert third.finished.agent_session_id == session_id
        assert "Before that you wrote: “and now?”" in third.finished.text


async def begins_anew_without_its_session(rig: AgentRig, sandbox: Sandbox, unknown: str) -> None:
    """A session that is not there is told as such, without a model call; the history then goes before the message."""
    texts = ("my name is Ada", "Nice to meet you.", "what is my name?")
    lost = await rig.ask(sandbox, *texts, session=AgentSession(id=unknown, resume=True))
    assert lost.finished.error is AgentErrorCode.SESSION_NOT_FOUND
    assert lost.calls == []
    anew = await rig.ask(sandbox, *texts, session=AgentSession(id=unknown, resume=False))
    assert "You wrote: “what is my name?”" in anew.finished.text
    assert "my name is Ada" in anew.finished.text


async def shows_no_token(rig: AgentRig, sandbox: Sandbox) -> None:
    """A command of the agent that prints its environment does not print the run token."""
    turn = await rig.ask(sandbox, "run: env")
    assert "HOME=/home/agent" in turn.finished.text
    assert "sk-ant-" not in turn.finished.text
    assert "RUN_TOKEN" not in turn.finished.text


async def takes_any_prompt(rig: AgentRig, sandbox: Sandbox) -> None:
    """Options, quotes, substitutions and commands of a CLI are a message like any other."""
    odd = "--help \"$(id)\" `id` '@AGENTS.md' \0"
    for text in (odd, "/clear"):
        turn = await rig.ask(sandbox, text)
        assert turn.finished.error is None, turn.finished.detail
        assert f"You wrote: “{' '.join(text.replace(chr(0), '').split())}" in turn.finished.text

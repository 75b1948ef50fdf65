"""Claude Code answers in Slack: its files and its memory last from question to question."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir
from tests.e2e.secret_scan import KEYS, scan
from tests.e2e.test_sandbox_shell import name_of
from tests.e2e.typing_person import sitting_at

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="session")
def prepared_claude() -> Path:
    return prepared_state_dir("claude")


async def test_a_turn_changes_a_file_and_the_next_one_knows(
    prepared_claude: Path, tmp_path: Path
) -> None:
    """The diff is in the thread; the follow-up resumes the session in a new sandbox, and when that is lost, goes on without."""
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), prepared_claude, ORION_AGENT="claude") as stage,
    ):
        ts = await stage.client.say("@Orion remember 4711\nedit: notes.txt")
        answer = await stage.answer(ts)
        assert "1 file changed" in str(answer["blocks"])
        shared = await stage.client.wait_for_reply(ts, lambda reply: bool(reply.get("files")))
        assert shared["files"][0]["name"].endswith(".patch")
        first = await stage.record(ts)
        assert (first.agent, first.result.changes is not None) == ("claude", True)
        assert first.result.cost_usd is not None
        assert first.result.hosts == ()
        second = await stage.client.say("@Orion run: cat notes.txt", thread_ts=ts)
        assert "No such file" not in text_of(await stage.answer(second, thread_ts=ts))
        third = await stage.client.say("@Orion what did I ask before?", thread_ts=ts)
        assert "cat notes.txt" in text_of(await stage.answer(third, thread_ts=ts))
        assert stage.orion.log_lines("agent.session_lost") == []
        lost = await stage.client.say("@Orion run: rm -rf ~/.claude/projects", thread_ts=ts)
        await stage.answer(lost, thread_ts=ts)
        again = await stage.client.say("@Orion and before that?", thread_ts=ts)
        assert "offline model" in text_of(await stage.answer(again, thread_ts=ts))
        assert (await stage.record(again)).result.error_code is None
        assert await scan(stage, KEYS, there="Written by Orion's offline", thread_ts=ts)


@pytest.mark.long
async def test_a_person_goes_on_at_a_terminal(prepared_claude: Path, tmp_path: Path) -> None:
    """With the thread's files and the agent's memory of it, before a broker of the command's own; the next question finds both."""
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), prepared_claude, ORION_AGENT="claude") as stage,
    ):
        ts = await stage.client.say("@Orion the word is heron; run: echo 4711 > notes.txt")
        await stage.answer(ts)
        name = await name_of(stage)
        code, said = await stage.cli("sandboxes", "resume", name, "--interactive")
        assert (code, "needs a terminal" in said) == (1, True)
        async with sitting_at(stage, "sandboxes", "resume", name, "--interactive") as person:
            before = person.settings
            await person.sees("its memory of the thread")
            await person.sees("heron")
            await person.types("! echo by hand >> notes.txt; echo done $((40 + 2))")
            await asyncio.sleep(1)
            await person.types("\r")
            await person.sees("42")
            await person.types("what did I ask before?")
            await asyncio.sleep(1)
            await person.types("\r")
            await person.sees("offline")
            await person.types("/exit")
            await asyncio.sleep(1)
            await person.types("\r")
            assert await person.leaves() == 0
            assert f"{name}: saved" in person.shown
            assert person.settings == before
        second = await stage.client.say("@Orion run: cat notes.txt", thread_ts=ts)
        assert "4711\nby hand" in text_of(await stage.answer(second, thread_ts=ts))
        assert stage.orion.log_lines("agent.session_lost") == []
        assert not list(stage.orion.state_dir.glob("resume-*"))

"""Claude Code answers in Slack: its files and its memory last from question to question."""

from pathlib import Path

import pytest

from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

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
        assert (first.agent, first.changes is not None) == ("claude", True)
        assert first.cost_usd is not None
        second = await stage.client.say("@Orion run: cat notes.txt", thread_ts=ts)
        assert "No such file" not in text_of(await stage.answer(second, thread_ts=ts))
        third = await stage.client.say("@Orion what did I ask before?", thread_ts=ts)
        assert "cat notes.txt" in text_of(await stage.answer(third, thread_ts=ts))
        assert stage.orion.log_lines("agent.session_lost") == []
        lost = await stage.client.say("@Orion run: rm -rf ~/.claude/projects", thread_ts=ts)
        await stage.answer(lost, thread_ts=ts)
        again = await stage.client.say("@Orion and before that?", thread_ts=ts)
        assert "offline model" in text_of(await stage.answer(again, thread_ts=ts))
        assert (await stage.record(again)).error_code is None

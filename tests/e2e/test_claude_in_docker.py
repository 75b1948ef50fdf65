"""Claude Code answers in Slack from a hardened container."""

import json
from pathlib import Path

import pytest

from tests.e2e.docker_world import open_docker_orion, prepared_image
from tests.e2e.harness import open_world, text_of
from tests.e2e.orion_process import new_state_dir

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.docker,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="session")
def claude_image() -> str:
    return prepared_image("claude")


async def test_a_turn_changes_a_file_and_the_next_one_knows(
    claude_image: str, tmp_path: Path
) -> None:
    """The diff is in the thread; the follow-up, in a new container, finds the file and resumes the session; Stop ends it."""
    async with (
        open_world() as world,
        open_docker_orion(
            world, new_state_dir(tmp_path), claude_image, ORION_AGENT="claude"
        ) as stage,
    ):
        ts = await stage.client.say("@Orion remember 4711\nedit: notes.txt")
        answer = await stage.answer(ts)
        assert "1 file changed" in str(answer["blocks"])
        shared = await stage.client.wait_for_reply(ts, lambda reply: bool(reply.get("files")))
        assert shared["files"][0]["name"].endswith(".patch")
        code, patch = await stage.cli("runs", "show", stage.run_id(ts), "--patch")
        assert code == 0
        assert "+Written by Orion's offline model." in patch
        first = await stage.record(ts)
        assert (first.agent, first.result.cost_usd is not None) == ("claude", True)

        second = await stage.client.say("@Orion run: id -u; cat notes.txt", thread_ts=ts)
        said = text_of(await stage.answer(second, thread_ts=ts))
        assert "10001" in said
        assert "Written by Orion's offline model." in said
        assert stage.orion.log_lines("agent.session_lost") == []

        slow = await stage.client.say("@Orion run: sleep 300", thread_ts=ts)
        await stage.client.wait_for_reply(
            ts, lambda reply: reply["ts"] > slow and "sleep 300" in str(reply["blocks"])
        )
        await stage.client.say("stop", thread_ts=ts)
        stopped = await stage.answer(slow, thread_ts=ts)
        assert "Stopped by" in json.dumps(stopped["blocks"])

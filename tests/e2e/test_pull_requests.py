"""A pull request lives in its thread: checks, reviews and its end are told there, and Fix it lets the agent go on in the same workspace."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.playground.slack.types import COLLEAGUE, TEAM_ID
from app.pull_requests.records import pull_id
from app.runs.testing import Run, run_id_for
from tests.e2e.harness import Stage, text_of
from tests.e2e.repositories import open_with_repositories
from tests.git_server import TOKEN, GitServer, git

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.long,
    pytest.mark.timeout(300),
]

TOLD_S = 60.0
"""Within a minute."""


async def _told(stage: Stage, ts: str, words: str) -> dict[str, Any]:
    """Returns the message of the thread that has these words; there is one."""
    async with asyncio.timeout(TOLD_S):
        while True:
            replies = await stage.client.replies(ts)
            if found := [one for one in replies if words in _whole(one)]:
                (message,) = found
                return message
            await asyncio.sleep(0.2)


async def _ended(stage: Stage, notice: int) -> Run:
    """Returns the run that does something about a notice, when it has ended."""
    run_id = run_id_for(
        team=TEAM_ID,
        channel=stage.channel_id("general"),
        message_ts=pull_id("https://github.test/acme/api/pull/1"),
        click=str(notice),
    )
    async with asyncio.timeout(TOLD_S):
        while not await asyncio.to_thread(stage.orion.has_ended, run_id):
            await asyncio.sleep(0.1)
    run = await stage.orion.run(run_id)
    assert run is not None
    return run


def _whole(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False)


async def test_from_the_question_to_the_merge(prepared: Path, tmp_path: Path) -> None:
    """Red, fixed by a click of somebody else, reviewed, green, merged; each is told once, and what was kept is removed."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"README": "one\n"})
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        ts = await stage.client.say("@Orion repo=acme/api pr=yes run: echo two >> README")
        assert "/pull/1" in text_of(await stage.answer(ts))
        first = server.pages.head()
        server.pages.check("lint", "success")
        summary = {"title": "1 failed", "summary": "assert 1 == 2", "annotations_count": 0}
        server.pages.check("test", "failure", output=summary)
        red = await _told(stage, ts, "checks failed")
        assert "1 passed" in _whole(red)

        await stage.client.press(red, "orion_fix", user=COLLEAGUE)
        await stage.client.press(red, "orion_fix")
        mended = await _ended(stage, 1)
        assert (mended.request.user, mended.request.thread_ts) == (COLLEAGUE, ts)
        prompts = json.dumps((await stage.world.model_requests())[-1])
        assert "1 failed" in prompts

        server.pages.review("CHANGES_REQUESTED", "Please add three.", README="here")
        review = await _told(stage, ts, "asked for changes in it")
        assert "README:1: here" in _whole(review)
        server.pages.comment("looks good to me")
        server.pages.comment("@orion thanks")
        assert "@orion thanks" in _whole(await _told(stage, ts, "thanks"))

        third = await stage.client.say("@Orion pr=yes run: echo three >> README", thread_ts=ts)
        await stage.answer(third, thread_ts=ts)
        assert server.pages.head() != first
        server.pages.check("test", "success")
        await _told(stage, ts, "the check passed")

        git(bare, "update-ref", "refs/heads/main", server.pages.head())
        server.pages.states[1] = "merged"
        server.pages.changes += 1
        await _told(stage, ts, "merged. Unless something")
        await stage.orion.until_logged("pull_request.told", 5, timeout_s=TOLD_S)
        replies = await stage.client.replies(ts)
        assert not [one for one in replies if "looks good to me" in _whole(one)]

        fresh = await stage.client.say("@Orion run: cat README", thread_ts=ts)
        await stage.answer(fresh, thread_ts=ts)
        again = await stage.record(fresh)
        assert "three" in again.result.answer
        assert TOKEN not in stage.orion.log_path.read_text()
        counted = [status for _, status in server.pages.answered if status != 304]
        assert len(counted) < len(server.pages.answered) / 2 + 30


async def test_rounds_go_on_by_themselves_and_end(prepared: Path, tmp_path: Path) -> None:
    """As often as the operator says, for whoever asked; then a button is there. A kill in between loses none and doubles none."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"README": "one\n"})
    async with open_with_repositories(
        tmp_path, prepared, server, ORION_PULL_REQUEST_ROUNDS="1"
    ) as stage:
        ts = await stage.client.say("@Orion repo=acme/api pr=yes run: echo two >> README")
        await stage.answer(ts)
        server.pages.check("test", "failure")
        await _told(stage, ts, "I am on it, for the first time.")
        await stage.orion.kill9()
        await stage.orion.start()
        await _ended(stage, 1)
        third = await stage.client.say("@Orion pr=yes run: echo three >> README", thread_ts=ts)
        await stage.answer(third, thread_ts=ts)
        server.pages.check("test", "failure")
        async with asyncio.timeout(TOLD_S):
            while not [one for one in await stage.client.replies(ts) if "orion_fix" in _whole(one)]:
                await asyncio.sleep(0.2)
        replies = await stage.client.replies(ts)
        assert len([one for one in replies if "I am on it" in _whole(one)]) == 1

"""Slack's own signs of work against the look-alike: there while a run goes, whatever is posted meanwhile, and gone after every ending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from app.slack.status import LINE, MAX_CLEARINGS, WorkingStatus
from sandbox_runtime.task_group import open_task_group
from tests.unit.slack.placing import DONE
from tests.unit.slack.streaming import CHANNEL, DM, open_scene
from tests.waiting import until

if TYPE_CHECKING:
    from app.runs.testing import Run
    from tests.unit.slack.streaming import Scene

LINE_CALL = "assistant.threads.setStatus"


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene() as opened:
        yield opened


def status(scene: Scene, run: Run) -> dict[str, Any]:
    return dict(scene.fake_slack.workspace.status_of(run.request.channel, run.request.thread_ts))


async def until_line(scene: Scene, run: Run, line: str) -> None:
    await until(lambda: status(scene, run)["status"] == line)


async def test_the_line_of_a_channel_stands_while_a_run_goes(scene: Scene) -> None:
    """It comes back after a post of another message, and is gone before the answer."""
    run = await scene.place(scene.ask(channel=CHANNEL))
    async with scene.slack.replies.live(run):
        await until_line(scene, run, LINE)
        await scene.slack.replies.announce(run, DONE)
        await until_line(scene, run, LINE)
    await until_line(scene, run, "")
    assert len(scene.calls(LINE_CALL)) == 3


async def test_a_dm_has_slacks_loader_alone(scene: Scene) -> None:
    """The session's status is shown there."""
    run = await scene.place(scene.ask(channel=DM))
    async with scene.slack.replies.live(run):
        await until(lambda: status(scene, run)["session"] == "processing")
    await scene.slack.replies.finish(run, DONE, resumed=False)
    await until(lambda: status(scene, run)["session"] == "active")
    assert scene.calls(LINE_CALL) == []


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
async def test_the_line_is_gone_when_a_run_breaks(scene: Scene, error: type[BaseException]) -> None:
    """Whatever leaves the block."""
    run = await scene.place(scene.ask(channel=CHANNEL))

    async def work() -> None:
        async with scene.slack.replies.live(run):
            await until_line(scene, run, LINE)
            raise error

    with pytest.raises(error):
        await work()
    await until_line(scene, run, "")


async def test_the_line_is_gone_when_orion_ends(scene: Scene) -> None:
    """Also of a run that another process goes on with."""
    run = await scene.place(scene.ask(channel=CHANNEL))
    async with scene.another_process() as other:
        live = other.slack.replies.live(run)
        await live.__aenter__()
        await until_line(scene, run, LINE)
        other.slack.close()
        await until_line(scene, run, "")
        await live.__aexit__(None, None, None)


async def test_what_a_dead_process_has_shown_is_taken_away(scene: Scene) -> None:
    """By whoever tells the answer, who has shown nothing."""
    run = await scene.place(scene.ask(channel=CHANNEL))
    at = {"thread_ts": run.request.thread_ts, "status": LINE, "until": 1e12}
    scene.fake_slack.workspace.set_status(CHANNEL, **at, session="processing")  # type: ignore[arg-type] # of several types
    async with scene.another_process() as other:
        await other.slack.replies.finish(run, DONE, resumed=True)
        await until_line(scene, run, "")
        await until(lambda: status(scene, run)["session"] == "active")


async def test_the_line_is_set_again_before_it_goes_out(scene: Scene) -> None:
    """As long as a run goes; a refresh that is in flight at the end does not bring it back."""
    run = await scene.place(scene.ask(channel=CHANNEL))
    async with asyncio.timeout(10), open_task_group() as group:
        signs = WorkingStatus(scene.slack._api, group=group, line_lasts_s=0.1)
        with signs.working(run):
            await until(lambda: len(scene.calls(LINE_CALL)) >= 3)
            scene.fail(LINE_CALL, delay_s=0.3)
            await asyncio.sleep(0.15)
        signs.active(run)
        await until_line(scene, run, "")
        count = len(scene.calls(LINE_CALL))
        await asyncio.sleep(0.4)
        assert len(scene.calls(LINE_CALL)) <= count + 1
        assert status(scene, run)["status"] == ""
        signs.close()


async def test_after_a_refusal_the_line_is_off(scene: Scene) -> None:
    """An app that may not is told so once; the session's status goes on."""
    scene.fail(LINE_CALL, error="missing_scope")
    for _ in range(2):
        run = await scene.place(scene.ask(channel=CHANNEL))
        async with scene.slack.replies.live(run):
            await until(lambda: len(scene.calls(LINE_CALL)) == 1)
        await scene.slack.replies.finish(run, DONE, resumed=False)
    await asyncio.sleep(0.1)
    assert len(scene.calls(LINE_CALL)) == 1
    await until(lambda: status(scene, run)["session"] == "active")


async def test_a_line_that_could_not_be_taken_away_is_tried_again(scene: Scene) -> None:
    """Nobody would set it another time."""
    run = await scene.place(scene.ask(channel=CHANNEL))
    async with scene.slack.replies.live(run):
        await until_line(scene, run, LINE)
        scene.fail(LINE_CALL, status=503, times=2)
    await until_line(scene, run, "")


async def test_what_slack_asks_to_wait_for_is_taken_away_after_its_pause(scene: Scene) -> None:
    """However long that is, and though nobody asks another time."""
    run = await scene.place(scene.ask(channel=CHANNEL))
    async with scene.slack.replies.live(run):
        await until_line(scene, run, LINE)
        await until(lambda: status(scene, run)["session"] == "processing")
        scene.fail(LINE_CALL, status=429, retry_after=4)
        scene.fail("agents.sessions.setStatus", status=429, retry_after=4)
    await scene.slack.replies.finish(run, DONE, resumed=False)
    await until_line(scene, run, "")
    await until(lambda: status(scene, run)["session"] == "active")


async def test_what_could_not_be_taken_away_is_by_the_next_question(scene: Scene) -> None:
    """Also by one whose answer comes before anything was shown."""
    method = "agents.sessions.setStatus"
    run = await scene.place(scene.ask())
    await until(lambda: status(scene, run)["session"] == "processing")
    scene.fail(method, status=503, times=MAX_CLEARINGS)
    await scene.slack.replies.finish(run, DONE, resumed=False)
    await until(lambda: len(scene.calls(method)) == 1 + MAX_CLEARINGS)
    sign = scene.slack._status._session
    await until(lambda: not sign._threads)
    sign.want(run.thread, "processing", is_urgent=True)
    sign.want(run.thread, "active")
    await until(lambda: status(scene, run)["session"] == "active")

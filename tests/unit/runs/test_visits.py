"""Who is in a thread's sandbox, as every process of the machine sees it."""

import asyncio
from pathlib import Path

import pytest

from app.runs.session import SessionId
from app.runs.visits import Visits
from sandbox_runtime.task_group import open_task_group

SESSION, OTHER = SessionId("ses_1"), SessionId("ses_2")


def test_visitors_share_and_the_last_is_alone(tmp_path: Path) -> None:
    """A visited session is visited until the last one leaves, of whom each can tell whether others are there."""
    visits = Visits(tmp_path / "visits")
    assert not visits.is_visited(SESSION)
    with visits.visiting(SESSION) as first:
        with visits.visiting(SESSION) as second:
            assert not first()
            assert not second()
        assert visits.is_visited(SESSION)
        assert not visits.is_visited(OTHER)
        assert first()
        assert visits.is_visited(SESSION)
    assert not visits.is_visited(SESSION)
    visits.forget(SESSION)
    assert list((tmp_path / "visits").iterdir()) == []


async def test_a_run_waits_for_whoever_saves(tmp_path: Path) -> None:
    """It goes on when that is done; nobody else saves meanwhile, and another thread does not wait."""
    visits = Visits(tmp_path)
    await visits.until_saved(SESSION)
    async with open_task_group() as group:
        with visits.saving(SESSION):
            waiting = group.create_task(visits.until_saved(SESSION))
            await visits.until_saved(OTHER)
            with pytest.raises(BlockingIOError), visits.saving(SESSION):
                pass
            await asyncio.sleep(0.15)
            assert not waiting.done()
    assert waiting.done()

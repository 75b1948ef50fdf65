"""Who is in a thread's sandbox, as every process of the machine sees it."""

import asyncio
from pathlib import Path

import pytest

from app.runs.testing import SessionId, SessionLocks
from sandbox_runtime.task_group import open_task_group

SESSION, OTHER = SessionId("ses_1"), SessionId("ses_2")


def test_visitors_share_and_the_last_is_alone(tmp_path: Path) -> None:
    """A visited session is visited until the last one leaves, of whom each can tell whether others are there."""
    locks = SessionLocks(tmp_path / "visits")
    assert not locks.is_in_use(SESSION)
    with locks.use(SESSION) as first:
        with locks.use(SESSION) as second:
            assert not first()
            assert not second()
        assert locks.is_in_use(SESSION)
        assert not locks.is_in_use(OTHER)
        assert first()
        assert locks.is_in_use(SESSION)
    assert not locks.is_in_use(SESSION)
    locks.forget(SESSION)
    assert list((tmp_path / "visits").iterdir()) == []


async def test_a_run_waits_for_whoever_saves(tmp_path: Path) -> None:
    """It goes on when that is done; nobody else saves meanwhile, and another thread does not wait."""
    locks = SessionLocks(tmp_path)
    await locks.wait_until_saved(SESSION)
    async with open_task_group() as group:
        with locks.lock_for_saving(SESSION):
            waiting = group.create_task(locks.wait_until_saved(SESSION))
            await locks.wait_until_saved(OTHER)
            with pytest.raises(BlockingIOError), locks.lock_for_saving(SESSION):
                pass
            await asyncio.sleep(0.15)
            assert not waiting.done()
    assert waiting.done()

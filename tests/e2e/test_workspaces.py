"""A thread is a place: the next question finds the files of the last one, whatever happened to the service in between."""

import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import open_world, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


async def test_a_follow_up_finds_its_files(start_orion: OpenOrion) -> None:
    """In the sandbox that was kept; after kill -9 in a new one, from what was saved; not in another thread."""
    async with (
        open_world() as world,
        start_orion(world, ORION_SESSION_KEEP_S="600") as stage,
    ):
        ts = await stage.client.say("@Orion run: echo 4711 > notes; echo kept > ~/memory")
        await stage.answer(ts)
        second = await stage.client.say("@Orion run: cat notes ~/memory", thread_ts=ts)
        assert "4711\nkept" in text_of(await stage.answer(second, thread_ts=ts))
        assert len(stage.orion.log_lines("sandbox.created")) == 1
        assert len(stage.orion.log_lines("sandbox.attached")) == 1
        assert len(stage.orion.sandbox_directories()) == 1
        await stage.orion.kill9()
        await stage.orion.start()
        assert stage.orion.sandbox_directories() == []
        third = await stage.client.say("@Orion run: cat notes; echo more >> notes", thread_ts=ts)
        assert "4711" in text_of(await stage.answer(third, thread_ts=ts))
        other = await stage.client.say("@Orion run: cat notes")
        assert "No such file" in text_of(await stage.answer(other))
        assert await stage.orion.terminate() == 0
        assert stage.orion.sandbox_directories() == []

"""A thread is a place: the next question finds the files of the last one, whatever happened to the service in between."""

import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import open_world, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


@pytest.mark.long
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


@pytest.mark.long
async def test_what_was_changed_is_told_and_shared(start_orion: OpenOrion) -> None:
    """The count under the answer, the patch as a file in the thread; patch and log on the command line."""
    async with open_world() as world, start_orion(world) as stage:
        ts = await stage.client.say("@Orion run: printf 'one\\ntwo\\n' > notes")
        answer = await stage.answer(ts)
        assert "1 file changed +2 \u22120" in str(answer["blocks"])
        run_id = stage.run_id(ts)
        shared = await stage.client.wait_for_reply(ts, lambda reply: bool(reply.get("files")))
        (file,) = shared["files"]
        assert file["name"] == f"changes-{run_id}.patch"
        code, patch = await stage.cli("runs", "show", run_id, "--patch")
        assert code == 0
        assert "+one\n+two\n" in patch
        code, log = await stage.cli("runs", "show", run_id, "--log")
        assert code == 0
        assert '"tool_started"' in log
        plain = await stage.client.say("@Orion hello")
        await stage.answer(plain)
        code, said = await stage.cli("runs", "show", stage.run_id(plain), "--patch")
        assert (code, said) == (1, f"run {stage.run_id(plain)} left no patch\n")

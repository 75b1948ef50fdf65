"""The machine below: a disk that is full inside a sandbox, a wall clock that jumps."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.disks import small_disk
from tests.e2e.fault_table import fault
from tests.e2e.harness import RUN_TIMEOUT_S, World, open_orion, text_of
from tests.e2e.orion_process import new_state_dir

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

DISK_MIB = 128
"""Holds the agent's environment (80 MiB) and little more."""
JUMP_S = 1200
"""Longer than a run may take and its token holds, shorter than a question may wait."""


@pytest.mark.long
@pytest.mark.mounts
async def test_a_full_disk_in_the_sandbox_is_the_agents_to_see(
    world: World, tmp_path: Path, prepared: Path
) -> None:
    """The disk that holds the database too: the tool fails, the run ends, its sandbox goes, and there is room again."""
    state_dir = new_state_dir(tmp_path)
    with small_disk(tmp_path / "disk", mib=DISK_MIB) as disk:
        (disk / "state").mkdir(mode=0o700)
        state_dir.symlink_to(disk / "state")
        async with open_orion(world, state_dir, prepared) as stage:
            ts = await stage.client.say("@Orion run: cat /dev/zero > big")
            assert "No space left on device" in text_of(await stage.answer(ts))
            assert len(await stage.client.replies(ts)) == 1
            fault("Machine: disk full in the sandbox").assert_holds(await stage.record(ts))
            assert "room again" in await stage.ask("@Orion run: echo room again > new; cat new")


@pytest.mark.long
async def test_a_run_survives_a_jump_of_the_clock(
    world: World, start_orion: OpenOrion, tmp_path: Path
) -> None:
    """While its tool runs, before the agent calls the model again. Slack's signatures hold for 5 min, so it comes back."""
    skew = tmp_path / "skew"
    _set(skew, 0)
    async with start_orion(world) as stage:
        await stage.orion.terminate()
        # Not forked (so it begins with -u): what imports a clock must do so after it has been replaced.
        stage.orion.program = ("-u", "-m", "tests.e2e.skewed_server", str(skew))
        await stage.orion.start()
        for row, jump_s in (
            ("Machine: clock jumps forward", JUMP_S),
            ("Machine: clock jumps back", -JUMP_S),
        ):
            ts = await stage.client.say("@Orion run: sleep 6; echo slept")
            async with asyncio.timeout(RUN_TIMEOUT_S):
                while not any("sleep 6" in line for line in stage.orion.sandbox_processes()):
                    await asyncio.sleep(0.05)
            _set(skew, jump_s)
            answer = await stage.answer(ts)
            assert "slept" in text_of(answer)
            assert [reply["ts"] for reply in await stage.client.replies(ts)] == [answer["ts"]]
            fault(row).assert_holds(await stage.record(ts))
            _set(skew, 0)


def _set(skew: Path, seconds: int) -> None:
    """At once: the server never reads half a number."""
    new = skew.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(skew)

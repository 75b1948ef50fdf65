"""`orion sandboxes …` for threads whose sandboxes are in emulated clouds."""

import json
from pathlib import Path

import pytest

from tests.e2e.clouds import CLOUDS, KEY, open_stage_at
from tests.e2e.harness import Stage, text_of
from tests.e2e.typing_person import sitting_at

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    pytest.mark.timeout(300),
]


async def listed(stage: Stage) -> list[dict[str, object]]:
    """What `orion sandboxes list` shows."""
    code, said = await stage.cli("sandboxes", "list", "--json")
    assert code == 0, said
    rows: list[dict[str, object]] = json.loads(said)
    return rows


@pytest.mark.parametrize("cloud_name", CLOUDS)
async def test_a_person_in_a_threads_sandbox(cloud_name: str, tmp_path: Path) -> None:
    """Shell on a terminal, resumed, stopped, removed: the thread's files follow, and in the end nothing is left there."""
    async with open_stage_at(cloud_name, tmp_path) as (stage, cloud):
        ts = await stage.client.say("@Orion run: echo 4711 > notes")
        await stage.answer(ts, timeout_s=150)
        (row,) = await listed(stage)
        name = str(row["name"])
        assert (row["provider"], row["status"]) == (cloud_name, "stopped")
        code, said = await stage.cli("sandboxes", "logs", name, "--tail", "1")
        assert code == 0, said

        async with sitting_at(stage, "sandboxes", "shell", name) as person:
            await person.sees("from what was saved")
            await person.types("stty size; cat notes\n")
            await person.sees("33 101\r\n4711")
            person.widens_to(20, 60)
            await person.types("sleep 1; stty size\n")
            await person.sees("20 60\r\n")
            await person.types("env | grep -c sk-ant-; echo by hand >> notes; exit 5\n")
            await person.sees("\r0\r\n")
            assert await person.leaves() == 5
            assert f"{name}: saved" in person.shown
        assert cloud.running() == 0

        code, said = await stage.cli("sandboxes", "resume", name, "--detached")
        assert code == 0, said
        assert cloud.running() == 1
        assert [row["status"] for row in await listed(stage)] == ["running"]
        again = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711\nby hand" in text_of(await stage.answer(again, thread_ts=ts))
        assert cloud.running() == 0

        code, said = await stage.cli("sandboxes", "resume", name, "--detached")
        assert code == 0, said
        assert (await stage.cli("sandboxes", "stop", name))[0] == 0
        assert cloud.running() == 0
        code, said = await stage.cli("sandboxes", "rm", name)
        assert code == 0, said
        assert await listed(stage) == []
        anew = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "No such file" in text_of(await stage.answer(anew, thread_ts=ts))
        code, said = await stage.cli("sandboxes", "clean", "--days", "0")
        assert code == 0, said
        assert await listed(stage) == []
        assert KEY.encode() not in cloud.sent()

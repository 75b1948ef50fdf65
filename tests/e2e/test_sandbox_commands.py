"""`orion sandboxes …` beside a running service."""

import json

import pytest

from sandbox_runtime import SandboxSpec, open_sandbox
from sandbox_runtime.providers.local.provider import LocalProvider
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import open_world, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


@pytest.mark.long
async def test_list_stop_and_remove(start_orion: OpenOrion) -> None:
    """A stopped sandbox leaves its files, a removed one does not; one whose run is going is left alone."""
    async with (
        open_world() as world,
        start_orion(world, ORION_SESSION_KEEP_S="600") as stage,
    ):
        ts = await stage.client.say("@Orion run: echo 4711 > notes")
        await stage.answer(ts)
        code, said = await stage.cli("sandboxes", "list", "--json")
        (row,) = json.loads(said)
        assert (code, row["status"], row["provider"]) == (0, "running", "local")
        assert [row["sandbox_id"]] == stage.orion.sandbox_directories()
        assert (row["ends_at"], row["cpus"], row["memory_limit_bytes"]) == (None, None, None)
        assert row["cpu_s"] >= 0
        name = row["name"]

        assert await stage.cli("sandboxes", "stop", name) == (0, f"{name}: stopped\n")
        assert stage.orion.sandbox_directories() == []
        code, said = await stage.cli("sandboxes", "list")
        assert name in said
        assert "stopped" in said
        second = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711" in text_of(await stage.answer(second, thread_ts=ts))

        slow = await stage.client.say("@Orion ! !slow 8", thread_ts=ts)
        await stage.thinking(slow, thread_ts=ts)
        code, said = await stage.cli("sandboxes", "rm", row["id"][:12])
        assert code == 1
        assert f"orion runs stop {stage.run_id(slow)}" in said
        await stage.answer(slow, thread_ts=ts)

        async with (
            LocalProvider(stage.orion.state_dir, isolation="none") as provider,
            open_sandbox(provider, SandboxSpec()) as nobodys,
        ):
            rows = json.loads((await stage.cli("sandboxes", "list", "--json"))[1])
        assert [(row["name"], row["id"]) for row in rows[1:]] == [("", nobodys.id)]
        assert (rows[1]["status"], rows[1]["thread"]) == ("running", "")

        assert await stage.cli("sandboxes", "clean") == (0, "")
        code, said = await stage.cli("sandboxes", "clean", "--days", "0")
        assert (code, said) == (0, f"{name}: removed, with its files\n")
        assert json.loads((await stage.cli("sandboxes", "list", "--json"))[1]) == []
        last = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "No such file" in text_of(await stage.answer(last, thread_ts=ts))
        code, said = await stage.cli("sandboxes", "rm", "no-such")
        assert (code, said) == (1, "no sandboxes have the name 'no-such' or an id beginning so\n")

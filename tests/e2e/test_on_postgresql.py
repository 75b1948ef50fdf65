"""The whole service with ORION_DATABASE_URL: it answers, keeps the password to itself, and other processes on the database are the same Orion."""

import asyncio
import json
import re
from collections.abc import Mapping

import httpx
import pytest

from app.store.runs import open_store
from tests.e2e.clouds import open_stage_at
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.giving_keys import SECRET
from tests.e2e.harness import World, text_of
from tests.e2e.orion_process import OrionProcess, new_state_dir
from tests.pgbouncer import run_pgbouncer
from tests.plain_http import NO_TLS
from tests.ports import free_port
from tests.postgres import unreachable
from tests.shared_broker import open_process

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.postgresql,
    pytest.mark.timeout(180),
]

PASSWORD = "geheim-3141-wort"  # noqa: S105 - of a server that is gone with the tests


def _with_password(url: str) -> str:
    return url.replace("orion@", f"orion:{PASSWORD}@")


@pytest.mark.long
async def test_a_mention_is_answered_from_a_server(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """Also after a restart; commands see the run; the password is in no log, output, message or trace, and no database in the state directory."""
    url = _with_password(postgres_url)
    async with start_orion(world, ORION_DATABASE_URL=url) as stage:
        ts = await stage.client.say("@Orion run: env")
        await stage.answer(ts)
        record = await stage.record(ts)
        assert (record.state, record.delivery) == ("succeeded", "sent")
        code, listed = await stage.cli("runs", "list", "--json")
        assert code == 0
        assert [row["id"] for row in json.loads(listed)] == [record.id]
        code, shown = await stage.cli("doctor")
        assert re.search(r"ok +database +postgresql://orion:\*\*\*@.+, PostgreSQL 15", shown)
        await stage.orion.terminate()
        await stage.orion.start()
        assert "run: env" in await stage.ask("@Orion what did I say?", thread_ts=ts)
        assert PASSWORD not in stage.orion.log + listed + shown
        assert PASSWORD not in str(await stage.client.replies(ts))
        assert PASSWORD not in str(await world.traces())
        assert not list(stage.orion.state_dir.glob("*.db*"))
        assert not (stage.orion.state_dir / "broker.key").exists()


@pytest.mark.long
async def test_a_database_that_is_away_for_a_moment_is_waited_for(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """What the service says of itself turns, and turns back; what is asked afterwards is answered."""
    async with start_orion(world, ORION_DATABASE_URL=postgres_url) as stage:
        await stage.ask("@Orion hello before")
        assert (await _ready(stage.orion))["ok"]
        with unreachable(postgres_url):
            assert not (await _ready(stage.orion))["ok"]
            await asyncio.sleep(3)
        assert "hello after" in await stage.ask("@Orion hello after")
        assert (await _ready(stage.orion))["ok"]


@pytest.mark.long
@pytest.mark.pgbouncer
async def test_a_pooler_by_transaction_will_do(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """Five questions at once, Stop and a crash, over three connections of the server."""
    with run_pgbouncer(postgres_url, mode="transaction", connections=3) as url:
        async with start_orion(world, ORION_DATABASE_URL=url) as stage:
            asked = [await stage.client.say(f"@Orion question {n}") for n in range(5)]
            for number, ts in enumerate(asked):
                assert f"question {number}" in text_of(await stage.answer(ts))
            slow = await stage.client.say("@Orion !slow 60")
            await stage.client.wait_for_reply(
                slow, lambda reply: "I write slowly" in text_of(reply)
            )
            await stage.client.say("stop", thread_ts=slow)
            assert (await stage.ended(slow, timeout_s=15)).state == "stopped"
            await stage.orion.kill9()
            await stage.orion.start()
            assert "hello again" in await stage.ask("@Orion hello again")


async def test_processes_on_one_database_are_one_orion(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """One that has another secret for people's keys does not start; with the same it has the others' name and key."""
    settings: Mapping[str, str] = {"ORION_DATABASE_URL": postgres_url}
    async with start_orion(world, **settings, ORION_OWN_KEYS_SECRET=SECRET) as stage:
        async with open_store(postgres_url) as store:
            before = await store.installation.load()
        second = OrionProcess(
            state_dir=new_state_dir(stage.orion.state_dir.parent),
            settings=stage.orion.environment | {"ORION_OWN_KEYS_SECRET": "another-" * 6},
        )
        await second.launch()
        try:
            assert await second.died(timeout_s=30)
            assert second.exit_code == 1
            assert "ORION_OWN_KEYS_SECRET is not the one" in second.log
            assert "another-" not in second.log
            assert second.log.count("\n") == 1
        finally:
            await second.reap()
        for secret in ("another-" * 6, ""):
            code, shown = await stage.cli("doctor", ORION_OWN_KEYS_SECRET=secret)
            assert code == 1
            assert "FAIL own keys   ORION_OWN_KEYS_SECRET is" in shown
        async with open_store(postgres_url) as store:
            assert await store.installation.load() == before


@pytest.mark.long
@pytest.mark.machines
async def test_a_sandbox_that_reaches_another_process_is_served(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str
) -> None:
    """Behind a load balancer that leads nobody to the process which executes the run: models are asked, counted and traced as ever."""
    port = free_port()
    async with (
        open_stage_at(
            "vercel",
            tmp_path_factory.mktemp("v"),
            ORION_DATABASE_URL=postgres_url,
            ORION_PUBLIC_URL=f"http://127.0.0.1:{port}",
        ) as (
            stage,
            _,
        ),
        open_process(postgres_url, f"{stage.world.url}/model", port=port),
    ):
        ts = await stage.client.say("@Orion run: echo 4711")
        assert "4711" in text_of(await stage.answer(ts, timeout_s=150))
        record = await stage.record(ts)
        fault("Processes: a sandbox is led to one that does not have its run").assert_holds(record)
        assert record.result.usage.model_calls == 2
        tree = await stage.world.whole_trace(str(record.trace_id))
        assert str(tree).count("'type': 'generation'") == 2
        async with open_store(postgres_url) as store:
            assert len(await store.spending.of_run(record.id)) == 2
            assert await store.grants.find(record.id) is None
        assert await stage.orion.terminate() == 0


async def _ready(orion: OrionProcess) -> Mapping[str, object]:
    """What `/readyz` says of the database."""
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, timeout=30) as http:
        found: Mapping[str, Mapping[str, object]] = (await http.get(f"{orion.url}/readyz")).json()
    return found["database"]

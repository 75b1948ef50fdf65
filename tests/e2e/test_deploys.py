"""A deploy: old processes end what they can and hand over the rest, new ones, with other code, answer it."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.playground.slack.types import FakeSlackConfig
from app.store.migrations import newest_version
from sandbox_runtime.task_group import open_task_group
from tests.crash.load import BETWEEN_S, ROLLED, Load, run_load
from tests.crash.place import Place
from tests.crash.rig import KILLED
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, has_stop_button, open_world, text_of
from tests.e2e.orion_process import run_cli
from tests.forking import REPOSITORY
from tests.plain_http import NO_TLS

pytestmark = [
    pytest.mark.long,
    pytest.mark.alone,
    pytest.mark.e2e,
    pytest.mark.crash,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(240),
]

STOPPED_WITHIN_S = 20.0
SLOW_WORDS = "offline model and I write"
SPARSE_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 8.0, 8.0, 8.0, 8.0))
PACKAGES = ("app", "agent_scripts", "sandbox_runtime")
ADDITIVE = """\
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{}", "{}"
is_additive = True


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("mood", sa.String(16), nullable=True))
"""
CHANGE = (
    '            __import__("logging").getLogger("app.dispatch").warning("dispatcher.changed")\n'
)


async def test_a_deploy_answers_every_question_once(
    start_orion: OpenOrion,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """SIGTERM: red, nothing new, short runs end; the next process, whose code has changed, answers the rest."""
    changed = _changed_copy(tmp_path / "next")
    async with open_world(SPARSE_RETRIES) as world, start_orion(world) as stage:
        short = await stage.client.say("@Orion !slow 2")
        long = await stage.client.say("@Orion !slow 24")
        for ts in (short, long):
            await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        behind = await stage.client.say("@Orion what came before?", thread_ts=long)
        await stage.thinking(behind, thread_ts=long)

        started = time.monotonic()
        async with open_task_group() as group:
            ending = group.create_task(stage.orion.terminate())
            await _assert_draining(stage)
            late = await stage.client.say("@Orion too late for the old one")
            assert await ending == 0
        took_s = time.monotonic() - started
        record_property("deploy: SIGTERM to exit [s]", round(took_s, 1))
        assert took_s < STOPPED_WITHIN_S
        refused = await stage.deliveries(late, at_least=1)
        assert all(entry["status"] in {500, None} for entry in refused), refused
        left = {run.id for run in await stage.orion.unfinished()}
        assert left == {stage.run_id(long), stage.run_id(behind)}
        assert stage.orion.sandbox_processes() == []
        assert stage.orion.sandbox_directories() == []
        left_at = await stage.thinking(long)

        stage.orion.environment.update(_with_code(stage, changed))
        restarted = time.monotonic()
        await stage.orion.start()
        resumed = await stage.client.wait_for_reply(
            long, lambda reply: reply["version"] > left_at["version"] + 1
        )
        assert has_stop_button(resumed)
        for ts, thread in ((long, long), (behind, long), (late, late)):
            await stage.answer(ts, thread_ts=thread)
        record_property("deploy: start to last answer [s]", round(time.monotonic() - restarted, 1))
        assert stage.orion.log_lines("dispatcher.changed") != []
        for ts, attempts in ((short, 1), (long, 2), (behind, 1), (late, 1)):
            record = await stage.record(ts)
            fault("Orion: SIGTERM, and a new version starts").assert_holds(record)
            assert record.attempt == attempts
            assert len(await stage.bot_messages(ts, thread_ts=long if ts == behind else ts)) == 1


@pytest.mark.postgresql
async def test_a_rolling_restart_loses_nobody(
    tmp_path: Path,
    prepared: Path,
    postgres_server: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Two processes, asked all the time: `orion migrate` of a version that only adds something, then one after the other is another version's."""
    changed = _changed_copy(tmp_path / "next")
    newest = newest_version()
    migrations = changed / "app" / "store" / "migrations" / "versions"
    (migrations / f"v{newest + 1}_moods.py").write_text(ADDITIVE.format(newest + 1, newest))
    place = Place(directory=tmp_path, prepared=prepared, server_url=postgres_server)
    ends_s: list[float] = []

    async def roll(load: Load) -> None:
        processes = load.rig.processes
        new_code = {"PYTHONPATH": f"{changed}:{REPOSITORY}"}
        code, said = await run_cli("migrate", environment=processes[0].environment | new_code)
        assert code == 0, said
        assert str(newest + 1) in said
        for process in processes:
            await asyncio.sleep(BETWEEN_S)
            began = time.monotonic()
            assert await process.terminate() == 0
            ends_s.append(time.monotonic() - began)
            process.environment |= new_code
            await process.start()
        load.restarted = time.monotonic()
        await asyncio.sleep(BETWEEN_S)
        assert all(process.log_lines("dispatcher.changed") for process in processes)

    result = await run_load(place, ROLLED, KILLED, befall=roll)
    record_property("rolling restart: SIGTERM to exit [s]", [round(end_s, 1) for end_s in ends_s])
    assert result.faults == []
    assert (result.lost, result.doubled, result.disordered, result.interrupted) == (0, 0, 0, 0)
    assert result.pairs > 0
    assert max(ends_s) < STOPPED_WITHIN_S


async def _assert_draining(stage: Stage) -> None:
    """It still answers, and says that it takes nothing new."""
    async with asyncio.timeout(5), httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        while (answer := await http.get(f"{stage.orion.url}/readyz")).is_success:
            await asyncio.sleep(0.05)
        assert answer.status_code == 503
        assert answer.json()["service"] == {"ok": False, "detail": "draining"}
        assert (await http.get(f"{stage.orion.url}/healthz")).is_success


def _changed_copy(target: Path) -> Path:
    """This code with a dispatcher that says so."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, target / package)
    path = target / "app" / "dispatch" / "dispatcher.py"
    source = path.read_text()
    body = "            again = await handlers.advance(run_id)\n"
    assert source.count(body) == 1
    path.write_text(source.replace(body, CHANGE + body))
    return target


def _with_code(stage: Stage, directory: Path) -> dict[str, str]:
    return stage.orion.environment | {"PYTHONPATH": str(directory)}

"""A deploy: the old process ends what it can and hands over the rest, the new one, with other code, answers it."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.playground.slack.types import FakeSlackConfig
from sandbox_runtime.task_group import open_task_group
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, has_stop_button, open_world, text_of
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

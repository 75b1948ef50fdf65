"""A real Prometheus reads `/metrics`, takes the alert rules, and answers each question of the dashboard."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import open_world
from tests.plain_http import NO_TLS
from tests.ports import free_port
from tests.unit.web.test_dashboards import ALERTS, panels, rules

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.prometheus,
    pytest.mark.long,
    pytest.mark.timeout(180),
]

INTERVAL = "10s"
NOTHING_WRONG = {
    "Limited by Slack",
    "Answers that Slack did not take",
    "Warm pool",
    "Replies without a mention",
    "Dollars",
}
"""Of what was asked here there is none."""
CONFIG = """
global: {{scrape_interval: 500ms, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: orion
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@asynccontextmanager
async def prometheus(directory: Path, config: str) -> AsyncIterator[httpx.AsyncClient]:
    """One that reads every half second; a client of its API."""
    path, port = directory / "prometheus.yaml", free_port()
    await asyncio.to_thread(path.write_text, config)
    process = await asyncio.create_subprocess_exec(
        *("prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=NO_TLS) as http:
            await until_ready(http)
            yield http
    finally:
        process.terminate()
        await process.wait()


async def until_ready(http: httpx.AsyncClient) -> None:
    """Until it answers questions: while it reads what it has stored each gets a 503, which is no JSON."""
    async with asyncio.timeout(60):
        while True:
            with suppress(httpx.TransportError):
                if (await http.get("/-/ready")).is_success:
                    return
            await asyncio.sleep(0.1)


async def ask(http: httpx.AsyncClient, question: str) -> list[Any]:
    answer = (await http.get("/api/v1/query", params={"query": question})).json()
    assert answer["status"] == "success", (question, answer)
    return list(answer["data"]["result"])


async def until_read(http: httpx.AsyncClient, question: str) -> None:
    """Until it has an answer."""
    async with asyncio.timeout(60):
        while not await ask(http, question):
            await asyncio.sleep(0.2)


async def test_each_question_is_answered(start_orion: OpenOrion, tmp_path: Path) -> None:
    """Those about what has happened here with figures; and no alert can be read wrongly."""
    rule_file = shutil.copy(ALERTS, tmp_path / "alerts.yaml")
    async with (
        open_world() as world,
        start_orion(world) as stage,
        prometheus(tmp_path, CONFIG.format(rules=rule_file, port=stage.orion.port)) as http,
    ):
        await until_read(http, "orion_slack_ack_seconds_count or up == 1")
        assert "hello" in await stage.ask("@Orion hello")
        await stage.ended(await stage.client.say("@Orion !429"))
        await until_read(http, 'orion_run_errors_total{code="MODEL_RATE_LIMITED"}')
        await asyncio.sleep(1.5)  # for a rate there must be two of each
        for title, expr, _ in panels():
            found = await ask(http, expr.replace("$__rate_interval", INTERVAL))
            assert bool(found) or title in NOTHING_WRONG, (title, expr)
        loaded = (await http.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
        assert [rule["name"] for rule in loaded] == [name for name, _, _ in rules()]
        assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}, json.dumps(loaded)


async def test_promtool_finds_nothing() -> None:
    process = await asyncio.create_subprocess_exec(
        *("promtool", "check", "rules", str(ALERTS)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert f"{len(list(rules()))} rules found" in said.decode()

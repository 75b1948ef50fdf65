"""The function of Vercel's that hears, as everybody on the internet may ask it: a database that is away must not matter to strangers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.brokerage.registry import PREFIX
from app.main import create_function_app
from app.settings.settings import load_settings
from tests.ports import free_port
from tests.unit.slack.building import mention, signed

METRICS, CRON = "word-of-the-operator", "word-of-the-cron"
COMPLETE = {
    "anthropic_api_key": "sk-ant-test",
    "slack_bot_token": "xoxb-test",
    "slack_signing_secret": "signing",
    "slack_api_url": "http://127.0.0.1:9/api/",
    "orion_sandbox": "vercel",
    "cron_secret": CRON,
    "orion_ops_token": METRICS,
}


@asynccontextmanager
async def _asked(tmp_path: Path, **changes: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the function, whose database is not there; None = without that setting."""
    database = f"postgresql://orion:word@127.0.0.1:{free_port()}/orion"
    settings = {
        **COMPLETE,
        "orion_state_dir": tmp_path / "state",
        "orion_database_url": database,
        **changes,
    }
    held = {name: value for name, value in settings.items() if value is not None}

    def load(*, given: dict[str, Any]) -> Any:
        return partial(load_settings, env_file=None, toml=None)(given={**held, **given})

    app = create_function_app(load)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="https://orion.example.org"
        ) as http,
    ):
        yield http


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/healthz", {}, 200),
        ("GET", "/nonsense", {}, 404),
        ("GET", "/linked/crm", {}, 404),
        ("GET", "/slack/events", {}, 404),
        ("POST", "/slack/events", {}, 401),
        ("POST", "/slack/events", {"x-slack-signature": "v0=\u00e9".encode()}, 401),
        ("GET", "/metrics", {}, 401),
        ("GET", "/metrics", {"authorization": METRICS}, 401),
        ("GET", "/ops/sweep", {}, 401),
        ("GET", "/ops/sweep", {"authorization": CRON}, 401),
        ("GET", "/ops/sweep", {"authorization": f"Bearer {CRON}"}, 500),
        ("GET", "/readyz", {}, 500),
        ("POST", "/broker/anthropic/v1/messages", {}, 404),
        ("POST", "/broker/anthropic/v1/messages", {"x-api-key": f"{PREFIX}x"}, 404),
    ],
)
async def test_strangers_open_no_database(
    tmp_path: Path, method: str, path: str, headers: dict[str, Any], status: int
) -> None:
    """Whoever may have something done finds that the database is away; nobody else does."""
    async with _asked(tmp_path) as http:
        answer = await http.request(method, path, headers=headers, content=b"{}")
    assert answer.status_code == status


async def test_a_login_ends_without_a_database(tmp_path: Path) -> None:
    """At an MCP server where people have accounts, unless it ends elsewhere."""
    url = "https://crm.example.org"
    oauth = {"token_url": url, "authorization_url": url, "client_id": "orion"}
    for more, status in (({}, 200), ({"redirect_url": url}, 404)):
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"crm": {"url": url, "oauth": oauth | more}}}))
        changes = {"orion_mcp_config_file": str(file), "orion_own_keys_secret": "s" * 32}
        async with _asked(tmp_path, **changes) as http:
            answer = await http.get("/linked/crm?code=1&state=2")
        assert answer.status_code == status


async def test_the_broker_is_for_whoever_has_what_looks_like_a_token(tmp_path: Path) -> None:
    """Where it has an address at all."""
    path = "/broker/anthropic/v1/messages"
    async with _asked(tmp_path, orion_public_url="https://orion.example.com") as http:
        for headers, status in (({}, 404), ({"x-api-key": f"{PREFIX}x"}, 500)):
            assert (await http.post(path, headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"type": "message", "text": "lunch?"}, 200),
        ({"type": "message", "text": "<@UBOT> hi", "user": "UBOT"}, 200),
        ({"type": "message", "text": "<@UBOT> hi", "bot_id": "B1"}, 200),
        ({"type": "message", "subtype": "channel_join"}, 200),
        ({"type": "message", "text": "<@UBOT> hi"}, 500),
        ({"type": "app_mention", "text": "<@UBOT> hi"}, 500),
        ({"type": "message", "text": "hi", "channel": "D1"}, 500),
    ],
)
async def test_a_message_that_asks_nothing_opens_no_database(
    tmp_path: Path, event: dict[str, Any], status: int
) -> None:
    """Slack tells of each message of each channel that the bot is in; one that asks something is sent again."""
    body = json.dumps(mention(**event)).encode()
    async with _asked(tmp_path) as http:
        headers = signed(body, secret=COMPLETE["slack_signing_secret"])
        answer = await http.post("/slack/events", headers=headers, content=body)
    assert answer.status_code == status


async def test_a_reply_opens_a_database_where_replies_are_answered(tmp_path: Path) -> None:
    """Whether it is for Orion is in there; where the rule is `never` nobody needs to look."""
    reply = {"type": "message", "text": "and now?", "thread_ts": "1799999999.000001"}
    body = json.dumps(mention(**reply)).encode()
    for rule, status in (("two-party", 500), ("never", 200)):
        async with _asked(tmp_path, orion_follow_ups=rule) as http:
            headers = signed(body, secret=COMPLETE["slack_signing_secret"])
            answer = await http.post("/slack/events", headers=headers, content=body)
        assert answer.status_code == status


async def test_without_a_token_nobody_reads_metrics(tmp_path: Path) -> None:
    """No address of a function is a loopback address."""
    async with _asked(tmp_path, orion_ops_token=None) as http:
        assert (await http.get("/metrics")).status_code == 401


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slack_bot_token": None}, "SLACK_BOT_TOKEN: missing"),
        ({"slack_signing_secret": None}, "SLACK_SIGNING_SECRET"),
        ({"orion_slice_s": "soon"}, "ORION_SLICE_S"),
    ],
)
async def test_what_is_missing_is_said_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str | None],
    said: str,
) -> None:
    """In a line of the log; every address says 500, and the process goes on."""
    async with _asked(tmp_path, **changes) as http:
        for path in ("/healthz", "/readyz", "/nonsense"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]) == (
                500,
                "not configured; the log says why",
            )
    output = capsys.readouterr()
    told = (output.out, output.err, caplog.text)
    log = next(text for text in told if "service.not_configured" in text)
    assert log.count("service.not_configured") == 1
    assert said in log

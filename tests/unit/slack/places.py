"""Orion's places in Slack over a scripted Slack and stores in memory: home, commands, modals, prompts."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from slack_bolt.async_app import AsyncApp
from typing_extensions import override

from app.runs.testing import (
    Budgets,
    Catalog,
    CatalogAgent,
    Ledger,
    NoJudge,
    Price,
    Prices,
    Run,
    RunPolicy,
    RunPorts,
    SystemClock,
)
from app.slack.api import BotIdentity
from app.slack.ask_modal import ASK_VIEW
from app.slack.connection import SlackConnection
from app.slack.home import BACKGROUND_TIMEOUT_S
from app.slack.listeners import Surfaces
from app.slack.manifest import COMMAND
from app.slack.overview import Overviews
from app.store.memory import MemoryOwnKeyStore, MemoryRunStore, MemoryWelcomeStore
from app.tracing.null import NullTracer
from tests.faults.building import EmptyReader, FileShelf, JournalReplies
from tests.unit.slack.building import RecordingIntake, deliver_form, deliver_json, make_app
from tests.unit.slack.conftest import SlackServer

CATALOG = Catalog(
    agents={"anthropic": CatalogAgent(model="a-1"), "codex": CatalogAgent(model="c-1")},
    agent="anthropic",
    sandboxes={"local": "local", "docker": "docker"},
    provider="local",
)
POLICY = RunPolicy(sandboxes=CATALOG.sandboxes, agents=CATALOG.agents)
IDENTITY = BotIdentity(
    team_id="T1", bot_id="BBOT", bot_user_id="UBOT", url="https://acme.slack.com/"
)
PERSON = {"user": {"id": "U1", "team_id": "T1"}, "team": {"id": "T1"}}


class HangingStore(MemoryRunStore):
    """Answers nothing."""

    @override
    async def unfinished(self) -> list[Run]:
        await asyncio.sleep(60)
        return []


class SickWelcomes(MemoryWelcomeStore):
    @override
    async def claim(self, team: str, person: str) -> bool:
        raise RuntimeError("the database is sick")


@dataclass
class World:
    """Surfaces over a scripted Slack and stores in memory."""

    app: AsyncApp
    surfaces: Surfaces
    store: MemoryRunStore
    welcomes: MemoryWelcomeStore
    intake: RecordingIntake
    server: SlackServer

    async def command(self, text: str, **fields: str) -> str:
        form = {"command": COMMAND, "text": text, "team_id": "T1", "channel_id": "C1"}
        status, body = await deliver_form(self.app, form | {"user_id": "U1"} | fields)
        assert status == 200, body
        answer = json.loads(body)
        assert answer["response_type"] == "ephemeral"
        return str(answer["text"])

    async def open(self, *, tab: str = "home", user: str = "U1", channel: str = "D1") -> None:
        event = {"type": "app_home_opened", "user": user, "channel": channel, "tab": tab}
        payload = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}
        assert (await deliver_json(self.app, payload))[0] == 200

    async def choose(self, message: Mapping[str, Any], **fields: Any) -> None:
        payload = {
            "type": "message_action",
            "callback_id": "ask_about",
            "trigger_id": "1.2",
            "action_ts": "1800000009.000100",
            "channel": {"id": "C1"},
            "message": message,
            **PERSON,
        }
        status, _ = await deliver_form(self.app, {"payload": json.dumps(payload | fields)})
        assert status == 200

    async def send(
        self, view: Mapping[str, Any], question: object, **fields: Any
    ) -> Mapping[str, str]:
        values = {"question": {"question": {"type": "plain_text_input", "value": question}}}
        sent = {"type": "modal", "callback_id": ASK_VIEW, "id": "V1", **view}
        payload = {"type": "view_submission", "view": sent | {"state": {"values": values}}}
        status, body = await deliver_form(
            self.app, {"payload": json.dumps({**payload, **PERSON, **fields})}
        )
        assert status == 200
        errors: Mapping[str, str] = json.loads(body or "{}").get("errors", {})
        return errors


def ports_of(store: MemoryRunStore) -> RunPorts:
    price = Price(
        input=Decimal(1), output=Decimal(1), cache_read=Decimal(1), cache_write=Decimal(1)
    )
    clock = SystemClock()
    return RunPorts(
        store=store,
        files=store.files,
        sessions=store.sessions,
        defaults=store.defaults,
        own_keys=MemoryOwnKeyStore(),
        threads=store.threads,
        approvals=store.approvals,
        audit=store.audit,
        pull_requests=store.pull_requests,
        channel_notes=store.channel_notes,
        judge=NoJudge(),
        ledger=Ledger(
            prices=Prices({"m": price}),
            budgets=Budgets(user_day=2_000_000, channel_day=5_000_000),
            store=store.spending,
            clock=clock,
        ),
        replies=JournalReplies(),
        reader=EmptyReader(),
        exchange=FileShelf(),
        tracer=NullTracer(),
        clock=clock,
        mask=str,
        has_secret=lambda _data: False,
    )


def world_of(
    slack: SlackConnection,
    server: SlackServer,
    *,
    policy: RunPolicy = POLICY,
    store: MemoryRunStore | None = None,
    welcomes: MemoryWelcomeStore | None = None,
    background_timeout_s: float = BACKGROUND_TIMEOUT_S,
) -> World:
    store, intake = store or MemoryRunStore(), RecordingIntake()
    welcomes = welcomes or MemoryWelcomeStore()
    overviews = Overviews(
        ports_of(store), catalog=CATALOG, policy=policy, identity=lambda: IDENTITY
    )
    surfaces = slack.surfaces(
        intake,
        overviews,
        welcomes=welcomes,
        keys=None,
        mask=str,
        background_timeout_s=background_timeout_s,
    )
    app = make_app(
        intake, **{name: getattr(surfaces, name) for name in ("ask", "commands", "home")}
    )
    return World(
        app=app, surfaces=surfaces, store=store, welcomes=welcomes, intake=intake, server=server
    )

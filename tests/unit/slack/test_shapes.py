"""Everything that was sent reaches the agent, or is named as not taken: in whatever shape, order and by whatever transport Slack tells of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from app.runs.history import Conversation
from app.runs.intake import Intake
from app.runs.policy import RunPolicy
from app.runs.stop import StopSignals
from app.runs.testing import ApprovalDesk, Run, RunRequest, run_id_for
from app.slack.api import BotIdentity
from app.slack.listeners import create_bolt_app
from app.slack.socket_mode import open_socket_mode
from app.store.memory import MemoryRunStore
from app.tracing.null import NullTracer
from tests.long import long_but
from tests.unit.slack.building import deliver_json
from tests.unit.slack.shapes import SHAPES, Shape, render
from tests.unit.slack.socket_server import open_socket_server
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from app.slack.connection import SlackConnection
    from tests.unit.slack.conftest import Answer, SlackServer

    Deliver = Callable[[dict[str, Any]], Awaitable[None]]

TS = "1800000000.000100"
RUN = run_id_for(team="T1", channel="C0GENERAL", message_ts=TS)
ORDERS = [("app_mention", "message"), ("message", "app_mention")]
RICH = ("files", "attachments", "blocks", "subtype")
PEOPLE = {"USAM00001": "Sam", "C0RANDOM1": "random"}


def message(shape: Shape) -> dict[str, Any]:
    return {"user": "U0ASKER01", "ts": TS, "text": shape.text, **shape.fields}


def event(kind: str, shape: Shape, *, lacks: tuple[str, ...] = ()) -> dict[str, Any]:
    fields = {name: value for name, value in message(shape).items() if name not in lacks}
    if kind == "app_mention":
        fields.pop("subtype", None)
    else:
        fields["channel_type"] = "channel"
    return {
        "type": "event_callback",
        "team_id": "T1",
        "event_id": f"Ev{kind}",
        "authorizations": [{"team_id": "T1", "user_id": "UBOT"}],
        "event": {"type": kind, "channel": "C0GENERAL", **fields},
    }


class StoringDispatcher:
    """Stores what is accepted, and lets nothing be done about it."""

    def __init__(self, store: MemoryRunStore) -> None:
        self._store = store

    async def submit(self, run: Run) -> bool:
        return await self._store.add(run)


def make_intake(store: MemoryRunStore) -> Intake:
    ports: Any = SimpleNamespace(store=store, tracer=NullTracer())
    dispatcher: Any = StoringDispatcher(store)
    policy = RunPolicy()
    desk = ApprovalDesk(ports, dispatcher=dispatcher, policy=policy)
    return Intake(ports, dispatcher=dispatcher, signals=StopSignals(), desk=desk, policy=policy)


@asynccontextmanager
async def entry(transport: str, intake: Intake) -> AsyncIterator[Deliver]:
    """Yields what delivers an event to `intake`, as Slack does it, and waits for the acknowledgement."""
    identity = BotIdentity(team_id="T1", bot_id="BBOT", bot_user_id="UBOT")
    async with open_socket_server() as server:
        app = create_bolt_app(
            bot_token="xoxb-1", base_url=server.url, identity=lambda: identity, intake=intake
        )

        async def post(payload: dict[str, Any]) -> None:
            assert (await deliver_json(app, payload))[0] == 200

        async def send(payload: dict[str, Any]) -> None:
            envelope = f"e{len(server.acknowledged)}"
            await server.send(envelope, payload)
            await until(lambda: envelope in server.acknowledged)

        if transport == "http":
            yield post
        else:
            async with open_socket_mode(app, app_token="xapp-1", base_url=server.url):
                yield send


async def told(store: MemoryRunStore, slack: SlackConnection) -> tuple[str, RunRequest]:
    """Returns what the agent is told of the message, and the request as it begins."""
    run = await store.get(RUN)
    assert run is not None
    view = await slack.reader.read(run.request)
    turns = Conversation(request=view.request, thread=view.messages).messages()
    return turns[-1].text, view.request


def check(shape: Shape, text: str, request: RunRequest) -> None:
    for fragment in shape.arrives:
        assert fragment in text, fragment
        assert len(fragment) < 20 or text.count(fragment) == 1, fragment
    assert not [fragment for fragment in shape.absent if fragment in text]
    assert tuple(file.name for file in request.content.files) == shape.files
    assert all(name in text for name in shape.files)
    for fragment in shape.left_out:
        assert any(fragment in left_out for left_out in request.content.left_out), fragment
    assert bool(shape.left_out) == bool(request.content.left_out)


def test_the_document_is_the_shapes() -> None:
    """`make messages` renders it."""
    assert Path("docs/messages.md").read_text() == render()


@pytest.fixture
def names(slack_server: SlackServer) -> None:
    slack_server.names.update(PEOPLE)


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("transport", "order"),
    long_but(
        [(transport, order) for transport in ("http", "socket") for order in ORDERS],
        lambda row: (row[0] == "http") == (row[1] == ORDERS[0]),
    ),
    ids=[
        "http-mention first",
        "http-message first",
        "socket-mention first",
        "socket-message first",
    ],
)
@pytest.mark.parametrize("name", SHAPES)
async def test_a_message_arrives_whole(
    slack: SlackConnection,
    slack_server: SlackServer,
    answer: type[Answer],
    *,
    name: str,
    order: tuple[str, str],
    transport: str,
) -> None:
    """Both events tell everything; either of them does alone; or neither does, and Slack is asked."""
    shape = SHAPES[name]
    for lacking in ("none", *order, "both"):
        store = MemoryRunStore()
        slack_server.pages["all"] = [message(shape)]
        if lacking != "both":
            slack_server.fail("conversations.replies", answer(error="missing_scope"))
        async with entry(transport, make_intake(store)) as deliver:
            for kind in order:
                lacks = RICH if lacking in (kind, "both") else ()
                await deliver(event(kind, shape, lacks=lacks))
        check(shape, *(await told(store, slack)))
        assert not slack_server.script["conversations.replies"]

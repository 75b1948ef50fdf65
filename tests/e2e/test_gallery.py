"""Answers that are hard to show, from the model's stream to the thread: whole, and taken by Slack at the first try."""

import asyncio
import json
from collections.abc import Collection

import pytest
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.aio import open_task_group
from app.playground.model.protocol import named_event
from app.playground.slack.types import YOU, JsonObject
from app.runs.delivery import shorten
from app.slack.markdown import neutralise, with_boxes
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, blocks_of_type, file_names, open_world, part_of
from tests.gallery.answers import ANSWERS
from tests.gallery.oracle import visible_text

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(600)]

FEW = ("task list", "sixty headings", "unclosed fence", "line ends", "40 kB", "everything at once")
CHANNELS = ("general", "random", "partners")
AT_ONCE = 12
DELTA_CHARS = 700


class GalleryModel:
    """Stands before a world: asked for an answer of the gallery by its number, it streams that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/model/v1/messages":
            await self._app(scope, receive, send)
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        asked = str(json.loads(body)["messages"][-1]["content"]).rpartition("answer number ")[2]
        number = int(asked.split(".")[0])
        text = list(ANSWERS.values())[number]
        response = StreamingResponse(iter(_stream(text)), media_type="text/event-stream")
        await response(scope, receive, send)


def _stream(text: str) -> list[bytes]:
    usage = {"input_tokens": 10, "output_tokens": 10}
    message: JsonObject = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-gallery",
    }
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    deltas = [text[at : at + DELTA_CHARS] for at in range(0, len(text), DELTA_CHARS)]
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        named_event("message_start", message=message),
        named_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(
            named_event("content_block_delta", index=0, delta={"type": "text_delta", "text": delta})
            for delta in deltas
        ),
        named_event("content_block_stop", index=0),
        named_event("message_delta", delta=end, usage={"output_tokens": 10}),
        named_event("message_stop"),
    ]


async def _deliver(stage: Stage, name: str, turns: asyncio.Semaphore) -> None:
    """Asks for it, and reads it in the thread."""
    number = list(ANSWERS).index(name)
    channel = CHANNELS[number % len(CHANNELS)]
    async with turns:
        ts = await stage.client.say(f"@Orion answer number {number}.", channel=channel)
        await stage.answer(ts, channel=channel)
    replies = await stage.bot_messages(ts, channel=channel)
    parts = sorted(
        (reply for reply in replies if (part_of(reply) or 0) >= 0),
        key=lambda one: part_of(one) or 0,
    )
    seen = "".join(
        visible_text(str(block["text"]))
        for part in parts
        for block in blocks_of_type(part, "markdown")
    )
    short, files = shorten(ANSWERS[name].strip())
    source = with_boxes(neutralise(short, asker=YOU))
    if len(parts) > 1 and "|---|" in source:
        head = visible_text("\n".join(source.splitlines()[:2]))
        seen = head + seen.replace(head, "")
    assert seen == visible_text(source), name
    thread = await stage.client.replies(ts, channel=channel)
    shared = {file for reply in thread for file in file_names(reply)}
    assert shared == set(files), name


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [pytest.param(FEW, id="few"), pytest.param(tuple(ANSWERS), id="all", marks=pytest.mark.long)]
)  # fmt: skip
async def test_answers_arrive_whole_and_at_the_first_try(
    start_orion: OpenOrion, names: Collection[str]
) -> None:
    """To the last character; what is a file is there; nothing was refused, neither the answer nor what was shown of it before."""
    async with (
        open_world(wrap=GalleryModel) as world,
        start_orion(world, ORION_RUNS_PER_USER_HOUR="500") as stage,
    ):
        turns = asyncio.Semaphore(AT_ONCE)
        async with open_task_group() as group:
            for name in names:
                group.create_task(_deliver(stage, name, turns))
        failed = [line["error"] for line in stage.orion.log_lines("slack.update_failed")]
        # A connection that breaks refuses nothing, and what is shown comes again.
        assert [error for error in failed if error != "ClientOSError"] == []
        refused = [call for call in await stage.client.calls() if call["error"]]
        assert [call for call in refused if call["error"] != "ratelimited"] == []
        assert len(stage.orion.log_lines("run.finished")) == len(names)

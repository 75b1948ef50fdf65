"""What people do in the workspace: the HTTP interface of the page, and of the tests in its place."""

import base64
import binascii
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import StreamingResponse

from app.playground.delivery_log import Attempt
from app.playground.lookalike import SlackLookalike
from app.playground.slack_text import as_sent, rich_text
from app.playground.slack_types import (
    BOT_USER_ID,
    YOU,
    Channel,
    JsonObject,
    Message,
    Person,
    SlackError,
)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        """JSON can escape half a surrogate pair, which no answer could repeat."""
        if isinstance(value, str):
            return value.encode("utf-8", "replace").decode()
        return value


class NewFile(_Body):
    name: str = Field(min_length=1, max_length=200)
    mimetype: str = "text/plain"
    content_base64: str


class NewMessage(_Body):
    channel: str
    user: str = YOU
    text: str = Field(default="", max_length=40_000)
    thread_ts: str | None = None
    files: list[NewFile] = []


class Press(_Body):
    channel: str
    ts: str
    action_id: str
    value: str | None = None
    user: str = YOU


class Submission(_Body):
    view_id: str
    values: dict[str, str | list[str]]
    """By block ids: what was written, or which options were chosen."""
    user: str = YOU


class Stop(_Body):
    channel: str
    thread_ts: str
    user: str = YOU


class Edit(_Body):
    channel: str
    ts: str
    user: str = YOU
    text: str = Field(min_length=1, max_length=40_000)


class Delete(_Body):
    channel: str
    ts: str
    user: str = YOU


class _People:
    def __init__(self, lookalike: SlackLookalike) -> None:
        self._lookalike = lookalike
        self._workspace = lookalike.workspace

    async def state(self) -> JsonObject:
        return {
            "me": YOU,
            "bot": BOT_USER_ID,
            "team": "Playground",
            "people": [_person(person) for person in self._workspace.people.values()],
            "channels": [_channel(channel) for channel in self._workspace.channels.values()],
            "banners": self._lookalike.banners,
            "links": [
                {"label": label, "href": href} for label, href in self._lookalike.config.links
            ],
            "outage": self._lookalike.faults.outage,
        }

    async def messages(
        self, channel: str, thread_ts: str | None = None, user: str | None = None
    ) -> JsonObject:
        with _refusals():
            found = self._workspace.channel(channel)
        return _messages(self._lookalike, found, thread_ts=thread_ts, user=user)

    async def history(self, channel: str, ts: str) -> JsonObject:
        with _refusals():
            message = self._workspace.messages[self._workspace.channel(channel).id].get(ts)
        if message is None:
            raise HTTPException(404, "message_not_found")
        return {"message": self._lookalike.ui_message(message), "versions": message.versions}

    async def say(self, body: NewMessage, request: Request) -> JsonObject:
        with _refusals():
            files = [
                _stored(self._lookalike, item, base_url=_base_url(request)) for item in body.files
            ]
            if not body.text.strip() and not files:
                raise SlackError("no_text")
            message = self._workspace.say(
                user=body.user,
                channel_ref=body.channel,
                typed=body.text,
                thread_ts=body.thread_ts,
                files=files,
            )
        return {"ts": message.ts, "channel": message.channel}

    async def edit(self, body: Edit) -> JsonObject:
        with _refusals():
            message = _own(self._lookalike, body.channel, body.ts, body.user)
            names = {person.name: person.id for person in self._workspace.people.values()}
            text = as_sent(body.text, names)
            self._workspace.edit(
                message, text=text, blocks=rich_text(text), by=body.user, label=True
            )
        return {"ts": message.ts}

    async def delete(self, body: Delete) -> JsonObject:
        with _refusals():
            message = _own(self._lookalike, body.channel, body.ts, body.user)
            self._workspace.delete(message, by=body.user)
        return {"ts": message.ts}

    async def actions(self, body: Press, request: Request) -> JsonObject:
        with _refusals():
            channel = self._workspace.channel(body.channel)
            message = self._workspace.messages[channel.id].get(body.ts)
            if message is None or message.deleted:
                raise SlackError("message_not_found")
            attempt, view = await self._lookalike.press(
                message=message,
                action_id=body.action_id,
                value=body.value,
                user=body.user,
                base_url=_base_url(request),
            )
        return _outcome(attempt) | {"view": view}

    async def submit(self, body: Submission) -> JsonObject:
        with _refusals():
            attempt, errors = await self._lookalike.submit(
                body.view_id, body.values, user=body.user
            )
        return _outcome(attempt) | {"errors": errors}

    async def stop(self, body: Stop) -> JsonObject:
        with _refusals():
            channel = self._workspace.channel(body.channel)
            self._lookalike.stop(channel=channel.id, thread_ts=body.thread_ts, user=body.user)
        return {"ok": True}

    async def events(self) -> StreamingResponse:
        return StreamingResponse(
            self._lookalike.feed.stream(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


def ui_router(lookalike: SlackLookalike) -> APIRouter:
    """Routes under `/ui`; a refusal is a 400 with Slack's error word as `detail`."""
    routes = _People(lookalike)
    router = APIRouter(prefix="/ui")
    router.get("/state")(routes.state)
    router.get("/messages")(routes.messages)
    router.get("/history")(routes.history)
    router.post("/messages")(routes.say)
    router.post("/edit")(routes.edit)
    router.post("/delete")(routes.delete)
    router.post("/actions")(routes.actions)
    router.post("/views")(routes.submit)
    router.post("/stop")(routes.stop)
    router.get("/events")(routes.events)
    return router


def respond_router(lookalike: SlackLookalike) -> APIRouter:
    """`POST /respond/{key}`: the response_url of a pressed button."""
    router = APIRouter()

    @router.post("/respond/{key}")
    async def respond(key: str, body: Annotated[dict[str, Any], Body()]) -> JsonObject:
        with _refusals():
            lookalike.interactions.respond(key, body)
        return {"ok": True}

    return router


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except SlackError as refused:
        raise HTTPException(max(refused.status, 400), refused.error) from refused


def _outcome(attempt: Attempt) -> JsonObject:
    return {"ok": attempt.ok, "status": attempt.status, "reason": attempt.reason}


def _base_url(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _person(person: Person) -> JsonObject:
    return {
        "id": person.id,
        "name": person.name,
        "real_name": person.real_name,
        "is_bot": person.is_bot,
        "team_id": person.team_id,
    }


def _channel(channel: Channel) -> JsonObject:
    return {
        "id": channel.id,
        "name": channel.name,
        "im_user": channel.im_user,
        "members": sorted(channel.members),
        "is_archived": channel.is_archived,
        "is_ext_shared": channel.is_ext_shared,
    }


def _messages(
    lookalike: SlackLookalike, channel: Channel, *, thread_ts: str | None, user: str | None
) -> JsonObject:
    workspace = lookalike.workspace
    shown = [
        message
        for message in workspace.messages[channel.id].values()
        if not message.deleted
        and (message.root_ts == thread_ts if thread_ts else message.thread_ts is None)
        and (user is None or message.ephemeral_to in {None, user})
    ]
    statuses = [
        workspace.status_of(channel_id, root)
        for channel_id, root in workspace.statuses
        if channel_id == channel.id and thread_ts in {None, root}
    ]
    return {
        "messages": [lookalike.ui_message(message) for message in shown],
        "statuses": statuses,
        "as_of": workspace.latest_ts(),
    }


def _own(lookalike: SlackLookalike, channel_ref: str, ts: str, user: str) -> Message:
    workspace = lookalike.workspace
    message = workspace.message(workspace.channel(channel_ref).id, ts)
    if message.user != user:
        raise SlackError("cant_update_message")
    return message


def _stored(lookalike: SlackLookalike, item: NewFile, *, base_url: str) -> JsonObject:
    try:
        content = base64.b64decode(item.content_base64, validate=True)
    except binascii.Error as exc:
        raise SlackError("invalid_file") from exc
    stored = lookalike.files.reserve(name=item.name, size=len(content), mimetype=item.mimetype)
    stored.content = content
    return stored.render(base_url=base_url)

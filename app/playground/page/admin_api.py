"""The playground's own HTTP interface, for its page and for tests: what people do in the workspace, and the controls behind it."""

import base64
import binascii
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import StreamingResponse

from app.playground.page.event_stream import EventStream, message_json
from app.playground.slack.deliveries import Attempt
from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import (
    BOT_USER_ID,
    YOU,
    Change,
    JsonObject,
    Message,
    SlackError,
)
from app.playground.slack.web_api import Fault


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
    blocks: list[JsonObject] = []
    attachments: list[JsonObject] = []
    looking_at: list[JsonObject] = []
    forward: "Forwarded | None" = None


class Forwarded(_Body):
    channel: str
    ts: str


class _OfMessage(_Body):
    channel: str
    ts: str
    user: str = YOU


class Press(_OfMessage):
    action_id: str
    value: str | None = None


class HomePress(_Body):
    action_id: str
    user: str = YOU


class Shortcut(_OfMessage):
    callback_id: str


class Reaction(_OfMessage):
    name: str = Field(min_length=1, max_length=100)


class Command(_Body):
    channel: str
    user: str = YOU
    text: str = Field(pattern=r"^/\S+", max_length=4_000)


class Opening(_Body):
    user: str = YOU
    tab: Literal["home", "messages"] = "home"


class Edit(_OfMessage):
    text: str = Field(min_length=1, max_length=40_000)


class Delete(_OfMessage):
    pass


class Submission(_Body):
    view_id: str
    values: dict[str, str | list[str]]
    """By block ids: what was written, or which options were chosen."""
    user: str = YOU


class Stop(_Body):
    channel: str
    thread_ts: str
    user: str = YOU


class Switches(_Body):
    outage: bool | None = None
    token_revoked: bool | None = None
    clear_faults: bool = False


class ChannelChange(_Body):
    channel: str
    archived: bool | None = None
    bot_member: bool | None = None


class UsergroupChange(_Body):
    usergroup: str = Field(pattern=r"^S[A-Z0-9]{2,20}$")
    users: list[str]


class Redelivery(_Body):
    event_id: str
    with_header: bool = True


class Disconnect(_Body):
    reason: Literal["warning", "refresh_requested", "link_disabled"] = "refresh_requested"


def create_admin_router(fake_slack: FakeSlack, events: EventStream) -> APIRouter:
    """Routes under `/ui`, and `POST /respond/{key}`: the response_url of a pressed button.

    A refusal is a SlackError, which the application answers with status 400 or more and Slack's error word as `detail`.
    """
    person, controls = _Person(fake_slack, events), _TestControls(fake_slack, events)
    router = APIRouter()
    router.get("/ui/state")(person.state)
    router.get("/ui/messages")(person.messages)
    router.get("/ui/history")(person.history)
    router.get("/ui/events")(person.events)
    router.post("/ui/messages")(person.say)
    router.post("/ui/edit")(person.edit)
    router.post("/ui/delete")(person.delete)
    router.post("/ui/actions")(person.press)
    router.post("/ui/views")(person.submit)
    router.post("/ui/shortcuts")(person.choose_shortcut)
    router.post("/ui/reactions")(person.react)
    router.post("/ui/commands")(person.command)
    router.get("/ui/home")(person.home)
    router.post("/ui/home")(person.open_home)
    router.post("/ui/home/actions")(person.press_home)
    router.post("/ui/stop")(person.stop)
    router.post("/respond/{key}")(controls.respond)
    router.post("/ui/faults")(controls.faults)
    router.post("/ui/switches")(controls.switches)
    router.post("/ui/channels")(controls.channels)
    router.post("/ui/usergroups")(controls.usergroups)
    router.get("/ui/deliveries")(controls.deliveries)
    router.post("/ui/redeliver")(controls.redeliver)
    router.get("/ui/calls")(controls.calls)
    router.post("/ui/sockets/disconnect")(controls.disconnect)
    return router


class _Person:
    """Does what people in Slack can do."""

    def __init__(self, fake_slack: FakeSlack, events: EventStream) -> None:
        self._slack = fake_slack
        self._workspace = fake_slack.workspace
        self._events = events

    async def state(self) -> JsonObject:
        channels = self._workspace.channels.values()
        return {
            "me": YOU,
            "bot": BOT_USER_ID,
            "team": "Playground",
            "people": [
                asdict(person) | {"is_bot": person.is_bot}
                for person in self._workspace.people.values()
            ],
            "channels": [asdict(one) | {"members": sorted(one.members)} for one in channels],
            "banners": self._slack.config.banners,
            "links": [{"label": label, "href": href} for label, href in self._slack.config.links],
            "outage": self._slack.faults.outage,
        }

    async def messages(
        self, channel: str, thread_ts: str | None = None, user: str | None = None
    ) -> JsonObject:
        channel_id = self._workspace.channel(channel).id
        shown = [
            message_json(self._workspace, message)
            for message in self._workspace.messages[channel_id].values()
            if not message.deleted
            and (message.root_ts == thread_ts if thread_ts else message.thread_ts is None)
            and (user is None or message.ephemeral_to in {None, user})
        ]
        statuses = [
            self._workspace.status_of(channel_id, root)
            for of_channel, root in self._workspace.statuses
            if of_channel == channel_id and thread_ts in {None, root}
        ]
        return {"messages": shown, "statuses": statuses, "as_of": self._workspace.latest_ts()}

    async def history(self, channel: str, ts: str) -> JsonObject:
        message = self._workspace.messages[self._workspace.channel(channel).id].get(ts)
        if message is None:
            raise HTTPException(404, "message_not_found")
        return {"message": message_json(self._workspace, message), "versions": message.versions}

    async def say(self, body: NewMessage, request: Request) -> JsonObject:
        files = [self._stored(item, base_url=_base_url(request)) for item in body.files]
        attachments = list(body.attachments)
        if body.forward is not None:
            channel = self._workspace.channel(body.forward.channel)
            forwarded = self._workspace.message(channel.id, body.forward.ts)
            attachments.append(self._workspace.forwarded(forwarded))
        if not (body.text.strip() or files or body.blocks or attachments):
            raise SlackError("no_text")
        message = self._workspace.say(
            user=body.user,
            channel_ref=body.channel,
            typed=body.text,
            thread_ts=body.thread_ts,
            files=files,
            blocks=body.blocks,
            attachments=attachments,
            looking_at=body.looking_at,
        )
        return {"ts": message.ts, "channel": message.channel}

    async def edit(self, body: Edit) -> JsonObject:
        message = self._own(body)
        self._workspace.retype(message, body.text)
        return {"ts": message.ts}

    async def delete(self, body: Delete) -> JsonObject:
        message = self._own(body)
        self._workspace.delete(message, by=body.user)
        return {"ts": message.ts}

    async def press(self, body: Press, request: Request) -> JsonObject:
        attempt, view = await self._slack.press(
            message=self._seen(body),
            action_id=body.action_id,
            value=body.value,
            user=body.user,
            base_url=_base_url(request),
        )
        return _outcome(attempt) | {"view": view}

    async def choose_shortcut(self, body: Shortcut, request: Request) -> JsonObject:
        attempt, view = await self._slack.choose_shortcut(
            message=self._seen(body),
            callback_id=body.callback_id,
            user=body.user,
            base_url=_base_url(request),
        )
        return _outcome(attempt) | {"view": view}

    async def react(self, body: Reaction) -> JsonObject:
        self._slack.react(message=self._seen(body), name=body.name, user=body.user)
        return {"ok": True}

    async def command(self, body: Command, request: Request) -> JsonObject:
        attempt, text = await self._slack.command(
            channel_ref=body.channel, typed=body.text, user=body.user, base_url=_base_url(request)
        )
        return _outcome(attempt) | {"text": text}

    async def home(self, user: str = YOU) -> JsonObject:
        """Returns what a person who opens the app is shown: `view` of its Home tab, `prompts` and `titles` of its direct message."""
        channel = self._workspace.channel(user).id
        titles = self._workspace.titles.items()
        return {
            "view": self._workspace.homes.get(user),
            "prompts": self._workspace.prompts.get(channel),
            "titles": {root: title for (of, root), title in titles if of == channel},
        }

    async def open_home(self, body: Opening) -> JsonObject:
        self._slack.open_home(user=body.user, tab=body.tab)
        return {"ok": True}

    async def press_home(self, body: HomePress) -> JsonObject:
        attempt, view = await self._slack.press_home(action_id=body.action_id, user=body.user)
        return _outcome(attempt) | {"view": view}

    async def submit(self, body: Submission) -> JsonObject:
        attempt, errors = await self._slack.submit(body.view_id, body.values, user=body.user)
        return _outcome(attempt) | {"errors": errors}

    async def stop(self, body: Stop) -> JsonObject:
        channel = self._workspace.channel(body.channel)
        self._slack.stop(channel=channel.id, thread_ts=body.thread_ts, user=body.user)
        return {"ok": True}

    async def events(self) -> StreamingResponse:
        return StreamingResponse(
            self._events.stream(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _seen(self, body: _OfMessage) -> Message:
        channel = self._workspace.channel(body.channel)
        message = self._workspace.messages[channel.id].get(body.ts)
        if message is None or message.deleted:
            raise SlackError("message_not_found")
        return message

    def _own(self, body: _OfMessage) -> Message:
        channel = self._workspace.channel(body.channel)
        message = self._workspace.message(channel.id, body.ts)
        if message.user != body.user:
            raise SlackError("cant_update_message")
        return message

    def _stored(self, item: NewFile, *, base_url: str) -> JsonObject:
        try:
            content = base64.b64decode(item.content_base64, validate=True)
        except binascii.Error as exc:
            raise SlackError("invalid_file") from exc
        files = self._workspace.files
        stored = files.reserve(name=item.name, size=len(content), mimetype=item.mimetype)
        stored.content = content
        return stored.render(base_url=base_url)


class _TestControls:
    """Does what nobody in Slack can do; for tests and for the curious."""

    def __init__(self, fake_slack: FakeSlack, events: EventStream) -> None:
        self._slack = fake_slack
        self._events = events

    async def respond(self, key: str, body: Annotated[dict[str, Any], Body()]) -> JsonObject:
        self._slack.interactions.respond(key, body)
        return {"ok": True}

    async def faults(self, body: Fault) -> JsonObject:
        self._slack.faults.plan(body)
        return {"ok": True}

    async def switches(self, body: Switches) -> JsonObject:
        faults = self._slack.faults
        if body.clear_faults:
            faults.clear()
        if body.outage is not None:
            faults.outage = body.outage
        if body.token_revoked is not None:
            faults.token_revoked = body.token_revoked
        self._events.publish({"kind": "state"})
        return {"ok": True}

    async def channels(self, body: ChannelChange) -> JsonObject:
        channel = self._slack.workspace.channel(body.channel)
        if body.archived is not None:
            channel.is_archived = body.archived
        if body.bot_member is not None:
            channel.members -= {BOT_USER_ID}
            channel.members |= {BOT_USER_ID} if body.bot_member else set()
        self._slack.workspace.tell(Change(kind="channel", channel=channel.id))
        return {"ok": True}

    async def usergroups(self, body: UsergroupChange) -> JsonObject:
        self._slack.change_usergroup(body.usergroup, body.users)
        return {"ok": True}

    async def deliveries(self) -> JsonObject:
        return {
            "deliveries": self._slack.deliverer.log(),
            "events_url": self._slack.events_url,
            "sockets": self._slack.sockets.count,
        }

    async def redeliver(self, body: Redelivery) -> JsonObject:
        if not self._slack.deliverer.redeliver(body.event_id, with_header=body.with_header):
            raise HTTPException(404, "event_not_found")
        return {"ok": True}

    async def calls(self) -> JsonObject:
        return {"calls": list(self._slack.api.calls)}

    async def disconnect(self, body: Disconnect) -> JsonObject:
        return {"told": await self._slack.sockets.disconnect(body.reason)}


def _outcome(attempt: Attempt) -> JsonObject:
    return {"ok": attempt.ok, "status": attempt.status, "reason": attempt.reason}


def _base_url(request: Request) -> str:
    return str(request.base_url).rstrip("/")

"""The workspace: who is in it, what was said, and every version a message went through. In memory."""

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime

from app.playground.residents import channels_at_start, people_at_start
from app.playground.slack_text import as_sent, rich_text
from app.playground.slack_types import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    Change,
    Channel,
    Clock,
    JsonObject,
    Message,
    Person,
    SlackError,
)


class Workspace:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.people = {person.id: person for person in people_at_start()}
        self.channels = {channel.id: channel for channel in channels_at_start()}
        self.messages: dict[str, dict[str, Message]] = {channel: {} for channel in self.channels}
        self.statuses: dict[tuple[str, str], JsonObject] = {}
        """(channel, thread_ts) -> {"status": text, "until": epoch seconds, "session": processing|active|...}."""
        self.listeners: list[Callable[[Change], None]] = []
        self._last_ts_us = 0

    def now(self) -> datetime:
        return self._clock.now()

    def tell(self, change: Change) -> None:
        for listener in self.listeners:
            listener(change)

    # ---- looking up ----

    def channel(self, ref: str) -> Channel:
        """By id, `#name`, name, or a user id (their DM with the bot)."""
        found = self.channels.get(ref)
        for channel in () if found else self.channels.values():
            if ref in {channel.im_user, f"#{channel.name}"} or (
                ref == channel.name and not channel.im_user
            ):
                found = channel
                break
        if found is None:
            raise SlackError("channel_not_found")
        return found

    def person(self, user: str) -> Person:
        if user not in self.people:
            raise SlackError("user_not_found")
        return self.people[user]

    def message(self, channel: str, ts: str) -> Message:
        found = self.messages[channel].get(ts)
        if found is None or found.deleted or found.ephemeral_to:
            raise SlackError("message_not_found")
        return found

    def thread(self, channel: str, root_ts: str) -> list[Message]:
        """Root first, oldest first."""
        return [
            message
            for message in self.messages[channel].values()
            if not message.deleted
            and not message.ephemeral_to
            and root_ts in {message.ts, message.thread_ts}
        ]

    def top_level(self, channel: str) -> list[Message]:
        return [
            message
            for message in self.messages[channel].values()
            if not message.deleted and not message.ephemeral_to and message.thread_ts is None
        ]

    # ---- saying ----

    def say(
        self,
        *,
        user: str,
        channel_ref: str,
        typed: str,
        thread_ts: str | None = None,
        files: Sequence[JsonObject] = (),
    ) -> Message:
        """A person's message; what they typed becomes Slack's text."""
        person, channel = self.person(user), self.channel(channel_ref)
        if user not in channel.members:
            raise SlackError("not_in_channel")
        text = as_sent(typed, {other.name: other.id for other in self.people.values()})
        return self.post(
            channel,
            Message(
                ts="",
                channel=channel.id,
                user=person.id,
                text=text,
                blocks=rich_text(text) if text else [],
                thread_ts=thread_ts,
                files=list(files),
                client_msg_id=str(uuid.uuid4()),
            ),
        )

    def post(self, channel: Channel, message: Message) -> Message:
        """Give the message its ts, store it, tell everyone."""
        if channel.is_archived:
            raise SlackError("is_archived")
        if message.thread_ts is not None:
            root = self.messages[channel.id].get(message.thread_ts)
            # Source: docs.slack.dev, "Threading messages": always the root's ts, never a reply's, read 2026-11.
            if root is None or root.deleted or root.thread_ts is not None:
                raise SlackError("thread_not_found")
        message.ts = self.next_ts()
        self._record(message, kind="posted", by=message.user)
        self.messages[channel.id][message.ts] = message
        if message.ephemeral_to:
            self.tell(Change(kind="ephemeral", channel=channel.id, message=message))
            return message
        if message.is_bot and message.thread_ts:
            # Source: docs.slack.dev, assistant.threads.setStatus: cleared when the app posts in the thread, read 2026-11.
            self.set_status(channel.id, message.thread_ts, status="", until=0.0)
        self.tell(Change(kind="posted", channel=channel.id, message=message))
        return message

    def edit(
        self, message: Message, *, text: str, blocks: list[JsonObject], by: str, label: bool
    ) -> Message:
        previous = self.render(message)
        message.text, message.blocks = text, blocks
        if label:
            message.edited = {"user": by, "ts": self.next_ts()}
        self._record(message, kind="changed", by=by)
        self.tell(
            Change(
                kind="changed",
                channel=message.channel,
                message=message,
                previous=previous,
                author=by,
            )
        )
        return message

    def delete(self, message: Message, *, by: str) -> None:
        """A message with replies becomes a tombstone. Source: docs.slack.dev, message subtype `tombstone`, read 2026-11."""
        previous = self.render(message)
        if len(self.thread(message.channel, message.ts)) > 1:
            message.tombstone, message.files = True, []
            message.text, message.blocks = "This message was deleted.", []
        else:
            message.deleted = True
        self._record(message, kind="deleted", by=by)
        self.tell(
            Change(
                kind="changed" if message.tombstone else "deleted",
                channel=message.channel,
                message=message,
                previous=previous,
                author=by,
            )
        )

    def react(self, message: Message, *, name: str, user: str) -> None:
        message.reactions.setdefault(name, []).append(user)
        self.tell(Change(kind="reacted", channel=message.channel, message=message))

    # ---- status ----

    def set_status(
        self,
        channel: str,
        thread_ts: str,
        *,
        status: str | None = None,
        until: float | None = None,
        session: str | None = None,
    ) -> None:
        """Change what the thread shows below its last message; None leaves a field as it is."""
        entry = self.statuses.get((channel, thread_ts), {"status": "", "until": 0.0, "session": ""})
        changed = {
            "status": entry["status"] if status is None else status,
            "until": entry["until"] if until is None else until,
            "session": entry["session"] if session is None else session,
        }
        if changed == entry:
            return
        self.statuses[channel, thread_ts] = changed
        self.tell(Change(kind="status", channel=channel, status=self.status_of(channel, thread_ts)))

    def status_of(self, channel: str, thread_ts: str) -> JsonObject:
        entry = self.statuses.get((channel, thread_ts), {"status": "", "until": 0.0, "session": ""})
        expires_in_s = max(0.0, entry["until"] - self.now().timestamp())
        return {
            "channel": channel,
            "thread_ts": thread_ts,
            "status": entry["status"] if expires_in_s else "",
            "expires_in_s": round(expires_in_s, 3),
            "session": entry["session"],
        }

    # ---- Slack's JSON ----

    def render(self, message: Message, *, with_metadata: bool = False) -> JsonObject:
        person = self.people[message.user]
        out: JsonObject = {
            "type": "message",
            "user": message.user,
            "text": message.text,
            "ts": message.ts,
            "team": person.team_id,
        }
        optional = {
            "client_msg_id": message.client_msg_id,
            "blocks": message.blocks,
            "thread_ts": message.thread_ts,
            "edited": message.edited,
            "files": message.files,
            "metadata": message.metadata if with_metadata else None,
        }
        out |= {key: value for key, value in optional.items() if value}
        if message.thread_ts:
            out["parent_user_id"] = self.messages[message.channel][message.thread_ts].user
        if message.files and not message.is_bot:
            out["subtype"] = "file_share"
        if message.tombstone:
            out |= {"user": "USLACKBOT", "subtype": "tombstone", "hidden": True}
        if message.is_bot:
            out |= {"bot_id": BOT_ID, "app_id": APP_ID, "bot_profile": self.bot_profile()}
        if message.reactions:
            out["reactions"] = [
                {"name": name, "users": users, "count": len(users)}
                for name, users in message.reactions.items()
            ]
        return out | self._thread_summary(message)

    def _thread_summary(self, message: Message) -> JsonObject:
        replies = [] if message.thread_ts else self.thread(message.channel, message.ts)[1:]
        if not replies:
            return {}
        return {
            "thread_ts": message.ts,
            "reply_count": len(replies),
            "reply_users": list(dict.fromkeys(reply.user for reply in replies)),
            "latest_reply": replies[-1].ts,
        }

    def bot_profile(self) -> JsonObject:
        bot = self.people[BOT_USER_ID]
        return {"id": BOT_ID, "app_id": APP_ID, "name": bot.name, "team_id": TEAM_ID}

    def _record(self, message: Message, *, kind: str, by: str) -> None:
        message.versions.append(
            {
                "kind": kind,
                "at": self.now().isoformat(),
                "by": by,
                "text": message.text,
                "blocks": message.blocks,
            }
        )

    def next_ts(self) -> str:
        """Seconds with six decimals, never twice. Source: docs.slack.dev, "Message server", `ts`, read 2026-11."""
        self._last_ts_us = max(self._last_ts_us + 1, int(self.now().timestamp() * 1_000_000))
        return self.latest_ts()

    def latest_ts(self) -> str:
        """The newest ts given out: a listing made now holds everything up to it."""
        return f"{self._last_ts_us // 1_000_000}.{self._last_ts_us % 1_000_000:06d}"

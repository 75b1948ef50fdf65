"""What the fake Slack holds, in memory: who is in it, what was said in every version, which files; and how Slack stores what people type."""

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Literal

from app.playground.slack.types import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    COLLEAGUE,
    EXTERNAL,
    EXTERNAL_TEAM_ID,
    GENERAL,
    PAGER,
    PAGER_APP_ID,
    PAGER_BOT_ID,
    PARTNERS,
    RANDOM,
    TEAM_ID,
    YOU,
    Change,
    Channel,
    Clock,
    JsonObject,
    Message,
    Person,
    SlackError,
    new_id,
)

_TOKEN = re.compile(r"<(?:@[UW][A-Z0-9]+|#C[A-Z0-9]+(?:\|[^<>|]*)?|!(?:here|channel|everyone))>")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_URL = re.compile(r"https?://[^\s<>|]+[^\s<>|.,;:!?)\]}'\"]")
_PIECE = re.compile(r"<@([UW][A-Z0-9]+)>|<(https?://[^|>]+)(?:\|([^>]*))?>")


def as_sent(typed: str, names: dict[str, str]) -> str:
    """Returns the `text` Slack makes of what was typed; `names` maps display names to user ids for `@Name`.

    Tokens such as `<@U0ORION>` pass through, addresses become `<https://...>` outside code.
    """
    out: list[str] = []
    end = 0
    for match in _CODE.finditer(typed):
        out += (_prose(typed[end : match.start()], names), escape(match.group(), quote=False))
        end = match.end()
    out.append(_prose(typed[end:], names))
    return "".join(out)


def _prose(text: str, names: dict[str, str]) -> str:
    out: list[str] = []
    end = 0
    for match in _TOKEN.finditer(text):
        out += (_plain(text[end : match.start()], names), match.group())
        end = match.end()
    out.append(_plain(text[end:], names))
    return "".join(out)


def _plain(text: str, names: dict[str, str]) -> str:
    # Addresses are found before escaping, so that "&" inside one is escaped once and ends nothing.
    text = _URL.sub(
        lambda match: f"\x00{match.group()}\x01", text.replace("\x00", "").replace("\x01", "")
    )
    text = escape(text, quote=False).replace("\x00", "<").replace("\x01", ">")
    for name, user in names.items():
        text = re.sub(rf"(?<![\w<])@{re.escape(name)}\b", f"<@{user}>", text, flags=re.IGNORECASE)
    return text


def rich_text(text: str) -> list[JsonObject]:
    """Returns the `blocks` of a person's message, as Slack's own composer writes them (plain sections only)."""
    elements: list[JsonObject] = []
    end = 0
    for match in _PIECE.finditer(text):
        elements += _text_element(text[end : match.start()])
        if match.group(1):
            elements.append({"type": "user", "user_id": match.group(1)})
        else:
            elements.append({"type": "link", "url": unescape(match.group(2))})
        end = match.end()
    elements += _text_element(text[end:])
    section = {"type": "rich_text_section", "elements": elements}
    return [{"type": "rich_text", "block_id": "person", "elements": [section]}]


def _text_element(text: str) -> list[JsonObject]:
    return [{"type": "text", "text": unescape(text)}] if text else []


def unescape(text: str) -> str:
    """Returns the text behind Slack's escapes."""
    # Source: docs.slack.dev, "Formatting message text": exactly these three characters are escaped, read 2026-11.
    return text.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")


def seed_people() -> list[Person]:
    """Returns you, a colleague, somebody of another company, another app, and the bot."""
    return [
        Person(id=YOU, name="You", real_name="You"),
        Person(id=COLLEAGUE, name="Sam", real_name="Sam Colleague"),
        Person(id=EXTERNAL, name="Robin", real_name="Robin of Acme", team_id=EXTERNAL_TEAM_ID),
        Person(id=PAGER, name="Pager", real_name="Pager", bot_id=PAGER_BOT_ID, app_id=PAGER_APP_ID),
        Person(id=BOT_USER_ID, name="Orion", real_name="Orion", bot_id=BOT_ID, app_id=APP_ID),
    ]


def seed_channels() -> list[Channel]:
    """Returns two open channels, one shared with another company, and a DM with the bot for each person."""
    own = {YOU, COLLEAGUE, PAGER, BOT_USER_ID}
    shared = [
        Channel(id=GENERAL, name="general", members=set(own)),
        Channel(id=RANDOM, name="random", members=set(own)),
        Channel(id=PARTNERS, name="partners", members=own | {EXTERNAL}, is_ext_shared=True),
    ]
    return [*shared, *map(direct_channel, (YOU, COLLEAGUE, EXTERNAL))]


def direct_channel(user: str) -> Channel:
    """Returns a person's DM with the bot."""
    return Channel(
        id=f"D0{user[2:]}",
        name=f"dm-{user[2:].lower()}",
        members={user, BOT_USER_ID},
        im_user=user,
        is_ext_shared=user == EXTERNAL,
    )


FILE_MAX_BYTES = 1024**3
"""Source: Slack's help, "Add files", the largest that a person can send, read 2026-11."""
FILES_MAX = 100
TITLE_MAX = 200


@dataclass(slots=True, kw_only=True)
class StoredFile:
    id: str
    name: str
    mimetype: str
    size: int
    content: bytes | None = field(default=None, repr=False)

    def render(self, *, base_url: str) -> JsonObject:
        # As Slack's addresses have it: no more than letters, digits and a few signs of the name.
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", self.name).strip("._").lower() or "file"
        address = f"{base_url}/files-pri/{self.id}/{plain}"
        return {
            "id": self.id,
            "name": self.name,
            "title": self.name,
            "mimetype": self.mimetype,
            "filetype": self.name.rpartition(".")[2] if "." in self.name else "text",
            "size": self.size,
            "mode": "hosted",
            "url_private": address,
            "url_private_download": f"{address}?download=1",
        }


class FileStore:
    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}

    def reserve(self, *, name: str, size: int, mimetype: str = "text/plain") -> StoredFile:
        if not 0 <= size <= FILE_MAX_BYTES:
            raise SlackError("file_upload_size_restricted")
        stored = StoredFile(id=new_id("F"), name=name, mimetype=mimetype, size=size)
        self._files[stored.id] = stored
        while len(self._files) > FILES_MAX:
            self._files.pop(next(iter(self._files)))
        return stored

    def fill(self, file_id: str, content: bytes) -> bool:
        stored = self._files.get(file_id)
        if stored is None or len(content) != stored.size:
            return False
        stored.content = content
        return True

    def all(self) -> Sequence[StoredFile]:
        """Returns all messages, oldest first."""
        return tuple(self._files.values())

    def get(self, file_id: str) -> StoredFile | None:
        return self._files.get(file_id)


NO_STATUS: JsonObject = {"status": "", "until": 0.0, "session": ""}
"""Text, until when in epoch seconds, and processing | active | suspended | closed."""


class Workspace:
    def __init__(self, *, clock: Clock) -> None:
        self.clock = clock
        """What the workspace lives by; tests turn it."""
        self.files = FileStore()
        self.people = {person.id: person for person in seed_people()}
        self.channels = {channel.id: channel for channel in seed_channels()}
        self.messages: dict[str, dict[str, Message]] = {channel: {} for channel in self.channels}
        self.statuses: dict[tuple[str, str], JsonObject] = {}
        """By channel and root, with the keys of NO_STATUS."""
        self.homes: dict[str, JsonObject] = {}
        """Home tabs that the app has published, by people."""
        self.prompts: dict[str, JsonObject] = {}
        """Suggested prompts, by direct messages."""
        self.titles: dict[tuple[str, str], str] = {}
        """Of sessions, by channel and root."""
        self.usergroups: dict[str, list[str]] = {}
        """Members, by ids."""
        self.listeners: list[Callable[[Change], None]] = []
        self._last_ts_us = 0

    def now(self) -> datetime:
        return self.clock.now()

    def tell(self, change: Change) -> None:
        for listener in self.listeners:
            listener(change)

    def channel(self, ref: str) -> Channel:
        """Finds it by id, `#name`, name, or a user id (their DM with the bot)."""
        if ref in self.channels:
            return self.channels[ref]
        for channel in self.channels.values():
            bare = "" if channel.im_user else channel.name
            if ref and ref in {channel.im_user, f"#{channel.name}", bare}:
                return channel
        raise SlackError("channel_not_found")

    def join(self, person: Person) -> None:
        """Lets somebody into the workspace: into its first channel, and with a DM with the bot."""
        direct = direct_channel(person.id)
        self.people[person.id] = person
        self.channels[direct.id] = direct
        self.messages[direct.id] = {}
        self.channels[GENERAL].members.add(person.id)

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
        """Returns a thread's messages: the root first, then oldest first."""
        return [one for one in self._public(channel) if root_ts in {one.ts, one.thread_ts}]

    def top_level(self, channel: str) -> list[Message]:
        return [message for message in self._public(channel) if message.thread_ts is None]

    def _public(self, channel: str) -> Iterator[Message]:
        messages = self.messages[channel].values()
        return (one for one in messages if not one.deleted and not one.ephemeral_to)

    def say(
        self,
        *,
        user: str,
        channel_ref: str,
        typed: str,
        thread_ts: str | None = None,
        files: Sequence[JsonObject] = (),
        blocks: Sequence[JsonObject] = (),
        attachments: Sequence[JsonObject] = (),
        looking_at: Sequence[JsonObject] = (),
        ts: str = "",
    ) -> Message:
        """Posts a message of a person or another app; what was typed becomes Slack's text, `blocks` go with it.

        `looking_at`: entities of what the person has open beside the app. `ts`: as if it had been said then.
        """
        person, channel = self.person(user), self.channel(channel_ref)
        if user not in channel.members:
            raise SlackError("not_in_channel")
        text = self._as_sent(typed)
        return self.post(
            channel,
            Message(
                ts=ts,
                channel=channel.id,
                user=person.id,
                text=text,
                blocks=[*(rich_text(text) if text and not person.is_bot else []), *blocks],
                attachments=list(attachments),
                thread_ts=thread_ts,
                files=list(files),
                client_msg_id=None if person.is_bot else str(uuid.uuid4()),
                app_context={"entities": list(looking_at)} if looking_at else None,
            ),
        )

    def forwarded(self, message: Message) -> JsonObject:
        """Returns the attachment of a message that somebody forwards. Source: Slack's client, shared messages, seen 2026-11."""
        person, channel = self.people[message.user], self.channels[message.channel]
        digits = message.ts.replace(".", "")
        shown = {"message": {"blocks": message.blocks}} if message.blocks else None
        optional = {
            "message_blocks": [{"team": TEAM_ID, "channel": channel.id, "ts": message.ts, **shown}]
            if shown
            else None,
            "attachments": message.attachments,
            "files": message.files,
        }
        return {
            "is_share": True,
            "is_msg_unfurl": True,
            "ts": message.ts,
            "author_id": person.id,
            "author_name": person.real_name,
            "author_subname": person.name,
            "channel_id": channel.id,
            "channel_team": TEAM_ID,
            "from_url": f"https://playground.slack.com/archives/{channel.id}/p{digits}",
            "fallback": f"[{message.ts}] {person.name}: {message.text}",
            "text": message.text,
            "footer": f"Posted in #{channel.name}",
            **{name: value for name, value in optional.items() if value},
        }

    def retype(self, message: Message, typed: str) -> None:
        """Edits a person's message, as they do."""
        text = self._as_sent(typed)
        self.edit(message, text=text, blocks=rich_text(text), by=message.user, label=True)

    def _as_sent(self, typed: str) -> str:
        return as_sent(typed, {person.name: person.id for person in self.people.values()})

    def post(self, channel: Channel, message: Message) -> Message:
        """Give the message its ts, store it, tell everyone."""
        if channel.is_archived:
            raise SlackError("is_archived")
        if message.thread_ts is not None:
            root = self.messages[channel.id].get(message.thread_ts)
            # Source: docs.slack.dev, "Threading messages": always the root's ts, never a reply's, read 2026-11.
            if root is None or root.deleted or root.thread_ts is not None:
                raise SlackError("thread_not_found")
        message.ts = message.ts or self.next_ts()
        self._record(message, kind="posted", by=message.user)
        known = self.messages[channel.id]
        is_newest = not known or message.ts > next(reversed(known))
        known[message.ts] = message
        if not is_newest:
            self.messages[channel.id] = dict(sorted(known.items()))
        if message.ephemeral_to:
            self.tell(Change(kind="ephemeral", channel=channel.id, message=message))
            return message
        if message.is_bot and message.thread_ts:
            # Source: docs.slack.dev, assistant.threads.setStatus: cleared when the app posts in the thread, read 2026-11.
            self.set_status(channel.id, message.thread_ts, status="", until=0.0)
        self.tell(Change(kind="posted", channel=channel.id, message=message))
        return message

    def show(self, message: Message, *, text: str, blocks: list[JsonObject]) -> None:
        """Brings a message that is being streamed up to date."""
        self.edit(message, text=text, blocks=blocks, by=BOT_USER_ID, label=False)

    def seal(self, message: Message, *, lifetime_s: float, by_user: bool = False) -> bool:
        """Seals a stream that is too old, or that a person stops; whether it was open until now."""
        stream = message.stream
        if stream is None or stream.state != "in_progress":
            return False
        if not by_user and self.now().timestamp() - stream.started_at_s < lifetime_s:
            return False
        stream.state, stream.is_stopped_by_user = "completed" if by_user else "errored", by_user
        self.show(message, text=message.text, blocks=message.blocks)
        return True

    def edit(
        self, message: Message, *, text: str, blocks: list[JsonObject], by: str, label: bool
    ) -> None:
        previous = self.render(message)
        message.text, message.blocks = text, blocks
        if label:
            message.edited = {"user": by, "ts": self.next_ts()}
        self._record(message, kind="changed", by=by)
        self._tell_of(message, kind="changed", previous=previous, author=by)

    def delete(self, message: Message, *, by: str) -> None:
        """A message with replies becomes a tombstone. Source: docs.slack.dev, message subtype `tombstone`, read 2026-11."""
        previous = self.render(message)
        if len(self.thread(message.channel, message.ts)) > 1:
            message.tombstone, message.files = True, []
            message.text, message.blocks = "This message was deleted.", []
        else:
            message.deleted = True
        self._record(message, kind="deleted", by=by)
        kind: Literal["changed", "deleted"] = "changed" if message.tombstone else "deleted"
        self._tell_of(message, kind=kind, previous=previous, author=by)

    def _tell_of(
        self,
        message: Message,
        *,
        kind: Literal["changed", "deleted"],
        previous: JsonObject,
        author: str,
    ) -> None:
        change = Change(
            kind=kind, channel=message.channel, message=message, previous=previous, author=author
        )
        self.tell(change)

    def react(self, message: Message, *, name: str, user: str) -> None:
        message.reactions.setdefault(name, []).append(user)
        self.tell(Change(kind="reacted", channel=message.channel, message=message))

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
        entry = self.statuses.get((channel, thread_ts), NO_STATUS)
        given = {"status": status, "until": until, "session": session}
        changed = entry | {name: value for name, value in given.items() if value is not None}
        if changed == entry:
            return
        self.statuses[channel, thread_ts] = changed
        self.tell(Change(kind="status", channel=channel, status=self.status_of(channel, thread_ts)))

    def name_session(self, channel: str, thread_ts: str, title: str) -> None:
        """Source: docs.slack.dev, agents.sessions.setStatus, `title` of at most 200 characters, read 2026-11."""
        if len(title) > TITLE_MAX:
            raise SlackError("invalid_arguments")
        self.titles[channel, thread_ts] = title

    def status_of(self, channel: str, thread_ts: str) -> JsonObject:
        entry = self.statuses.get((channel, thread_ts), NO_STATUS)
        expires_in_s = max(0.0, entry["until"] - self.now().timestamp())
        return {
            "channel": channel,
            "thread_ts": thread_ts,
            "status": entry["status"] if expires_in_s else "",
            "expires_in_s": round(expires_in_s, 3),
            "session": entry["session"],
        }

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
            "attachments": message.attachments,
            "files": message.files,
            "metadata": message.metadata if with_metadata else None,
            "streaming_state": message.stream.state if message.stream else None,
        }
        out |= {key: value for key, value in optional.items() if value}
        if message.thread_ts:
            out["parent_user_id"] = self.messages[message.channel][message.thread_ts].user
        if message.files and not person.is_bot:
            out["subtype"] = "file_share"
        if message.tombstone:
            out |= {"user": "USLACKBOT", "subtype": "tombstone", "hidden": True}
        if person.is_bot:
            profile = person.bot_profile()
            out |= {"bot_id": person.bot_id, "app_id": person.app_id, "bot_profile": profile}
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
        """Returns the newest ts given out: a listing made now holds everything up to it."""
        return f"{self._last_ts_us // 1_000_000}.{self._last_ts_us % 1_000_000:06d}"

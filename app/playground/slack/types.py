"""The words of the fake Slack: its settings, people, channels, messages, and how a call is refused."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

JsonObject = dict[str, Any]

TEAM_ID = "T0PLAYGROUND"
EXTERNAL_TEAM_ID = "T0ACMEPARTNER"
ENTERPRISE_ID = None
APP_ID = "A0ORION"
BOT_ID = "B0ORION"
BOT_USER_ID = "U0ORION"
YOU, COLLEAGUE, EXTERNAL = "U0YOU", "U0SAM", "U0ACME"
PAGER, PAGER_BOT_ID, PAGER_APP_ID = "U0PAGER", "B0PAGER", "A0PAGER"
"""Another app's, which posts alert cards."""
GENERAL, RANDOM, PARTNERS = "C0GENERAL", "C0RANDOM", "C0PARTNERS"

# Source: docs.slack.dev, scopes named on the method and event pages the service uses, read 2026-11.
DEFAULT_SCOPES = frozenset(
    {
        *("app_mentions:read", "assistant:write", "chat:write", "reactions:write", "users:read"),
        *("channels:history", "groups:history", "im:history", "mpim:history"),
        *("channels:read", "groups:read", "im:read", "im:write", "files:read", "files:write"),
        *("commands", "mpim:read", "reactions:read", "usergroups:read"),
    }
)


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSlackConfig:
    events_url: str | None = None
    """Where events and actions are POSTed; may be set later on the fake Slack. None: they are logged as undeliverable."""
    bot_token: str = field(default="xoxb-playground-bot", repr=False)
    app_token: str = field(default="xapp-playground-app", repr=False)
    config_token: str = field(default="xoxe.xoxp-playground-configuration", repr=False)
    signing_secret: str = field(default="playground-signing-secret", repr=False)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the app has."""
    scopes: frozenset[str] = DEFAULT_SCOPES
    rate_limits: Literal["real", "off"] = "real"
    ack_timeout_s: float = 3.0
    # Source: Slack Events API, "Error handling" (three retries: at once, after 1 minute, after 5 minutes), read 2026-11.
    retry_delays_s: tuple[float, ...] = (0.0, 60.0, 300.0)
    mention_gap_s: float = 0.25
    """Between the `message` and the `app_mention` event of one mention, as observed on real workspaces."""
    deliveries_per_event: int = 1
    """More: Slack has been seen to send the same event again without a retry header."""
    mention_order: Literal["message_first", "mention_first", "random"] = "random"
    mention_lacks: frozenset[str] = frozenset({"files"})
    """Fields that an `app_mention` does not have, whatever the message has: reported by integrators of files, read 2026-11."""
    send_bot_events: bool = True
    """Slack sends an app its own posts and edits too; the app must ignore them."""
    # Source: docs.slack.dev, assistant.threads.setStatus: a status clears itself after two minutes, read 2026-11.
    status_lifetime_s: float = 120.0
    # Measured by integrators: about 306 s after its start a stream is sealed, whatever is appended. Read 2026-11.
    stream_lifetime_s: float = 306.0
    is_distributed: bool = False
    """The app is sold outside Slack's Marketplace: histories give it 15 messages, once a minute."""
    # Source: docs.slack.dev, "Modals", trigger_id: three seconds, exchanged once, read 2026-11.
    trigger_lifetime_s: float = 3.0
    has_agents: bool = True
    """The workspace's plan has agent features: sessions and suggested prompts."""
    banners: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = (("Traces", "/traces"), ("Deliveries", "/deliveries"))

    @property
    def tokens(self) -> Mapping[str, str]:
        """Returns the app's tokens by their kinds."""
        return {"bot": self.bot_token, "app": self.app_token, "config": self.config_token}


@dataclass(slots=True, kw_only=True)
class Person:
    id: str
    name: str
    real_name: str
    team_id: str = TEAM_ID
    bot_id: str = ""
    """Of an app."""
    app_id: str = ""

    @property
    def is_bot(self) -> bool:
        return bool(self.bot_id)

    def bot_profile(self) -> JsonObject:
        """Returns how posts name the app."""
        return {"id": self.bot_id, "app_id": self.app_id, "name": self.name, "team_id": TEAM_ID}


@dataclass(slots=True, kw_only=True)
class Channel:
    id: str
    name: str
    members: set[str]
    im_user: str | None = None
    is_ext_shared: bool = False
    is_archived: bool = False

    @property
    def type(self) -> str:
        return "im" if self.im_user else "channel"


@dataclass(slots=True, kw_only=True)
class Stream:
    """What a message that is written bit by bit holds so far."""

    started_at_s: float
    shows_plan: bool
    state: Literal["in_progress", "completed", "errored"] = "in_progress"
    is_stopped_by_user: bool = False
    text: str = ""
    parts: list[str | JsonObject | tuple[str, str]] = field(default_factory=list)
    """In their order: texts, blocks, and where tasks stand."""
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    plan_title: str = ""


@dataclass(slots=True, kw_only=True)
class Message:
    ts: str
    channel: str
    user: str
    text: str
    blocks: list[JsonObject] = field(default_factory=list)
    attachments: list[JsonObject] = field(default_factory=list)
    thread_ts: str | None = None
    metadata: JsonObject | None = None
    files: list[JsonObject] = field(default_factory=list)
    client_msg_id: str | None = None
    edited: JsonObject | None = None
    reactions: dict[str, list[str]] = field(default_factory=dict)
    ephemeral_to: str | None = None
    app_context: JsonObject | None = None
    """What its author looked at beside the app; the event tells of it, no history does."""
    deleted: bool = False
    tombstone: bool = False
    """Deleted, but kept for its replies."""
    versions: list[JsonObject] = field(default_factory=list)
    stream: Stream | None = None

    @property
    def is_bot(self) -> bool:
        return self.user == BOT_USER_ID

    @property
    def root_ts(self) -> str:
        return self.thread_ts or self.ts


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something people and the app may have to be told about."""

    kind: Literal[
        "posted",
        "changed",
        "deleted",
        "ephemeral",
        "reacted",
        "status",
        "channel",
        "home",
        "prompts",
    ]
    channel: str
    message: Message | None = None
    previous: JsonObject | None = None
    author: str | None = None
    status: JsonObject | None = None


class SlackError(Exception):
    """A call that Slack answers with `ok: false`."""

    def __init__(
        self,
        error: str,
        *,
        messages: tuple[str, ...] = (),
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.messages = messages
        self.status = status
        self.headers = dict(headers or {})
        self.fields = dict(fields or {})

    def body(self) -> JsonObject:
        body: JsonObject = {"ok": False, "error": self.error, **self.fields}
        if self.messages:
            body["errors"] = list(self.messages)
            body["response_metadata"] = {"messages": [f"[ERROR] {text}" for text in self.messages]}
        return body


def new_id(prefix: str) -> str:
    """Returns a fresh id in Slack's alphabet."""
    alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"
    return prefix + "".join(random.choices(alphabet, k=10))  # noqa: S311 - an id, not a secret

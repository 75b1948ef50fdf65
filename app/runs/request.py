"""What was asked: a message with all that came with it, and where and by whom it was written."""

import hashlib
import operator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Literal, NewType

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.runs.options import MessageOptions, parse_options

RunId = NewType("RunId", str)
WIRE_VERSION: Final = 1


class Surface(StrEnum):
    """Where in Slack a person asked."""

    CHANNEL = "channel"
    DM = "dm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A Slack thread. `thread_ts` is the root message's ts (the message's own ts when it starts a thread)."""

    team: str
    channel: str
    thread_ts: str

    @property
    def key(self) -> str:
        """Runs of one thread share it: order, history and session hang on it."""
        return f"{self.team}-{self.channel}-{self.thread_ts}"


class AttachedFile(BaseModel):
    """A file that came with a message, as Slack tells of it."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    name: str
    media_type: str = ""
    size: int | None = None
    """In bytes, by Slack's word; None = it does not say."""
    url: str = Field(default="", repr=False)
    """Where the workspace's own token gets it; empty = Slack has to be asked."""
    mode: str = ""
    """Slack's word for how it keeps the file, such as `hosted`, `external`, `hidden_by_limit`; empty = it did not say."""

    @property
    def key(self) -> str:
        """Returns what it is known by, in whatever message it is."""
        return self.id or self.name


class MessageContent(BaseModel):
    """What comes with a message besides its text."""

    model_config = ConfigDict(frozen=True)

    shared: tuple[str, ...] = Field(default=(), repr=False)
    """Forwarded messages, apps' cards, tables, previews of links; each as Markdown."""
    files: tuple[AttachedFile, ...] = ()
    left_out: tuple[str, ...] = ()
    """What of it is not taken, as the person who asked is told."""

    def merged(self, other: "MessageContent") -> "MessageContent":
        """Returns what either of two tellings of one message has."""
        known = {file.key for file in self.files}
        new = (file for file in other.files if file.key not in known)
        return MessageContent(
            shared=tuple(dict.fromkeys((*self.shared, *other.shared))),
            files=(*self.files, *new),
            left_out=tuple(dict.fromkeys((*self.left_out, *other.left_out))),
        )

    def __bool__(self) -> bool:
        return bool(self.shared or self.files or self.left_out)


NO_CONTENT: Final = MessageContent()


class RunRequest(BaseModel):
    """A person's question; as it is stored. Unknown versions are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = WIRE_VERSION
    run_id: RunId
    team: str
    channel: str
    thread_ts: str
    message_ts: str
    """Slack ts: a string with six decimals, unique in its channel; never parsed to a float."""
    user: str
    text: str
    """As the person meant it: bot mention removed, Slack's escapes undone."""
    surface: Surface
    content: MessageContent = Field(default=NO_CONTENT, exclude_if=operator.not_)
    """What came with the text; stored only where there is any, for an Orion before it knew of it reads the others."""
    is_external: bool = False
    """The author belongs to another company (Slack Connect)."""
    is_bot: bool = Field(default=False, exclude_if=operator.not_)
    """Another app wrote it; `user` is its user, or its bot id where it has none."""
    event_id: str = ""
    late_s: int = Field(default=0, ge=0, exclude_if=operator.not_)
    """How long before Orion heard of it it was asked, where Orion was away meanwhile; 0 = it was not."""
    retry_of: RunId | None = None
    """The failed run whose turn this one tries again, as `user` asked."""
    click_ts: str = ""
    """Of a retry: Slack's ts of the click, which is later than the message's."""
    received_at: datetime

    @model_validator(mode="before")
    @classmethod
    def _with_content(cls, stored: Any) -> Any:  # noqa: ANN401 - whatever was stored
        """Reads records of when a file was no more than its name."""
        if not isinstance(stored, dict) or "file_names" not in stored:
            return stored
        rest = {name: value for name, value in stored.items() if name != "file_names"}
        files = [{"name": name} for name in stored["file_names"]]
        return {"content": {"files": files}, **rest}

    def completing(self, known: "RunRequest") -> "RunRequest":
        """Returns what is known of the message, with what this telling of it has besides."""
        return known.model_copy(update={"content": known.content.merged(self.content)})

    @property
    def options(self) -> MessageOptions:
        return _parsed(self.text)

    @property
    def thread(self) -> Thread:
        return Thread(team=self.team, channel=self.channel, thread_ts=self.thread_ts)

    @property
    def is_root(self) -> bool:
        """Whether its message begins its thread."""
        return self.thread_ts == self.message_ts

    @property
    def asked_at(self) -> datetime:
        """Returns when, by Slack's clock and to the microsecond, the message was sent, or Retry was clicked."""
        return slack_time(self.click_ts or self.message_ts)


@lru_cache(maxsize=256)
def _parsed(text: str) -> MessageOptions:
    """Parses each text once: a run asks for its options a dozen times, and its thread's history for those of all runs in it."""
    return parse_options(text)


def slack_time(ts: str) -> datetime:
    """Returns the moment that a Slack ts names, exactly: two messages of a channel never name the same one."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=slack_microseconds(ts))


def slack_microseconds(ts: str) -> int:
    """Returns a Slack ts in whole microseconds since 1970, exactly, as no float would; 0 for what is no ts."""
    seconds, _, fraction = ts.partition(".")
    if not (seconds.isdecimal() and (fraction or "0").isdecimal()):
        return 0
    return int(seconds) * 1_000_000 + int((fraction or "0").ljust(6, "0")[:6])


def run_id_for(*, team: str, channel: str, message_ts: str, click: str = "") -> RunId:
    """Returns the id of a message's run: one, however often and in whatever events Slack delivers it; so is one click of its Retry button."""
    source = "|".join((team, channel, message_ts, click) if click else (team, channel, message_ts))
    return RunId(f"run_{hashlib.sha256(source.encode()).hexdigest()[:24]}")

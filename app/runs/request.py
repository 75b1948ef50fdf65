"""What was asked: a message with all that came with it, and where and by whom it was written."""

import hashlib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Literal, NewType

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.accounts.records import Owner
from app.audit.records import Act
from app.runs.options import INVISIBLE, MessageOptions, Scope, parse_options

RunId = NewType("RunId", str)
RUN_ID_PREFIX: Final = "run_"
WIRE_VERSION: Final = 1
URGENT: Final = "!"
"""Before a message that shall not wait for what goes on in its thread."""
_INVISIBLE = re.compile(f"[{INVISIBLE}]")
"""Characters a person does not see."""
_BARE_WORD = re.compile(r"\W*(stop|mute|unmute)\W*", re.IGNORECASE)
NOTHING_TO_MUTE: Final = "at the top of a channel I answer only messages that mention me, so there is nothing to mute; write `mute` or `unmute` as a reply in a thread"


class MemoryVerb(StrEnum):
    REMEMBER = "remember"
    FORGET = "forget"
    SHOW = "show"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCommand:
    """What a message wants of the memory of its channel; Orion answers it itself."""

    verb: MemoryVerb
    text: str = ""
    """One line: what to remember, or words of what to forget; empty, without `numbers` = nothing is said."""
    numbers: tuple[int, ...] = ()
    """Of the notes to forget, as they are shown."""


EVERYTHING: Final = "everything"
"""Behind `forget`: all that the person has said there."""
NOTHING_BEHIND: Final[Mapping[MemoryVerb, str]] = {
    MemoryVerb.REMEMBER: "write what I shall know here after `remember`",
    MemoryVerb.FORGET: "write what I shall not know here any more after `forget`: its number, words of it, or everything; `what do you know here?` shows the numbers",
}
"""What to say where nothing is."""

_POLITELY = r"\s*(?:(?:hey|hi|hello|ok|okay|please)[,:!.]?\s+)*"
_REMEMBER = re.compile(
    rf"{_POLITELY}remember(?:(?P<mark>\s*:|\s+(?:that|this)\s*:|\s+that\b)|[\s,]+|$)(?P<text>.*)",
    re.IGNORECASE | re.DOTALL,
)
_FORGET = re.compile(
    rf"{_POLITELY}forget(?P<mark>\s*+:\s*+|\s++that\s++|\s++|$)(?P<text>(?:\S[^\n]{{0,399}})?)\s*+",
    re.IGNORECASE,
)
"""No run of spaces is looked at twice: it may be 40,000 long."""
_NUMBERS = re.compile(
    r"(?:(?:notes?|numbers?)\s+)?#?\d{1,9}(?:(?:\s*,\s*|\s+)(?:and\s+)?#?\d{1,9}){0,99}[.!]*",
    re.IGNORECASE,
)
_SHOW = re.compile(
    rf"{_POLITELY}(?:(?:tell|show)\s+me\s+)?what\s+(?:do\s+)?you\s+(?:(?:know|remember)\s+(?:(?:about|of|in|for)\s+)?"
    r"(?:here|this\s+(?:channel|place|conversation|dm|chat|group))|remember)[\s?.!]*",
    re.IGNORECASE,
)
_ASKS = frozenset(("how", "if", "me", "what", "when", "where", "which", "who", "whom", "why"))
"""Behind `remember` without a mark: the sentence asks for something else."""
_IDIOMS = frozenset(("about", "it", "that", "this", "what", "your"))
"""Behind `forget` without a colon: how a conversation goes on."""


def parse_memory_command(text: str) -> MemoryCommand | None:
    """Returns what a message, without the options at its beginning, wants of its channel's memory; None: it is for an agent."""
    if _SHOW.fullmatch(text):
        return MemoryCommand(verb=MemoryVerb.SHOW)
    if found := _REMEMBER.fullmatch(text):
        said, mark = found["text"].strip(), found["mark"] or ""
        is_one_line = "\n" not in said or mark.endswith(":")  # else more is asked than that
        return _remember(" ".join(said.split()), mark=mark) if is_one_line else None
    if found := _FORGET.fullmatch(text):
        return _forget(" ".join(found["text"].split()), mark=found["mark"])
    return None


def _remember(text: str, *, mark: str) -> MemoryCommand | None:
    is_certain = mark.endswith(":")
    asks = text.endswith("?") or (not mark and _first_word(text) in _ASKS)
    if asks and not is_certain:
        return None
    is_empty = _bare(text).lower() in ("", "it", "that", "this")
    return MemoryCommand(verb=MemoryVerb.REMEMBER, text="" if is_empty else text)


def _forget(text: str, *, mark: str) -> MemoryCommand | None:
    if _NUMBERS.fullmatch(text):
        numbers = tuple(dict.fromkeys(int(number) for number in re.findall(r"\d+", text)))
        return MemoryCommand(verb=MemoryVerb.FORGET, numbers=numbers)
    if _first_word(text) in _IDIOMS and ":" not in mark:
        return None
    words = _bare(text)
    if not words:
        return None if text else MemoryCommand(verb=MemoryVerb.FORGET)
    is_all = words.lower() in (EVERYTHING, "all", "all of it")
    return MemoryCommand(verb=MemoryVerb.FORGET, text=EVERYTHING if is_all else words)


def _first_word(text: str) -> str:
    return text.lower().partition(" ")[0].strip(",.;:!?")


def _bare(text: str) -> str:
    return text.strip(" .!?\"'`*\u201c\u201d\u2018\u2019")


class Surface(StrEnum):
    """Where in Slack a person asked."""

    CHANNEL = "channel"
    DM = "dm"


class Addressing(StrEnum):
    """How a message says for whom it is."""

    CLEAR = "clear"
    """It mentions Orion, is a direct message, or was found to be for Orion."""
    EVENT = "event"
    """Slack says that it mentions Orion, its text does not: another event of it may look like a follow-up."""
    NONE = "none"
    """It mentions nobody: a reply in a thread, which is a follow-up if it is meant for Orion."""
    OTHERS = "others"
    """It mentions others, and not Orion."""


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
    addressing: Addressing = Field(
        default=Addressing.CLEAR, exclude_if=lambda value: value is Addressing.CLEAR
    )
    event_id: str = ""
    picked_repo: str = Field(default="", exclude_if=operator.not_)
    """Which `user` chose of several, or `NO_REPO`; empty = its text says, or nobody."""
    unseen: str = Field(default="", exclude_if=operator.not_)
    """The text, masked, where no message in its thread shows it, as it was written elsewhere."""
    late_s: int = Field(default=0, ge=0, exclude_if=operator.not_)
    """How long before Orion heard of it it was asked, where Orion was away meanwhile; 0 = it was not."""
    retry_of: RunId | None = None
    """The run whose turn this one takes up, as `user` asked: it failed, or had to ask which repository is meant."""
    click_ts: str = ""
    """Of a click that took it up: Slack's ts of that, which is later than the message's."""
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
        addressing = known.addressing if self.is_candidate else Addressing.CLEAR
        content = known.content.merged(self.content)
        return known.model_copy(update={"content": content, "addressing": addressing})

    @property
    def is_candidate(self) -> bool:
        """Whether it is still open whether it is for Orion at all."""
        return self.addressing in (Addressing.NONE, Addressing.OTHERS)

    @property
    def is_urgent(self) -> bool:
        """Whether it shall not wait for what goes on in its thread, which stops for it."""
        return not self.is_root and self.text.startswith(URGENT)

    def made_urgent(self) -> "RunRequest":
        """Returns it as if it had been written with the sign."""
        return self if self.is_urgent else self.model_copy(update={"text": URGENT + self.text})

    @property
    def options(self) -> MessageOptions:
        text = self.text.removeprefix(URGENT).lstrip() if self.is_urgent else self.text
        said = _parsed(text)
        return replace(said, repo=self.picked_repo) if self.picked_repo else said

    @property
    def memory_command(self) -> MemoryCommand | None:
        options = self.options
        is_other = options.command is not None or options.problem
        return None if is_other else parse_memory_command(options.prompt)

    @property
    def is_command(self) -> bool:
        """Whether Orion answers it itself."""
        return self.options.command is not None or self.memory_command is not None

    @property
    def missing(self) -> str:
        """Returns what a word lacks that Orion answers itself, something behind it or a thread, for the person who asked; empty = nothing."""
        command = self.memory_command
        if command is not None and not (command.text or command.numbers):
            return NOTHING_BEHIND.get(command.verb, "")
        is_at_top = self.is_root and self.surface is Surface.CHANNEL
        return NOTHING_TO_MUTE if is_at_top and bare_word(self.text) in ("mute", "unmute") else ""

    @property
    def act(self) -> tuple[Act, str]:
        """Returns what it wants to do, and with what, as a person wrote that."""
        if (remembering := self.memory_command) is not None:
            is_change = remembering.verb is not MemoryVerb.SHOW
            return (Act.MEMORY if is_change else Act.ASK), str(remembering.verb)
        options = self.options
        command = options.command
        words = (options if command is None else command.options).said
        said = " ".join(f"{name}={value}" for name, value in words.items())
        if command is None:
            return Act.ASK, said
        said = "reset" if command.is_reset else said
        scope = "channel" if command.scope is Scope.CHANNEL else ""
        target = " ".join(filter(None, ("settings", scope, said)))
        return (Act.SETTINGS if said else Act.ASK), target

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to answer."""
        return not _INVISIBLE.sub("", self.options.prompt).strip() and not self.content

    @property
    def thread(self) -> Thread:
        return Thread(team=self.team, channel=self.channel, thread_ts=self.thread_ts)

    @property
    def owner(self) -> Owner:
        """Returns whose accounts it may use."""
        return Owner(team=self.team, person=self.user)

    @property
    def is_root(self) -> bool:
        """Whether its message begins its thread."""
        return self.thread_ts == self.message_ts

    @property
    def asked_at(self) -> datetime:
        """Returns when, by Slack's clock and to the microsecond, the message was sent, or Retry was clicked."""
        return slack_time(self.click_ts or self.message_ts)


def bare_word(text: str) -> str:
    """Returns `stop`, `mute` or `unmute` where a readable text is nothing else, in any case, with or without punctuation; else nothing."""
    found = _BARE_WORD.fullmatch(_INVISIBLE.sub("", text))
    return found[1].lower() if found else ""


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
    return RunId(f"{RUN_ID_PREFIX}{hashlib.sha256(source.encode()).hexdigest()[:24]}")

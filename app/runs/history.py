"""What was said in a thread: how it is read, with its files, and its conversation as alternating turns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, Protocol

from agent_scripts.adapter import TurnImage, TurnMessage
from app.runs.model import ModelCall, Run, RunState, ThreadMessage
from app.runs.request import AttachedFile, MessageContent, RunRequest, slack_microseconds

MAX_HISTORY_CHARS = 120_000
"""About 30,000 tokens: leaves most of a model's context to the work."""
MAX_MESSAGE_CHARS = 40_000
"""Slack's own limit for a message's text. Source: Slack Web API, chat.postMessage, read 2026-11."""
LEFT_OUT = "[earlier messages of this thread are left out]"
CUT_OFF = "[this answer was cut off]"
STOPPED_UNANSWERED = "[no answer: this was stopped]"
DESCRIBE = "Describe what has been changed in this repository so far, as the text of a pull request: its title as the first line."
"""What is asked where nothing but a pull request was."""
FAILED_UNANSWERED = "[no answer: this failed]"
MEANWHILE = "[this came while you are at work: go on with it as well]"
INTERRUPTED = "[no answer yet: the next message came before it]"
INTERRUPTS = (
    "[this interrupts what was asked before it and is not answered yet: go on with all of it]"
)

TsKey = tuple[int, int]
_Told = tuple[str, tuple[TurnImage, ...]]
_Tell = Callable[[str, MessageContent], _Told]
"""What the agent is told of a message: its text, with what came with it, and its pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadView:
    """A request and its thread, as Slack shows them."""

    request: RunRequest
    """With all that its message holds, and names in place of ids: the events that told of it may have left some out."""
    messages: Sequence[ThreadMessage] = ()
    """Older than the request's, oldest first, the root included."""
    is_cut: bool = False
    """There may be more, which Slack did not tell in time."""


class ThreadReader(Protocol):
    async def read(self, request: RunRequest) -> ThreadView:
        """Reads a request's thread; bounded to 12 s besides the time in line for Slack's limits, or to twice that. Never raises.

        Where Slack cannot be read the request is as it came, with no messages: history then comes from Orion's own records alone.
        """

    async def stands(self, request: RunRequest) -> bool:
        """Whether the message of a request is there still: False where Slack says within 10 s that it is not. Never raises."""

    async def name_of(self, user: str) -> str:
        """Returns what a person is called in the workspace; their id when Slack does not say within 2 s. Never raises."""


ADDRESSED, NOT_ADDRESSED = "addressed", "other"
"""The answers of a model that judges for whom a reply is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a model says of a reply."""

    is_addressed: bool | None = None
    """None: the model has not said."""
    call: ModelCall | None = None
    """None: it was not asked."""


class Judge(Protocol):
    async def ask(self, instruction: str, text: str) -> Verdict:
        """Asks the model, once, within 5 s. Never raises: who gets no answer says so in the verdict."""
        ...


class NoJudge:
    """Where no model judges."""

    async def ask(self, instruction: str, text: str) -> Verdict:
        del instruction, text
        return Verdict()


class UnreadableFileError(Exception):
    """A file of a message cannot be had."""

    def __init__(self, reason: str, *, may_pass: bool = False) -> None:
        """`reason`: for the person who attached it; without a full stop. `may_pass`: trying again later may work."""
        super().__init__(reason)
        self.reason = reason
        self.may_pass = may_pass


class FileExchange(Protocol):
    """Files of messages, and those that are to be shared in a thread; each call takes a minute at the most."""

    async def fetch(self, file: AttachedFile, *, max_bytes: int) -> bytes:
        """Fetches a file of a message.

        Raises:
            UnreadableFileError: it cannot be had, or is larger.
        """
        ...

    async def upload(self, name: str, data: bytes) -> str:
        """Returns the id of a file that nobody sees until it is shared.

        Raises:
            UnreadableFileError: it is not taken.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A file of a message, where its agent finds it."""

    path: str
    """Inside the sandbox; absolute."""
    size: int
    """In bytes, as it was fetched."""
    image_type: str = ""
    """Media type of a picture that models take; empty for all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A thread up to a request, as `build_messages` takes it."""

    request: RunRequest
    records: Sequence[Run] = ()
    thread: Sequence[ThreadMessage] = ()
    is_cut: bool = False
    """Of the thread more was said than could be read."""
    placed: Mapping[str, PlacedFile] = field(default_factory=dict)
    """Files of its messages, by `AttachedFile.key`."""

    def with_files(self, placed: Mapping[str, PlacedFile]) -> "Conversation":
        """Returns it with the files that are where the agent finds them."""
        return replace(self, placed=placed)

    def messages(self, *, after_ts: str = "") -> tuple[TurnMessage, ...]:
        """Returns turns; `after_ts`: of the question whose answer was the last thing that is known."""
        return build_messages(
            self.request,
            records=self.records,
            thread=self.thread,
            placed=self.placed,
            after_ts=after_ts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    key: TsKey
    is_own: bool
    author: str
    text: str = field(repr=False)
    images: tuple[TurnImage, ...] = ()


def build_messages(
    request: RunRequest,
    *,
    records: Sequence[Run],
    thread: Sequence[ThreadMessage],
    placed: Mapping[str, PlacedFile] = MappingProxyType({}),
    after_ts: str = "",
    max_chars: int = MAX_HISTORY_CHARS,
) -> tuple[TurnMessage, ...]:
    """Returns history and the request as turns: `user` first, roles alternating, the request last.

    Orion's own records are the truth about its runs; `thread` (as Slack has it) fills in what other people wrote and
    runs whose record is gone. When it is too long, the root and the newest messages stay. Behind the question of `after_ts`
    and its answer only, if there is one.
    """
    tell = partial(_tell, placed=placed)
    entries = sorted(_entries(request, records, thread, tell), key=lambda entry: entry.key)
    asker = _author(request, thread)
    humans = {entry.author for entry in entries if not entry.is_own} | {asker}
    unknown = (
        [entry for entry in entries if entry.key > ts_key(after_ts, 1)] if after_ts else entries
    )
    turns: list[TurnMessage] = []
    for entry in _bounded(unknown, max_chars):
        text = (
            entry.text
            if entry.is_own or len(humans) == 1 or not entry.author
            else f"{entry.author}: {entry.text}"
        )
        role: Literal["user", "assistant"] = "assistant" if entry.is_own else "user"
        _append(turns, TurnMessage(role=role, text=text, images=entry.images))
    text, images = tell(_asked(request), request.content)
    if any(is_interrupted(run, [request]) for run in records):
        text = f"{INTERRUPTS}\n\n{text}"
    _append(turns, TurnMessage(role="user", text=text, images=images))
    while turns[0].role == "assistant":
        turns.pop(0)
    return tuple(turns)


def _entries(
    request: RunRequest, records: Sequence[Run], thread: Sequence[ThreadMessage], tell: _Tell
) -> Iterable[_Entry]:
    earlier = [
        run for run in records if ts_key(run.request.message_ts) < ts_key(request.message_ts)
    ]
    known_runs = {run.id for run in earlier}
    # A message that was tried again has several runs: the newest answer counts, else the newest one that began.
    ranked = sorted(
        (run for run in earlier if not run.result.candidates),
        key=lambda run: (bool(run.result.answer), run.attempt > 0, run.created_at),
    )
    of_message = {run.request.message_ts: run for run in ranked}
    known_messages = of_message.keys()
    requests = [request, *(run.request for run in earlier)]
    for run in of_message.values():
        if run.request.is_command:
            continue  # Orion's own business
        was_interrupted = is_interrupted(run, requests)
        has_begun = bool(run.result.answer) or run.attempt > 0
        if run.state.is_final and not has_begun and not was_interrupted:
            continue  # withdrawn or refused: nobody's question, and least of all a part of the next one
        author = _author(run.request, thread)
        text, images = tell(_asked(run.request), run.request.content)
        yield _Entry(
            key=ts_key(run.request.message_ts),
            is_own=False,
            author=author,
            text=text,
            images=images,
        )
        if run.state.is_final:
            yield _Entry(
                key=ts_key(run.request.message_ts, 1),
                is_own=True,
                author="",
                text=_answer_text(run, was_interrupted=was_interrupted),
            )
    for message in thread:
        is_request = message.ts == request.message_ts or message.ts in known_messages
        is_noise = message.is_own and (
            message.run_id is None or message.part < 0 or message.run_id in known_runs
        )
        text, images = tell(message.text, message.content)
        if is_request or is_noise or not text.strip():
            continue
        yield _Entry(
            key=ts_key(message.ts),
            is_own=message.is_own,
            author=message.author_name or message.user,
            text=text[:MAX_MESSAGE_CHARS],
            images=images,
        )


def _author(request: RunRequest, thread: Sequence[ThreadMessage]) -> str:
    """Returns the name of who asked, by their messages or, of an app, by this one; else the id."""
    names = (
        message.author_name
        for message in thread
        if request.user == message.user or (request.is_bot and request.message_ts == message.ts)
    )
    return next(filter(None, names), request.user)


def _bounded(entries: Sequence[_Entry], max_chars: int) -> Sequence[_Entry]:
    """Returns the root and as many of the newest entries as fit."""
    if sum(len(entry.text) for entry in entries) <= max_chars:
        return entries
    root, rest = entries[0], entries[1:]
    room = max_chars - min(len(root.text), max_chars // 4)
    kept: list[_Entry] = []
    for entry in reversed(rest):
        room -= len(entry.text)
        if room < 0:
            break
        kept.append(entry)
    mark = _Entry(key=root.key, is_own=False, author="", text=LEFT_OUT)
    short_root = _Entry(
        key=root.key, is_own=root.is_own, author=root.author, text=root.text[: max_chars // 4]
    )
    return [short_root, mark, *reversed(kept)]


def _append(turns: list[TurnMessage], turn: TurnMessage) -> None:
    """Adds a turn; models want alternating roles, so neighbours of the same role become one message."""
    if turns and turns[-1].role == turn.role:
        last = turns[-1]
        text = f"{last.text}\n\n{turn.text}"
        turns[-1] = TurnMessage(role=turn.role, text=text, images=(*last.images, *turn.images))
    else:
        turns.append(turn)


def meanwhile(request: RunRequest) -> str:
    """Returns a message as an agent is told that is at work."""
    text, _ = _tell(_asked(request), request.content, placed={})
    return f"{MEANWHILE}\n\n{text}"


def is_interrupted(run: Run, requests: Iterable[RunRequest]) -> bool:
    """Whether the run was stopped for one of these requests, to be answered with it: one of the same asker, as nobody goes on with another's question by their own right."""
    at = run.stop_requested_at if run.stop_requested_by is not None else None
    return at is not None and any(
        (request.asked_at, request.owner) == (at, run.request.owner) for request in requests
    )


def _answer_text(run: Run, *, was_interrupted: bool) -> str:
    """Returns the answer, never empty: a question without one would run into the next, and be answered there."""
    if not run.result.answer and was_interrupted:
        return INTERRUPTED
    if not run.result.answer:
        return STOPPED_UNANSWERED if run.state is RunState.STOPPED else FAILED_UNANSWERED
    return (
        run.result.answer
        if run.state is RunState.SUCCEEDED
        else f"{run.result.answer}\n\n{CUT_OFF}"
    )


def _asked(request: RunRequest) -> str:
    return request.options.prompt or (DESCRIBE if request.options.pr else "")


def _tell(text: str, content: MessageContent, *, placed: Mapping[str, PlacedFile]) -> _Told:
    """Returns a message with what came with it, which is marked: it is not what its author says."""
    here = [(file, placed[file.key]) for file in content.files if file.key in placed]
    lacking = [file.name for file in content.files if file.key not in placed]
    names = (
        f"{it.path} ({file.name}, {it.size:,} bytes{', a picture' if it.image_type else ''})"
        for file, it in here
    )
    parts = (
        text,
        *(f"[came with this message]\n{shared}" for shared in content.shared),
        f"[files of this message: {'; '.join(names)}]" if here else "",
        f"[attached in Slack, not readable here: {', '.join(lacking)}]" if lacking else "",
    )
    images = (TurnImage(path=it.path, media_type=it.image_type) for _, it in here if it.image_type)
    return "\n\n".join(part for part in parts if part.strip()), tuple(images)


def ts_key(ts: str, after: int = 0) -> TsKey:
    """Returns a key that sorts Slack's timestamps; `after` puts an answer right behind its question."""
    return slack_microseconds(ts), after

"""200 replies in threads, labelled by whether they are for Orion, and how the filter decides them over the wire."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from app.compose.brokers import open_judge
from app.playground.model.server import ModelPace, create_model_app
from app.runs.testing import (
    Addressing,
    Decision,
    FollowUpFilter,
    FollowUps,
    Judge,
    Run,
    ThreadMessage,
)
from app.settings.settings import Settings, load_settings
from app.web.hosting import serve
from tests.building import make_request
from tests.faults.building import POLICY, core_of

FOLDER = Path("tests/data/follow_ups")
SETS = ("tuned", "held_out")
"""The offline model's rules were written with a look at the first one, and never at the second."""
JUDGED = replace(POLICY, follow_ups=FollowUps.JUDGED)
CALLS_DAY = 1_000_000
LEAST_RECALL, MOST_NOISE = 0.95, 0.02
"""What a model must reach to be worth its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A reply, the last of its thread."""

    is_addressed: bool
    language: str
    thread: Sequence[tuple[str, str]]
    """Author and text, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    reply: Labelled
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """How many replies for Orion, and others, were answered."""

    addressed: int
    addressed_answered: int
    others: int
    others_answered: int

    @property
    def recall(self) -> float:
        """Of those for Orion, how many were answered: 0 to 1."""
        return self.addressed_answered / self.addressed

    @property
    def is_good(self) -> bool:
        return self.recall >= LEAST_RECALL and self.noise <= MOST_NOISE

    @property
    def noise(self) -> float:
        """Of the others, how many were answered: 0 to 1."""
        return self.others_answered / self.others


def read_set(name: str) -> Sequence[Labelled]:
    """Reads a set: blocks of a line with the label (`+` for Orion, `-` not) and the language, and a line for each message."""
    return [_read(block) for block in (FOLDER / f"{name}.txt").read_text().strip().split("\n\n")]


def _read(block: str) -> Labelled:
    head, *lines = block.splitlines()
    label, language = head.split()
    thread = [(author, text) for author, _, text in (line.partition(": ") for line in lines)]
    return Labelled(is_addressed={"+": True, "-": False}[label], language=language, thread=thread)


@asynccontextmanager
async def open_stand_in() -> AsyncIterator[Judge]:
    """The offline model behind the real client, over HTTP."""
    async with serve(create_model_app(pace=ModelPace(word_s=0, slow_word_s=0))) as url:
        given = {"ANTHROPIC_API_KEY": "sk-offline", "ANTHROPIC_BASE_URL": url}
        settings = configured(load_settings(env_file=None, toml=None, given=given))
        async with open_judge(settings) as judge:
            yield judge


def configured(settings: Settings) -> Settings:
    """Settings that judge, whatever they say of it."""
    return replace(settings, follow_ups=replace(settings.follow_ups, follow_ups=FollowUps.JUDGED))


async def decide_all(judge: Judge, replies: Sequence[Labelled], directory: Path) -> Sequence[Row]:
    """Decides them one after the other."""
    async with core_of(directory, JUDGED, judge=judge, judgements_day=CALLS_DAY) as core:
        filtered = FollowUpFilter(core.ports, policy=JUDGED)
        rows = []
        for reply in replies:
            *before, (author, text) = reply.thread
            core.reader.messages = [_message(n, *said) for n, said in enumerate(before)]
            request = make_request(
                ts=_ts(len(before)), thread_ts=_ts(0), user=_user(author), text=text
            ).model_copy(update={"addressing": Addressing.NONE})
            run = Run(id=request.run_id, request=request, created_at=request.received_at)
            rows.append(Row(reply=reply, decision=await filtered.decide(run)))
        return rows


def matrix_of(rows: Sequence[Row]) -> Matrix:
    count = Counter((row.reply.is_addressed, row.decision.is_answered) for row in rows)
    return Matrix(
        addressed=count[True, True] + count[True, False],
        addressed_answered=count[True, True],
        others=count[False, True] + count[False, False],
        others_answered=count[False, True],
    )


def every_of(rows: Mapping[str, Sequence[Row]]) -> Sequence[Row]:
    return [row for ones in rows.values() for row in ones]


def render(rows: Mapping[str, Sequence[Row]]) -> str:
    """The matrix of each set, as a table, and who decided."""
    lines = [
        "| set | for Orion | answered | for others | answered |",
        "| --- | --- | --- | --- | --- |",
    ]
    both = {"together": every_of(rows)} if len(rows) > 1 else {}
    for name, ones in {**rows, **both}.items():
        found = matrix_of(ones)
        lines.append(
            f"| {name} | {found.addressed} | {found.addressed_answered} ({found.recall:.0%}) "
            f"| {found.others} | {found.others_answered} ({found.noise:.0%}) |"
        )
    reasons = Counter(
        (row.decision.reason, row.decision.is_answered, row.reply.is_addressed)
        for ones in rows.values()
        for row in ones
    )
    lines += ["", "| decided by | answered | silent | of them wrong |", "| --- | --- | --- | --- |"]
    for reason in sorted({reason for reason, *_ in reasons}):
        count = {
            is_answered: sum(reasons[reason, is_answered, label] for label in (True, False))
            for is_answered in (True, False)
        }
        wrong = reasons[reason, True, False] + reasons[reason, False, True]
        lines.append(f"| {reason} | {count[True]} | {count[False]} | {wrong} |")
    return "\n".join(lines)


def _message(number: int, author: str, text: str) -> ThreadMessage:
    is_own = author == "Orion"
    return ThreadMessage(
        ts=_ts(number),
        user="" if is_own else _user(author),
        author_name=author,
        text=text.removeprefix("@Orion "),
        is_own=is_own,
    )


def _user(author: str) -> str:
    return f"U{author.upper()}"


def _ts(number: int) -> str:
    return f"1795302364.{number:06d}"

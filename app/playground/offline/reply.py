"""An answer as it will be sent: kept to the size asked for, with its ending and its token counts."""

from dataclasses import dataclass, field
from enum import Enum, auto

from app.playground.offline.answers import Answer, Shape
from app.playground.offline.question import Question
from app.playground.offline.tools import ToolCall

_CHARS_PER_TOKEN = 4


class Stop(Enum):
    """Why the answer ends; each protocol has its own words."""

    DONE = auto()
    TOOL = auto()
    LENGTH = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens. Plausible: about four characters each."""

    input_tokens: int
    """All of the input, the cached part included."""
    earlier_tokens: int
    """Of the input, what the request before this one held: all but the newest exchange."""
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    text: str = field(repr=False)
    tool: ToolCall | None
    stop: Stop
    counts: Counts


def finish_reply(question: Question, answer: Answer) -> Reply:
    """Cut where the request's limit is."""
    text, tool = answer.text, answer.tool
    stop = Stop.REFUSED if answer.shape is Shape.REFUSED else Stop.TOOL if tool else Stop.DONE
    written = text + (tool.written if tool else "")
    limit = question.max_output_tokens
    if limit is not None and len(written) > limit * _CHARS_PER_TOKEN:
        written = text = written[: limit * _CHARS_PER_TOKEN]
        tool, stop = None, Stop.LENGTH
    return Reply(text=text, tool=tool, stop=stop, counts=_counts(question, written))


def _counts(question: Question, written: str) -> Counts:
    sizes = [chars // _CHARS_PER_TOKEN + 1 for chars in question.message_chars]
    prompt = question.prompt_chars // _CHARS_PER_TOKEN
    return Counts(
        input_tokens=prompt + sum(sizes),
        earlier_tokens=prompt + sum(sizes[:-2]) if len(sizes) > 1 else 0,
        output_tokens=len(written) // _CHARS_PER_TOKEN + 1,
    )

"""What the offline model says: decided from the last user text alone, so that every test and demo can steer it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_QUOTE_CHARS = 200
_LONG_CHARS = 30_000
_SLOW_WORDS = 40
_SLOW_SENTENCE = (
    "I am Orion's offline model and I write slowly so that you have time to press Stop."
)

_RUN = re.compile(r"(?:^|(?<=\s))(run|edit|call):[ \t]*(\S.*)$", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"(?<!\S)!(429|529|500|stall|cut|garbage|context|refuse|slow|long|markdown)\b(?:[ \t]+(\d+(?:\.\d+)?))?"
)
_HISTORY = re.compile(
    r"^--- [0-9a-f]{12} (people wrote|you answered|end of the history, answer this) ---\n",
    re.MULTILINE,
)
"""As `agent_scripts/prompts.py` writes it for agents that take one text."""
_REMINDER = "<system-reminder>"
"""Begins a block that Claude Code adds to what a person wrote."""
_GREETING = "Hello! I am Orion's offline model: no real model is connected, so I only show that everything works."
_HINT = "Try `run: ls -la`, `edit: notes.txt`, `!markdown`, `!long`, `!slow 20`, or a failure such as `!429`."


class Shape(StrEnum):
    """What a `!directive` asks for; the values are the directives."""

    PLAIN = "plain"
    RATE_LIMITED = "429"
    OVERLOADED = "529"
    BROKEN = "500"
    STALLED = "stall"
    CUT = "cut"
    GARBAGE = "garbage"
    CONTEXT = "context"
    REFUSED = "refuse"
    SLOW = "slow"
    LONG = "long"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the model: text, and maybe a tool call after it."""

    shape: Shape
    text: str = field(repr=False)
    tool: ToolCall | None = None
    asked: str = field(default="", repr=False)
    number: float | None = None
    """What the user wrote behind the directive: seconds for `!slow 5`, how many requests fail for `!529 3`."""


def decide_answer(body: dict[str, Any]) -> Answer:
    """The next answer of a checked request."""
    seen = _read_conversation(body["messages"])
    asked, outputs = seen.asked, seen.outputs
    directive = _DIRECTIVE.search(asked)
    shape = Shape(directive[1]) if directive else Shape.PLAIN
    number = float(directive[2]) if directive and directive[2] else None
    offered = {tool.get("name") for tool in body.get("tools") or ()}
    tool_call = _claude_code_call if "Bash" in offered else _tool_call
    calls = [tool_call(kind, argument) for kind, argument in _RUN.findall(asked)]
    missing = sorted({call.name for call in calls} - offered)
    if missing:
        text = f"I am the offline model, and this request offers me no tool named {', '.join(missing)}."
        return Answer(shape=shape, text=text, asked=asked, number=number)
    if len(outputs) < len(calls):
        call = calls[len(outputs)]
        text = f"Step {len(outputs) + 1} of {len(calls)}."
        return Answer(
            shape=Shape.PLAIN if shape is Shape.SLOW else shape,
            text=text,
            tool=call,
            asked=asked,
            number=number,
        )
    text = _report(calls, outputs) if calls else _shaped_text(shape, seen)
    return Answer(
        shape=shape, text="" if shape is Shape.REFUSED else text, asked=asked, number=number
    )


@dataclass(slots=True, kw_only=True)
class _Conversation:
    asked: str = ""
    previous_user: str = ""
    previous_assistant: str = ""
    outputs: list[str] = field(default_factory=list)
    """What tools gave back since `asked`."""


def _read_conversation(messages: Sequence[dict[str, Any]]) -> _Conversation:
    seen = _Conversation()
    last_assistant = ""
    for message in messages:
        if message["role"] == "system":
            continue
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = [block for block in blocks if not str(block.get("text")).startswith(_REMINDER)]
        results = [block for block in blocks if block["type"] == "tool_result"]
        text = _text_of(blocks)
        if results:
            seen.outputs.extend(_text_of(block.get("content", "")) for block in results)
        elif message["role"] == "assistant":
            last_assistant = text or last_assistant
        else:
            told, answered, asked = _unfold(text)
            seen = _Conversation(
                asked=asked,
                previous_user=told or seen.asked,
                previous_assistant=answered or last_assistant,
            )
    return seen


def _unfold(text: str) -> tuple[str, str, str]:
    """What was last said and answered in the history that Orion puts before a message, and the message."""
    told = answered = ""
    asked = text
    parts = _HISTORY.split(text)
    for kind, part in zip(parts[1::2], parts[2::2], strict=True):
        if kind == "people wrote":
            told = part
        elif kind == "you answered":
            answered = part
        else:
            asked = part
    return (told, answered, asked) if len(parts) > 1 else ("", "", text)


def _text_of(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


def _tool_call(kind: str, argument: str) -> ToolCall:
    argument = argument.strip().strip("`").strip()
    if kind == "call":
        name, _, given = argument.partition(" ")
        return ToolCall(name=name, input=_object(given))
    if kind == "run":
        return ToolCall(name="shell", input={"command": argument})
    text = "Written by Orion's offline model.\n"
    return ToolCall(name="edit_file", input={"path": argument, "action": "create", "text": text})


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _claude_code_call(kind: str, argument: str) -> ToolCall:
    """The same wishes with the tools of Claude Code 2.1.330."""
    call = _tool_call(kind, argument)
    if kind == "call":
        return call
    if kind == "run":
        return ToolCall(name="Bash", input=call.input | {"description": "Run what was asked for"})
    fields = {"file_path": call.input["path"], "content": call.input["text"]}
    return ToolCall(name="Write", input=fields)


def _report(calls: Sequence[ToolCall], outputs: Sequence[str]) -> str:
    parts = ["I am Orion's offline model. This is what came back:"]
    for call, output in zip(calls, outputs, strict=False):
        runs = [len(run) for run in re.findall(r"`{3,}", output)]
        fence = "`" * max([3, *(length + 1 for length in runs)])
        shown = next(
            (call.input[key] for key in ("command", "path", "file_path") if key in call.input),
            call.name,
        )
        parts.append(f"`{shown}`\n\n{fence}\n{output.rstrip()}\n{fence}")
    return "\n\n".join(parts)


def _shaped_text(shape: Shape, seen: _Conversation) -> str:
    if shape is Shape.SLOW:
        return " ".join((_SLOW_SENTENCE.split(" ") * _SLOW_WORDS)[:_SLOW_WORDS])
    if shape is Shape.LONG:
        return _long_text()
    return _MARKDOWN_SAMPLE if shape is Shape.MARKDOWN else _plain_text(seen)


def _plain_text(seen: _Conversation) -> str:
    parts = [_GREETING, f"You wrote: “{_quoted(seen.asked)}”"]
    if seen.previous_user:
        parts.append(f"Before that you wrote: “{_quoted(seen.previous_user)}”")
        parts.append(f"and I answered: “{_quoted(seen.previous_assistant)}”")
    else:
        parts.append("This is the first message of this thread that I was given.")
    return "\n\n".join([*parts, _HINT])


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTE_CHARS else line[:_QUOTE_CHARS] + "…"


def _long_text() -> str:
    parts = ["# A long answer of the offline model", _MARKDOWN_SAMPLE]
    size = sum(map(len, parts))
    number = 0
    while size < _LONG_CHARS:
        number += 1
        words = " ".join(f"word {number}.{index}" for index in range(1, 90))
        part = f"## Section {number}\n\n{words}.\n\n```python\nprint({number})\n```"
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)


_MARKDOWN_SAMPLE = """## What the offline model can format

Some **bold**, *italic*, ~~struck~~ and `inline code`, with a [link](https://example.com/?a=1&b=2).

1. First
2. Second
   - nested one
   - nested two

- [x] done
- [ ] open

| agent | state | seconds |
|:------|:-----:|--------:|
| anthropic | ready | 1.2 |
| none | `a \\| b` | 0 |

```python
def greet(name: str) -> str:
    return f"Hello <{name}> & welcome"
```

---

Not a mention: @here, <!channel>, <@U000000>. The end."""

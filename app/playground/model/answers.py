"""What the offline model says and which tools it calls: decided from the last user text alone, so that every test and demo can steer it."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from app.playground.model.addressing import judge_reply
from app.playground.model.question import Message, Question, Tool, person_text

_WRITTEN = "Written by Orion's offline model.\n"
_WHY = "Run what was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    """Without its namespace."""
    input: dict[str, Any] = field(repr=False)
    """Of a freeform tool: its text, as `input`."""
    label: str = ""
    """What the person asked for."""
    is_freeform: bool = False
    namespace: str = ""

    @property
    def written(self) -> str:
        """Returns what the model writes to make the call."""
        return str(self.input["input"]) if self.is_freeform else json.dumps(self.input)


_Arguments = Callable[[str, Tool], dict[str, Any]]


def _command(argument: str, tool: Tool) -> dict[str, Any]:
    is_list = tool.properties.get("command", {}).get("type") == "array"
    return {"command": ["bash", "-lc", argument] if is_list else argument}


def _patch(argument: str, tool: Tool) -> dict[str, Any]:
    lines = "".join(f"+{line}\n" for line in _WRITTEN.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {argument}\n{lines}*** End Patch\n"
    return {"patchText" if "patchText" in tool.properties else "input": patch}


# Names and arguments as the agents offered them when they were run, 2026-11: our own script, Claude Code 2.1.330, Codex
# 0.169.0, Gemini CLI 0.61.0, OpenCode 1.18.33 and Copilot CLI 1.0.102. The first that is offered is used.
_RUN_TOOLS: Mapping[str, _Arguments] = {
    "shell": _command,
    "Bash": lambda argument, _: {"command": argument, "description": _WHY},
    "exec_command": lambda argument, _: {"cmd": argument},
    "run_shell_command": lambda argument, _: {"command": argument, "description": _WHY},
    "bash": lambda argument, _: {"command": argument, "description": _WHY},
}
_WRITE_TOOLS: Mapping[str, _Arguments] = {
    "edit_file": lambda argument, _: {"path": argument, "action": "create", "text": _WRITTEN},
    "Write": lambda argument, _: {"file_path": argument, "content": _WRITTEN},
    "write_file": lambda argument, _: {"file_path": argument, "content": _WRITTEN},
    "write": lambda argument, _: {"filePath": argument, "content": _WRITTEN},
    "create": lambda argument, _: {"path": argument, "file_text": _WRITTEN},
    "apply_patch": _patch,
}


def find_call(kind: str, argument: str, tools: Mapping[str, Tool]) -> ToolCall | str:
    """Returns the call for a `run:`, `edit:` or `call:` line, or the name of the tool that would be needed."""
    argument = argument.strip().strip("`").strip()
    if kind == "call":
        name, _, given = argument.partition(" ")
        found = _find(name, tools)
        return _call(tools[found], _object(given), label=found) if found else name
    known = _RUN_TOOLS if kind == "run" else _WRITE_TOOLS
    for name, arguments in known.items():
        if name in tools:
            return _call(tools[name], arguments(argument, tools[name]), label=argument)
    if kind == "edit" and not isinstance(
        written := find_call("run", _shell_write(argument), tools), str
    ):
        return replace(written, label=argument)
    return next(iter(known))


def _find(name: str, tools: Mapping[str, Tool]) -> str:
    """Finds a tool by its name; or the only one of a server's that is called so, whatever the agent puts before it."""
    if name in tools:
        return name
    found = [one for one in tools if re.fullmatch(rf".*[_.-]{re.escape(name)}", one)]
    return found[0] if len(found) == 1 else ""


def _call(tool: Tool, given: dict[str, Any], *, label: str) -> ToolCall:
    return ToolCall(
        name=tool.name.removeprefix(tool.namespace).removeprefix("__")
        if tool.namespace
        else tool.name,
        input={"input": str(given.get("input", ""))} if tool.is_freeform else given,
        label=label,
        is_freeform=tool.is_freeform,
        namespace=tool.namespace,
    )


def _shell_write(path: str) -> str:
    """Returns a shell command that writes a file, for agents that write files so."""
    folder = path.rpartition("/")[0]
    make = f"mkdir -p {shlex.quote(folder)} && " if folder else ""
    return f"{make}printf %s {shlex.quote(_WRITTEN)} > {shlex.quote(path)}"


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


_QUOTE_CHARS = 200
_MAX_SCHEMA_DEPTH = 8

_WISH = re.compile(r"(?:^|(?<=\s))(run|edit|call):[ \t]*(\S.*)$", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"(?<!\S)!(429|529|500|stall|cut|garbage|context|refuse|slow|long|markdown)\b(?:[ \t]+(\d+(?:\.\d+)?))?"
)
_HISTORY = re.compile(
    r"^--- [0-9a-f]{12} (people wrote|you answered|end of the history, answer this) ---\n",
    re.MULTILINE,
)
"""As `agent_scripts/cli_agent.py` writes it for agents that take one text."""
_TITLE = re.compile(r"\btitle generator\b|\bgenerate a (?:short |brief )?title\b", re.IGNORECASE)
"""In the system prompt of a call that an agent makes for itself (OpenCode 1.18.33)."""
_STILL_WAITING = "again to go on waiting"
"""In what Orion gives an agent back whose deed or question waits for a person."""
_MAX_REPEATS = 100
_GREETING = "Hello! I am Orion's offline model: no real model is connected, so I only show that everything works."
_HINT = (
    "Try `run: ls -la`, `edit: notes.txt`, `!markdown`, `!long`, `!slow 20`, or a failure such as `!429`; "
    "in a thread with two signs, `!!long`, as one makes a message urgent."
)


class Shape(StrEnum):
    """Names what a `!directive` asks for; the values are the directives."""

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
class Answer:
    """One answer of the model: text, and maybe a tool call after it."""

    shape: Shape
    text: str = field(repr=False)
    tool: ToolCall | None = None
    asked: str = field(default="", repr=False)
    number: float | None = None
    """What the user wrote behind the directive: seconds for `!slow 5`, how many requests fail for `!529 3`."""


def decide_answer(question: Question) -> Answer:
    """Returns the next answer."""
    helped = judge_reply(question) or _help_agent(question)
    if helped is not None:
        return Answer(shape=Shape.PLAIN, text=helped)
    seen = _read_conversation(question.messages)
    asked, outputs = seen.asked, seen.outputs
    directive = _DIRECTIVE.search(asked)
    shape = Shape(directive[1]) if directive else Shape.PLAIN
    number = float(directive[2]) if directive and directive[2] else None
    found = [find_call(kind, argument, question.tools) for kind, argument in _WISH.findall(asked)]
    missing = sorted({name for name in found if isinstance(name, str)})
    if missing:
        text = f"I am the offline model, and this request offers me no tool named {', '.join(missing)}."
        return Answer(shape=shape, text=text, asked=asked, number=number)
    calls = [call for call in found if isinstance(call, ToolCall)]
    if len(outputs) < len(calls):
        return Answer(
            shape=Shape.PLAIN if shape is Shape.SLOW else shape,
            text=f"Step {len(outputs) + 1} of {len(calls)}.",
            tool=calls[len(outputs)],
            asked=asked,
            number=number,
        )
    text = _report(calls, seen) if calls else _shaped_text(shape, seen)
    return Answer(
        shape=shape, text="" if shape is Shape.REFUSED else text, asked=asked, number=number
    )


def _help_agent(question: Question) -> str | None:
    """Answers what an agent asks for itself, beside the conversation: a title, a choice in JSON. Directives do not count there."""
    if question.tools:
        return None
    if question.schema is not None:
        return json.dumps(_instance(question.schema, 0))
    return "Offline model" if _TITLE.search(question.system) else None


def _instance(schema: Mapping[str, Any], depth: int) -> object:
    """Returns something small that keeps to the schema."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    match str(kind).lower():
        case "object" if depth < _MAX_SCHEMA_DEPTH:
            fields = schema.get("properties", {})
            return {name: _instance(fields[name], depth + 1) for name in fields}
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return 0
        case _:
            return "offline"


@dataclass(slots=True, kw_only=True)
class _Conversation:
    asked: str = ""
    previous_user: str = ""
    previous_assistant: str = ""
    outputs: list[str] = field(default_factory=list)
    """What tools gave back since `asked`, without what is to be called again."""
    repeats: int = 0
    told: list[str] = field(default_factory=list)
    """What was said meanwhile, which `asked` holds as well."""


def _read_conversation(messages: Sequence[Message]) -> _Conversation:
    seen = _Conversation()
    last_assistant = ""
    for message in messages:
        if message.role == "tool":
            if _STILL_WAITING in message.text and seen.repeats < _MAX_REPEATS:
                seen.repeats += 1
            else:
                seen.outputs.append(message.text)
        elif message.role == "assistant":
            last_assistant = message.text or last_assistant
        elif message.is_beside:
            seen.asked += f"\n\n{message.text}"
            seen.told.append(message.text.rpartition("\n\n")[2])
        elif text := person_text(message.text):
            told, answered, asked = _unfold(text)
            seen = _Conversation(
                asked=asked,
                previous_user=told or seen.asked,
                previous_assistant=answered or last_assistant,
            )
    return seen


def _unfold(text: str) -> tuple[str, str, str]:
    """Returns what was last said and answered in the history that Orion puts before a message, and the message."""
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


def _report(calls: Sequence[ToolCall], seen: _Conversation) -> str:
    parts = ["I am Orion's offline model. This is what came back:"]
    for call, output in zip(calls, seen.outputs, strict=False):
        runs = [len(run) for run in re.findall(r"`{3,}", output)]
        fence = "`" * max([3, *(length + 1 for length in runs)])
        parts.append(f"`{call.label}`\n\n{fence}\n{output.rstrip()}\n{fence}")
    parts += [f"Meanwhile you wrote: “{_quoted(text)}”" for text in seen.told]
    return "\n\n".join(parts)


def _shaped_text(shape: Shape, seen: _Conversation) -> str:
    if shape is Shape.SLOW:
        return slow_text()
    if shape is Shape.LONG:
        return long_text()
    return MARKDOWN_SAMPLE if shape is Shape.MARKDOWN else _plain_text(seen)


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


_LONG_CHARS = 30_000
_SLOW_WORDS = 40
_SLOW_SENTENCE = (
    "I am Orion's offline model and I write slowly so that you have time to press Stop."
)


def slow_text() -> str:
    """Returns 40 words."""
    return " ".join((_SLOW_SENTENCE.split(" ") * _SLOW_WORDS)[:_SLOW_WORDS])


def long_text() -> str:
    """Returns at least 30,000 characters, in sections."""
    parts = ["# A long answer of the offline model", MARKDOWN_SAMPLE]
    size = sum(map(len, parts))
    number = 0
    while size < _LONG_CHARS:
        number += 1
        words = " ".join(f"word {number}.{index}" for index in range(1, 90))
        part = f"## Section {number}\n\n{words}.\n\n```python\nprint({number})\n```"
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)


MARKDOWN_SAMPLE = """## What the offline model can format

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

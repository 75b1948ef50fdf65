"""What the output of all command lines has in common: JSON objects, line by line, with fields that may be anything. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

MAX_DETAIL_CHARS = 4000
_MAX_COST_USD = 1e6
"""No turn costs that much; whoever writes more than that lies."""
_MAX_DEPTH = 100
"""What is not much deeper than that can be parsed, but neither written as JSON nor shown again."""
_MAX_ARGUMENT_CHARS = 2000
_SHOWN_ARGUMENTS = (
    *("command", "cmd", "file_path", "filePath", "filepath", "notebook_path", "path"),
    *("description", "pattern", "query", "url", "name"),
)


def read_record(line: str) -> Mapping[str, Any] | None:
    """The JSON object that this line is; None for anything else, however deep or broken."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # Whoever has no more brackets than that is not deeper: looking for them is cheap.
    if line.count("{") + line.count("[") > _MAX_DEPTH and _is_too_deep(record):
        return None
    return record if isinstance(record, dict) else None


def text_of(record: object, name: str) -> str:
    """That member if it is a text, else an empty one."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, str) else ""


def count_of(record: object, name: str) -> int:
    """That member if it is a whole number from 0, else 0."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def cost_of(told: object) -> float | None:
    """The number of dollars that an agent told, if it can be one; it may tell `NaN`, `1e999` or a number of 400 digits, too."""
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return float(told) if 0 <= told <= _MAX_COST_USD else None


def total_cost(told: Iterable[object]) -> float | None:
    """Of all that was told; not known if one of them cannot be one."""
    costs = [cost_of(one) for one in told]
    known = [cost for cost in costs if cost is not None]
    return cost_of(sum(known)) if len(known) == len(costs) else None


def shown_argument(arguments: object) -> str:
    """The argument of a tool that a person would want to see, on one line; all of them where none of those is known."""
    if isinstance(arguments, str):
        shown = arguments
    elif isinstance(arguments, dict) and arguments:
        known = [arguments.get(name) for name in _SHOWN_ARGUMENTS]
        named = [value for value in known if isinstance(value, str) and value]
        shown = named[0] if named else json.dumps(arguments, ensure_ascii=False)
    else:
        return ""
    return " ".join(shown[: 4 * _MAX_ARGUMENT_CHARS].split())[:_MAX_ARGUMENT_CHARS]


def size_of(output: object) -> int:
    """Bytes of what a tool gave back: of a text as it is, of anything else as JSON; None = 0."""
    if output is None:
        return 0
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return len(text.encode("utf-8", "replace"))


def _is_too_deep(record: object) -> bool:
    level: list[Any] = [record]
    for _ in range(_MAX_DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for values in inside for one in values if isinstance(one, dict | list)]
        if not level:
            return False
    return True

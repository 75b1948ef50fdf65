"""How much a message may hold: Slack's size and shape rules for text and blocks. Pure."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from app.playground.slack.types import JsonObject, SlackError, new_id

# Source: docs.slack.dev, chat.postMessage (text is truncated over 40,000) and chat.update (msg_too_long), read 2026-11.
POST_TEXT_MAX = 40_000
UPDATE_TEXT_MAX = 4_000
# Source: docs.slack.dev, markdown block (12,000 characters); the rendered totals were measured by integrators on real
# workspaces: about 13,200 characters a message, a heading costs about 100 more, 50 rendered elements. Read 2026-11.
MARKDOWN_BLOCK_MAX = 12_000
RENDERED_CHARS_MAX = 13_200
HEADING_COST = 100
BLOCKS_MAX = 50
# Source: docs.slack.dev, "Block Kit blocks" and "block elements" reference, read 2026-11.
SECTION_TEXT_MAX = 3_000
SECTION_FIELDS_MAX = 10
FIELD_TEXT_MAX = 2_000
HEADER_TEXT_MAX = 150
CONTEXT_ELEMENTS_MAX = 10
ACTIONS_MAX = 25
CONTEXT_ACTIONS_MAX = 5
BUTTON_TEXT_MAX = 75
VALUE_MAX = 2_000
ID_MAX = 255
MODAL_TEXT_MAX = 24
MODAL_BLOCKS_MAX = 100
METADATA_MAX = 3_000
INPUT_TEXT_MAX = 2_000
INPUT_MAX = 3_000
CHECKBOXES_MAX = 10
OPTION_TEXT_MAX = 75
URL_MAX = 3_000

_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_FENCE = re.compile(r"(?:[\s>]|(?:[-*+]|\d+[.)])\s)*(```+|~~~+)(.*)")
_LINE_END = re.compile(r"\r\n|\r|\n")
# Source: slackapi/node-slack-sdk issue 2390, markdown blocks with task lists were refused, read 2026-11.
_TASK = re.compile(r"[\s>]*(?:(?:[-*+]|\d+[.)])\s+)+\[[ xX]\]\s")
# Source: docs.slack.dev, table block, read 2026-11.
TABLE_ROWS_MAX = 100
TABLE_COLUMNS_MAX = 20
_TABLE_RULE = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)+\|?\s*$")


def check_blocks(blocks: object) -> list[JsonObject]:
    """Returns the blocks of a message, or the error Slack answers."""
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise SlackError("invalid_blocks_format")
    problems = [
        problem
        for index, block in enumerate(blocks)
        for problem in _block(block, f"/blocks/{index}")
    ]
    problems += _repeated_ids(blocks)
    if problems:
        raise SlackError("invalid_blocks", messages=tuple(problems))
    markdown = [block["text"] for block in blocks if block["type"] == "markdown"]
    chars = sum(rendered_chars(text) for text in markdown)
    elements = len(blocks) - len(markdown) + sum(rendered_elements(text) for text in markdown)
    too_long = any(len(text) > MARKDOWN_BLOCK_MAX for text in markdown)
    if too_long or chars > RENDERED_CHARS_MAX or elements > BLOCKS_MAX:
        raise SlackError("msg_blocks_too_long")
    # Source: docs.slack.dev, blocks reference: Slack gives a block_id to a block without one, read 2026-11.
    return [{"block_id": new_id("")[:5], **block} for block in blocks]


def check_modal(view: object) -> JsonObject:
    """A modal's view, or the error Slack answers. Source: docs.slack.dev, "Modal views", read 2026-11."""
    if not isinstance(view, dict) or view.get("type") != "modal":
        raise SlackError("invalid_arguments")
    blocks = view.get("blocks")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise SlackError("invalid_arguments")
    problems = _text_object(view.get("title"), "/view/title", limit=MODAL_TEXT_MAX, kinds=_PLAIN)
    for name in ("submit", "close"):
        if name in view:
            problems += _text_object(
                view[name], f"/view/{name}", limit=MODAL_TEXT_MAX, kinds=_PLAIN
            )
    problems += _count(blocks, "/view/blocks", limit=MODAL_BLOCKS_MAX)
    if len(view.get("private_metadata", "")) > METADATA_MAX:
        problems.append(
            f"must be less than {METADATA_MAX + 1} characters [json-pointer:/view/private_metadata]"
        )
    for index, block in enumerate(blocks):
        at = f"/view/blocks/{index}"
        problems += _input(block, at) if block.get("type") == "input" else _block(block, at)
    if any(block.get("type") == "input" for block in blocks) and "submit" not in view:
        problems.append("must define submit to use an input block in modals")
    problems += _repeated_ids(blocks)
    if problems:
        raise SlackError("invalid_arguments", messages=tuple(problems))
    return view | {"blocks": [{"block_id": new_id("")[:5], **block} for block in blocks]}


def check_home(view: object) -> JsonObject:
    """A home tab's view, or the error Slack answers. Source: docs.slack.dev, views.publish and "Home tab views", read 2026-11."""
    if not isinstance(view, dict) or view.get("type") != "home":
        raise SlackError("invalid_arguments")
    blocks = view.get("blocks")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise SlackError("invalid_arguments")
    problems = _count(blocks, "/view/blocks", limit=MODAL_BLOCKS_MAX)
    for index, block in enumerate(blocks):
        problems += _block(block, f"/view/blocks/{index}")
    problems += _repeated_ids(blocks)
    if problems:
        raise SlackError("invalid_arguments", messages=tuple(problems))
    return view | {"blocks": [{"block_id": new_id("")[:5], **block} for block in blocks]}


def rendered_chars(markdown: str) -> int:
    """Returns what the text counts towards the total of a message."""
    return len(markdown) + HEADING_COST * sum(kind == "heading" for kind in _elements(markdown))


def rendered_elements(markdown: str) -> int:
    """One markdown block becomes several: each heading, fence and table, and each run of text between them."""
    return sum(1 for _ in _elements(markdown))


def _elements(markdown: str) -> Iterator[str]:
    run = ""
    lines = [*_outside_fences(markdown), ""]
    for line, following in pairwise(lines):
        if line is None or _HEADING.match(line):
            run = ""
            yield "fence" if line is None else "heading"
        elif not line.strip():
            run = "" if run == "table" else run
        else:
            is_table = "|" in line and (run == "table" or bool(_TABLE_RULE.match(following or "")))
            kind = "table" if is_table else "text"
            if kind != run:
                run = kind
                yield kind


def _outside_fences(markdown: str) -> Iterator[str | None]:
    """Yields the lines that are no code, and None for each fence."""
    fence = ""
    for line in _LINE_END.split(markdown):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
            yield None
        else:
            yield line


def _block(block: JsonObject, at: str) -> list[str]:
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in _RULES:
        return [f"unsupported type: {kind} [json-pointer:{at}/type]"]
    problems = _id(block, "block_id", at)
    rule = _RULES[kind]
    return problems + (rule(block, at) if rule else [])


def _text_object(value: object, at: str, *, limit: int, kinds: Sequence[str]) -> list[str]:
    if (
        not isinstance(value, dict)
        or value.get("type") not in kinds
        or not isinstance(value.get("text"), str)
    ):
        return [f"failed to match all allowed schemas [json-pointer:{at}]"]
    return _length(value["text"], f"{at}/text", limit=limit)


def _length(text: str, at: str, *, limit: int) -> list[str]:
    if not text:
        return [f"must be more than 0 characters [json-pointer:{at}]"]
    if len(text) > limit:
        return [f"must be less than {limit + 1} characters [json-pointer:{at}]"]
    return []


def _id(item: JsonObject, name: str, at: str) -> list[str]:
    value = item.get(name)
    if value is None:
        return []
    if not isinstance(value, str):
        return [f"must be a string [json-pointer:{at}/{name}]"]
    return _length(value, f"{at}/{name}", limit=ID_MAX)


_ANY_TEXT = ("mrkdwn", "plain_text")
_PLAIN = ("plain_text",)


def _section(block: JsonObject, at: str) -> list[str]:
    fields = block.get("fields")
    if "text" not in block and not fields:
        return [f"missing required field: text [json-pointer:{at}]"]
    problems: list[str] = []
    if "text" in block:
        problems += _text_object(
            block["text"], f"{at}/text", limit=SECTION_TEXT_MAX, kinds=_ANY_TEXT
        )
    if fields is not None:
        problems += _count(fields, f"{at}/fields", limit=SECTION_FIELDS_MAX)
        for index, item in enumerate(fields if isinstance(fields, list) else []):
            problems += _text_object(
                item, f"{at}/fields/{index}", limit=FIELD_TEXT_MAX, kinds=_ANY_TEXT
            )
    if "accessory" in block:
        problems += _element(block["accessory"], f"{at}/accessory")
    return problems


def _header(block: JsonObject, at: str) -> list[str]:
    return _text_object(block.get("text"), f"{at}/text", limit=HEADER_TEXT_MAX, kinds=_PLAIN)


def _markdown(block: JsonObject, at: str) -> list[str]:
    if not isinstance(block.get("text"), str):
        return [f"missing required field: text [json-pointer:{at}]"]
    if any(line and _TASK.match(line) for line in _outside_fences(block["text"])):
        return [f"task lists are not supported [json-pointer:{at}/text]"]
    return _length(block["text"], f"{at}/text", limit=10**9)


def _table(block: JsonObject, at: str) -> list[str]:
    rows = block.get("rows")
    problems = _count(rows, f"{at}/rows", limit=TABLE_ROWS_MAX)
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        problems += _count(row, f"{at}/rows/{index}", limit=TABLE_COLUMNS_MAX)
    return problems


def _image(block: JsonObject, at: str) -> list[str]:
    missing = [name for name in ("image_url", "alt_text") if not isinstance(block.get(name), str)]
    return [f"missing required field: {name} [json-pointer:{at}]" for name in missing]


def _context(block: JsonObject, at: str) -> list[str]:
    problems = _count(block.get("elements"), f"{at}/elements", limit=CONTEXT_ELEMENTS_MAX)
    for index, item in enumerate(_items(block)):
        where = f"{at}/elements/{index}"
        if isinstance(item, dict) and item.get("type") == "image":
            problems += _image(item, where)
        else:
            problems += _text_object(item, where, limit=SECTION_TEXT_MAX, kinds=_ANY_TEXT)
    return problems


def _action_elements(block: JsonObject, at: str, *, limit: int) -> list[str]:
    problems = _count(block.get("elements"), f"{at}/elements", limit=limit)
    for index, item in enumerate(_items(block)):
        problems += _element(item, f"{at}/elements/{index}")
    ids = [
        item.get("action_id")
        for item in _items(block)
        if isinstance(item, dict) and item.get("action_id")
    ]
    if len(ids) != len(set(ids)):
        problems.append(f"`action_id` must be unique [json-pointer:{at}/elements]")
    return problems


def _element(item: object, at: str) -> list[str]:
    if not isinstance(item, dict):
        return [f"must be an object [json-pointer:{at}]"]
    problems = _id(item, "action_id", at)
    match item.get("type"):
        case "button" | "icon_button":
            return problems + _button(item, at)
        case "feedback_buttons":
            for name in ("positive_button", "negative_button"):
                problems += _button(item.get(name), f"{at}/{name}")
            return problems
        case "overflow" | "static_select" | "datepicker" | "image":
            return problems
        case kind:
            return [f"unsupported type: {kind} [json-pointer:{at}/type]"]


def _button(item: object, at: str) -> list[str]:
    if not isinstance(item, dict):
        return [f"missing required field [json-pointer:{at}]"]
    problems = _text_object(item.get("text"), f"{at}/text", limit=BUTTON_TEXT_MAX, kinds=_PLAIN)
    for name, limit in (
        ("value", VALUE_MAX),
        ("url", URL_MAX),
        ("accessibility_label", BUTTON_TEXT_MAX),
    ):
        if name in item:
            problems += _length(str(item[name]), f"{at}/{name}", limit=limit)
    if item.get("style") not in {None, "primary", "danger"}:
        problems.append(f"invalid style [json-pointer:{at}/style]")
    return problems


def _items(block: JsonObject) -> list[object]:
    elements = block.get("elements")
    return elements if isinstance(elements, list) else []


def _count(items: object, at: str, *, limit: int) -> list[str]:
    if not isinstance(items, list) or not items:
        return [f"no fewer than 1 item required [json-pointer:{at}]"]
    if len(items) > limit:
        return [f"no more than {limit} items allowed [json-pointer:{at}]"]
    return []


def _input(block: JsonObject, at: str) -> list[str]:
    problems = _text_object(block.get("label"), f"{at}/label", limit=INPUT_TEXT_MAX, kinds=_PLAIN)
    if "hint" in block:
        problems += _text_object(block["hint"], f"{at}/hint", limit=INPUT_TEXT_MAX, kinds=_PLAIN)
    element = block.get("element")
    if not isinstance(element, dict):
        return [*problems, f"missing required field: element [json-pointer:{at}]"]
    at = f"{at}/element"
    problems += _id(element, "action_id", at)
    match element.get("type"):
        case "plain_text_input":
            if not 1 <= element.get("max_length", 1) <= INPUT_MAX:
                problems.append(f"must be less than {INPUT_MAX + 1} [json-pointer:{at}/max_length]")
            return problems
        case "checkboxes":
            problems += _count(element.get("options"), f"{at}/options", limit=CHECKBOXES_MAX)
            for index, option in enumerate(element.get("options") or []):
                text = option.get("text") if isinstance(option, dict) else None
                where = f"{at}/options/{index}/text"
                problems += _text_object(text, where, limit=OPTION_TEXT_MAX, kinds=_ANY_TEXT)
            return problems
        case kind:
            return [*problems, f"unsupported type: {kind} [json-pointer:{at}/type]"]


def _repeated_ids(blocks: Sequence[JsonObject]) -> list[str]:
    ids = [block["block_id"] for block in blocks if isinstance(block.get("block_id"), str)]
    return ["`block_id` already exists [json-pointer:/blocks]"] if len(ids) != len(set(ids)) else []


_RULES: dict[str, Callable[[JsonObject, str], list[str]] | None] = {
    "section": _section,
    "header": _header,
    "markdown": _markdown,
    "table": _table,
    "image": _image,
    "context": _context,
    "actions": partial(_action_elements, limit=ACTIONS_MAX),
    "context_actions": partial(_action_elements, limit=CONTEXT_ACTIONS_MAX),
    "divider": None,
    # Accepted by Slack in messages, their insides not judged here. Source: docs.slack.dev, blocks reference, 2026-11.
    **dict.fromkeys(("rich_text", "task_card", "plan", "video", "card", "carousel")),
    **dict.fromkeys(("container", "data_table", "data_visualization")),
}

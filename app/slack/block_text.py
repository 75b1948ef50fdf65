"""Slack's blocks as Markdown, for a model to read. Source: Slack, Block Kit reference, read 2026-11."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from app.slack.fields import MOST_ENTRIES, MOST_PIECES, Node, object_of, objects_of, text_of
from app.slack.markdown import readable

_MAX_DEPTH: Final = 12
"""Of what is inside a block of a kind that is not known here."""
_TEXTS: Final = frozenset(
    {
        *("alt_text", "body", "caption", "description", "details", "image_url", "label", "output"),
        *("subtext", "subtitle", "text", "title", "title_url", "url", "value", "video_url"),
    }
)
_MAX_INDENT: Final = 8
_STYLES: Final = {"code": "`", "strike": "~~", "italic": "_", "bold": "**"}


def text_of_blocks(carrier: Node, name: str = "blocks") -> list[tuple[str, str]]:
    """Returns the kind of each block that says something, and what it says as Markdown."""
    rendered = [
        (text_of(block, "type"), text_of_block(block)) for block in objects_of(carrier, name)
    ]
    return [(kind, text) for kind, text in rendered if text]


def text_of_block(block: Node) -> str:
    """Returns what a block says as Markdown, empty where it says nothing; of a kind that is not known here whatever reads as text."""
    render = _BLOCKS.get(text_of(block, "type"), _whatever)
    return render(block)


def text_of_element(element: Node) -> str:
    """Returns what an element inside a block says: a text, a picture's words and address, a button's label."""
    render = _ELEMENTS.get(text_of(element, "type"), _whatever)
    return render(element)


def text_of_text(carrier: Node, name: str) -> str:
    """Returns a field that is a text, a number, or an object with a text, as its author meant it."""
    text = text_of(carrier, name) or text_of(object_of(carrier, name), "text")
    return readable(text, bot_user_id="") or _number_text(carrier, name)


def joined(texts: Iterable[str], between: str = "\n") -> str:
    """Returns those that say something."""
    return between.join(text for text in texts if text)


def quoted(text: str) -> str:
    """Returns each line as one of a quotation."""
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def link(label: str, address: str) -> str:
    """Returns a label with the address behind it, or the one that there is."""
    is_both = label and address and label != address
    return f"{label} ({address})" if is_both else label or address


def _nothing(_node: Node) -> str:
    return ""


def _header(block: Node) -> str:
    text = text_of_text(block, "text")
    return f"### {text}" if text else ""


def _markdown(block: Node) -> str:
    return text_of(block, "text").strip()


def _section(block: Node) -> str:
    fields = (text_of_element(field) for field in objects_of(block, "fields"))
    accessory = text_of_element(object_of(block, "accessory"))
    return joined([text_of_text(block, "text"), *fields, accessory])


def _row_of_elements(block: Node) -> str:
    return joined(map(text_of_element, objects_of(block, "elements")), " ")


def _container(block: Node) -> str:
    children = (*objects_of(block, "child_blocks"), *objects_of(block, "blocks"))
    return joined([text_of_text(block, "title"), *map(text_of_block, children)])


def _table(block: Node) -> str:
    rows = block.get("rows")
    lines: list[str] = []
    for row in rows[: MOST_ENTRIES + 1] if isinstance(rows, list) else []:
        cells = objects_of(row, "cells") if isinstance(row, dict) else objects_of({"": row}, "")
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
        if len(lines) == 1:
            lines.append(f"|{' --- |' * len(cells)}")
    return joined([text_of_text(block, "caption"), "\n".join(lines)])


def _number_text(carrier: Node, name: str) -> str:
    value = carrier.get(name)
    return str(value) if isinstance(value, int | float) else ""


def _cell(cell: Node) -> str:
    is_rich = cell.get("type") == "rich_text"
    words = text_of_block(cell) if is_rich else text_of_text(cell, "text")
    words = words or _number_text(cell, "value")
    return words.replace("|", r"\|").replace("\n", " ")


def _call(block: Node) -> str:
    call = object_of(object_of(block, "call"), "v1")
    address = text_of(call, "join_url")
    return f"[call {link(text_of(call, 'name') or text_of(block, 'call_id'), address)}]"


def _remote_file(block: Node) -> str:
    return f"[file {text_of(block, 'external_id')}, which another service keeps]"


def _image(image: Node) -> str:
    words = joined([text_of_text(image, "title"), text_of(image, "alt_text")], ": ")
    address = text_of(image, "image_url") or text_of(object_of(image, "slack_file"), "url")
    said = link(words, address)
    return f"[image {said}]" if said else ""


def _button(button: Node) -> str:
    said = link(text_of_text(button, "text"), text_of(button, "url"))
    return f"[button {said}]" if said else ""


def _text_element(element: Node) -> str:
    return readable(text_of(element, "text"), bot_user_id="")


# -- rich text ---------------------------------------------------------------------------------------------------------


def _rich_text(block: Node) -> str:
    return joined(
        _RICH.get(text_of(one, "type"), _whatever)(one)
        for one in objects_of(block, "elements", most=MOST_PIECES)
    )


def _rich_section(element: Node) -> str:
    pieces = objects_of(element, "elements", most=MOST_PIECES)
    return "".join(map(_inline, pieces)).strip("\n")


def _rich_list(element: Node) -> str:
    items = objects_of(element, "elements", most=MOST_PIECES)
    offset, indent = (_number(element, name) for name in ("offset", "indent"))
    is_ordered = element.get("style") == "ordered"
    lines = (
        f"{'  ' * min(indent, _MAX_INDENT)}{f'{number}.' if is_ordered else '-'} {_rich_section(item)}"
        for number, item in enumerate(items, start=offset + 1)
    )
    return "\n".join(lines)


def _rich_code(element: Node) -> str:
    code = "".join(
        text_of(one, "text") or text_of(one, "url")
        for one in objects_of(element, "elements", most=MOST_PIECES)
    )
    return f"```{text_of(element, 'language')}\n{code}\n```"


def _inline(element: Node) -> str:
    return _INLINE.get(text_of(element, "type"), _whatever)(element)


def _styled_text(element: Node) -> str:
    text, style = text_of(element, "text"), object_of(element, "style")
    words = text.strip()
    marked = words
    for name, mark in _STYLES.items():
        marked = f"{mark}{marked}{mark}" if style.get(name) is True else marked
    return text if not words or "\n" in words else text.replace(words, marked, 1)


def _inline_link(element: Node) -> str:
    return link(text_of(element, "text"), text_of(element, "url"))


def _date(element: Node) -> str:
    return text_of(element, "fallback") or moment_of(element, "timestamp")


def moment_of(carrier: Node, name: str) -> str:
    """Returns a field that is a Slack ts or seconds since 1970 as a time for people; empty where it is none."""
    value = carrier.get(name)
    try:
        at = datetime.fromtimestamp(float(value or 0), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
    return f"{at:%Y-%m-%d %H:%M} UTC" if value else ""


def _with(mark: str, name: str, after: str, element: Node) -> str:
    value = text_of(element, name)
    return f"{mark}{value}{after}" if value else ""


def _number(carrier: Node, name: str) -> int:
    value = carrier.get(name)
    return value if isinstance(value, int) and value > 0 else 0


# -- kinds that are not known here -------------------------------------------------------------------------------------


def _whatever(node: Node) -> str:
    return joined(_texts_in(node, depth=0))


def _texts_in(node: object, *, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, list):
        for one in node[:MOST_ENTRIES]:
            yield from _texts_in(one, depth=depth + 1)
    elif isinstance(node, dict) and node.get("type") == "rich_text":
        yield _rich_text(node)
    elif isinstance(node, dict):
        for name, value in node.items():
            if not isinstance(value, str):
                yield from _texts_in(value, depth=depth + 1)
            elif name in _TEXTS:
                yield readable(value, bot_user_id="")


_Render = Callable[[Node], str]
_BLOCKS: Final[Mapping[str, _Render]] = {
    "actions": _row_of_elements,
    "call": _call,
    "container": _container,
    "context": _row_of_elements,
    "context_actions": _nothing,
    "data_table": _table,
    "divider": _nothing,
    "file": _remote_file,
    "header": _header,
    "image": _image,
    "markdown": _markdown,
    "rich_text": _rich_text,
    "section": _section,
    "table": _table,
}
_ELEMENTS: Final[Mapping[str, _Render]] = {
    "button": _button,
    "image": _image,
    "link_button": _button,
    "mrkdwn": _text_element,
    "plain_text": _text_element,
    "workflow_button": _button,
}
_RICH: Final[Mapping[str, _Render]] = {
    "rich_text_list": _rich_list,
    "rich_text_preformatted": _rich_code,
    "rich_text_quote": lambda element: quoted(_rich_section(element)),
    "rich_text_section": _rich_section,
}
_INLINE: Final[Mapping[str, _Render]] = {
    "broadcast": partial(_with, "@", "range", ""),
    "channel": partial(_with, "#", "channel_id", ""),
    "color": partial(_with, "", "value", ""),
    "date": _date,
    "emoji": partial(_with, ":", "name", ":"),
    "link": _inline_link,
    "text": _styled_text,
    "user": partial(_with, "@", "user_id", ""),
    "usergroup": partial(_with, "@", "usergroup_id", ""),
}

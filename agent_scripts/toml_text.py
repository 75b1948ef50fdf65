"""TOML as some agents want their configuration; the standard library only reads it. Pure."""

import json
from collections.abc import Mapping, Sequence

Toml = str | bool | int | Sequence["Toml"] | Mapping[str, "Toml"]


def render_toml(table: Mapping[str, Toml]) -> str:
    """One line for each key, tables in braces; empty tables are left out."""
    lines = [
        f"{_quoted(key)} = {_render_value(value)}" for key, value in table.items() if value != {}
    ]
    return "\n".join([*lines, ""])


def _render_value(value: Toml) -> str:
    """Of a text, everything but its lone surrogates is kept."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _quoted(value)
        case Mapping():
            pairs = [f"{_quoted(key)} = {_render_value(item)}" for key, item in value.items()]
            return f"{{{', '.join(pairs)}}}"
        case _:
            return f"[{', '.join(_render_value(item) for item in value)}]"


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, too; it leaves one character bare that TOML does not take so.
    sound = text.encode("utf-8", "replace").decode()
    return json.dumps(sound, ensure_ascii=False).replace("\x7f", "\\u007f")

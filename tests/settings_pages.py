"""`.env.example` and `docs/configure.md`, written from the fields of the settings: `make settings`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.settings import orion_toml
from app.settings.group import fields_of
from app.settings.settings import groups, names_of

_HEAD = """\
# Orion's settings, written by `make settings`. Every one is here; a line without value shows the default (empty = not set).
# Copy to .env and fill in what you need: the lines that do not begin with # are enough for a start.
"""
_PAGE = """\
# Settings

Written by `make settings` from the fields in `app/settings` and `app/runs/policy.py`; change them there.

Orion reads the environment and a file `.env` in the directory that it is started in; the environment wins, and `orion setup` writes
there. A value that is wrong, and a name that begins with `ORION_` and is none, end the start with a line for each. `.env.example` has
all of them to copy. Lists are separated by commas or blanks. What depends on a channel, an agent, a repository or a model stands in
`orion.toml`, see below. `orion playground` goes by all three as well, but for what it has of its own: Slack, Langfuse, models (unless
`ANTHROPIC_API_KEY` is set), address, database and state directory.
"""
_TOML = """\

## orion.toml

In the directory that Orion is started in; read once, at the start.

"""


def render_env_example() -> str:
    """Returns the text of `.env.example`."""
    lines = [_HEAD.rstrip()]
    for group in groups().values():
        lines.append(f"\n# ---- {title_of(group)} ----")
        for info in fields_of(group).values():
            lines.append(f"# {info.description}")
            extra = info.json_schema_extra
            is_first = isinstance(extra, dict) and extra.get("is_first")
            mark = "" if is_first else "# "
            lines += [f"{mark}{name}={default_of(info)}" for name in names_of(info)]
    return "\n".join(lines) + "\n"


def render_page() -> str:
    """Returns the text of `docs/configure.md`."""
    lines = [_PAGE.rstrip()]
    for group in groups().values():
        lines += [f"\n## {title_of(group)}\n", "| setting | default | meaning |", "|---|---|---|"]
        for info in fields_of(group).values():
            names = "<br>".join(f"`{name}`" for name in names_of(info))
            default = f"`{default_of(info)}`" if default_of(info) else ""
            meaning = " ".join((info.description or "", *bounds_of(info)))
            lines.append(f"| {names} | {default} | {meaning.replace('|', chr(92) + '|')} |")
    toml = inspect.cleandoc(orion_toml.__doc__ or "").partition("\n\n")[2]
    return "\n".join(lines) + "\n" + _TOML + toml + "\n"


def title_of(group: type) -> str:
    """Returns the heading of a group."""
    if issubclass(group, BaseModel):
        return str(group.model_config.get("title"))
    return inspect.cleandoc(group.__doc__ or "").partition(":")[0].rstrip(".")


def default_of(info: FieldInfo) -> str:
    """Returns the default as it is written in `.env`."""
    if isinstance(info.json_schema_extra, dict) and "default" in info.json_schema_extra:
        return str(info.json_schema_extra["default"])
    if info.default is None or info.default in ((), {}, frozenset()):
        return ""
    return str(info.default).lower() if isinstance(info.default, bool) else str(info.default)


def bounds_of(info: FieldInfo) -> Iterator[str]:
    """Yields what a value must keep to."""
    words = [word for word in get_args(info.annotation) if isinstance(word, str)]
    if words:
        yield f"One of: {', '.join(f'`{word}`' for word in words)}."
    bounds = [
        f"{said} {getattr(one, name):,}".replace(",", " ")
        for one in info.metadata
        for name, said in (("gt", "above"), ("ge", "at least"), ("le", "at most"))
        if hasattr(one, name)
    ]
    if bounds:
        yield f"({', '.join(bounds)})"


PAGES = {Path(".env.example"): render_env_example, Path("docs/configure.md"): render_page}

if __name__ == "__main__":
    for path, render in PAGES.items():
        path.write_text(render())

"""What `orion.toml` gives: additions to the environments of agents, wishes and budgets of channels, prices, commands for repositories."""

import stat
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from app.config import SettingsError
from app.orion_toml import ORION_TOML, read_toml, shown_key
from app.runs.costs import Price
from app.runs.environment import AddedFile, Additions
from app.runs.options import Wishes

MAX_FILES_BYTES = 16 * 1024 * 1024
"""Of all files of an agent: they are held in memory. Something larger is for a command to fetch."""


def load_additions(path: Path = ORION_TOML) -> Mapping[str, Additions]:
    """What the file says, by agent; nothing when there is none.

    Raises:
        SettingsError: naming the file, and every bad key with its value, a line each.
    """
    parsed = read_toml(path)
    lines: list[str] = []
    found = {}
    for name, table in parsed.agents.items():
        key = f"{path}: agents.{name}"
        files, problems = _read_files(table.files, path.parent, key=f"{key}.files")
        lines += problems
        found[name] = Additions(
            files=files, commands=tuple(table.commands), origin=f"{key}.commands"
        )
    if lines:
        raise SettingsError("\n".join(lines))
    return found


def load_channels(path: Path = ORION_TOML) -> Mapping[str, Wishes]:
    """What channels have of their own, by ids.

    Raises:
        SettingsError: naming the file, and every bad key with its value, a line each.
    """
    return {
        name: Wishes(sandbox=table.sandbox or "", agent=table.agent or "", model=table.model or "")
        for name, table in read_toml(path).channels.items()
    }


def load_channel_budgets(path: Path = ORION_TOML) -> Mapping[str, Decimal]:
    """Dollars that a day in a channel may cost, by ids of channels.

    Raises:
        SettingsError: naming the file, and every bad key with its value, a line each.
    """
    return {
        name: table.budget_day_usd
        for name, table in read_toml(path).channels.items()
        if table.budget_day_usd is not None
    }


def load_prices(path: Path = ORION_TOML) -> Mapping[str, Price]:
    """Prices of models, by their names or the beginnings of them.

    Raises:
        SettingsError: naming the file, and every bad key with its value, a line each.
    """
    return {name: Price(**table.model_dump()) for name, table in read_toml(path).prices.items()}


def load_repositories(path: Path = ORION_TOML) -> Mapping[str, tuple[str, ...]]:
    """Commands that run after a repository was cloned, by `owner/name` or URL.

    Raises:
        SettingsError: naming the file, and every bad key with its value, a line each.
    """
    return {name: tuple(table.init) for name, table in read_toml(path).repositories.items()}


def _read_files(
    sources: Mapping[str, str], directory: Path, *, key: str
) -> tuple[tuple[AddedFile, ...], list[str]]:
    """The files, and what is wrong with them."""
    files, lines = [], []
    room = MAX_FILES_BYTES
    # `bin` is made for the agent's PATH in any case.
    directories = {"bin", *(str(above) for target in sources for above in Path(target).parents)}
    for target, source in sources.items():
        shown = f"{key}{shown_key(target)}"
        path = directory / source
        try:
            if target in directories:
                lines.append(f"{shown}: is a directory of the environment, not a file")
            elif not path.is_file():
                lines.append(f"{shown}: no such file (is {source!r})")
            elif path.stat().st_size > room:
                limit = f"{MAX_FILES_BYTES // 1024**2} MiB"
                lines.append(f"{shown}: more than {limit} in all; let a command fetch it")
            else:
                data = path.read_bytes()
                room -= len(data)
                is_executable = bool(path.stat().st_mode & stat.S_IXUSR)
                files.append(AddedFile(path=target, data=data, executable=is_executable))
        except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
            lines.append(f"{shown}: {exc}")
    return tuple(files), lines

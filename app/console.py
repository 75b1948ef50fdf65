"""What the commands of `orion …` share: settings, failures and exit codes as a person at a terminal meets them."""

import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from app.config import Settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
USAGE = 2
_OPTIONS = {
    "ORION_SANDBOX": "--provider",
    "ORION_AGENT": "--agent",
    "ORION_MOUNT_DIR": "--mount",
    "ORION_MOUNT_OVERLAY": "--overlay",
}
"""Of the commands that let an option stand for a setting."""


def read_settings(*, for_serving: bool = False, **given: str | None) -> "Settings":
    """`given`: settings from the command line, which win; None = not given. Bad ones, `orion.toml`'s too, end the process."""
    from app.additions import load_additions
    from app.config import SettingsError, load_settings, make_private
    from app.model_access import missing_for_serving

    problems = []
    settings = None
    said = {k: v for k, v in given.items() if v is not None}
    try:
        settings = load_settings(given=said)
    except SettingsError as exc:
        problems += [_by_options(line, said) for line in str(exc).split("\n")]
    try:
        load_additions()
    except SettingsError as exc:
        problems.append(str(exc))
    if settings is None or problems:
        is_of_options = all(line.startswith("--") for line in problems)
        fail("\n".join(problems if is_of_options else ("bad settings:", *problems)), code=USAGE)
    try:
        make_private(settings.orion_state_dir)
    except OSError as exc:
        fail(f"ORION_STATE_DIR cannot be used: {exc}")
    if for_serving and (missing := missing_for_serving(settings)):
        fail("bad settings:\n" + "\n".join(missing), code=USAGE)
    return settings


def _by_options(line: str, said: Collection[str]) -> str:
    """What is wrong with a setting that an option stands for, in the words of whoever wrote the option."""
    if line.partition(":")[0].lower() not in said:
        return line
    for setting, option in _OPTIONS.items():
        line = re.sub(rf"\b{setting}(=true)?\b", option, line)
    return line


@contextmanager
def failures_shown() -> Iterator[None]:
    """What can go wrong with records and sandboxes, in a line each."""
    from app.commands.desk import SandboxCommandError
    from app.commands.runs import UnknownRunError, UnsaidRunError
    from app.commands.snapshots import SnapshotCommandError
    from app.dispatch.lock import StateDirectoryBusyError
    from app.store.schema import UnreadableStoreError
    from sandbox_runtime.errors import SandboxError

    kinds = (UnknownRunError, SandboxCommandError, SnapshotCommandError, SandboxError)
    try:
        yield
    except UnsaidRunError as exc:
        fail(str(exc), code=USAGE)
    except (*kinds, StateDirectoryBusyError, UnreadableStoreError, OSError) as exc:
        fail(str(exc))


def fail(message: str, *, code: int = 1) -> NoReturn:
    """End the process with a line on stderr."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def exit_with(code: int) -> None:
    """End the process."""
    raise typer.Exit(code)

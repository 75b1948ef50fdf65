"""What the commands of `orion …` share: settings, failures and exit codes as a person at a terminal meets them."""

import json
import re
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from app.settings.settings import Settings

T = TypeVar("T")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
USAGE = 2
_OPTIONS = {
    "ORION_SANDBOX": "--provider",
    "ORION_AGENT": "--agent",
    "ORION_MOUNT_DIR": "--mount",
    "ORION_MOUNT_OVERLAY": "--overlay",
}
"""Of the commands that let an option stand for a setting."""


def read_settings(
    *,
    for_serving: bool = False,
    hears: bool = True,
    shared: str = "",
    from_env_file: bool = True,
    **given: str | None,
) -> "Settings":
    """Reads the settings. Bad ones, `orion.toml`'s too, end the process.

    Args:
        for_serving: what a process of the service cannot do without must be there.
        hears: that process hears of Slack's events.
        shared: the command that needs a database which several processes can use; empty = none is needed.
        from_env_file: `.env` is read, too.
        given: on the command line; they win, None = not given.
    """
    from app.compose.models import missing_for_serving
    from app.settings.group import SettingsError
    from app.settings.settings import ENV_FILE, load_settings, make_private

    problems = []
    settings = None
    said = {k: v for k, v in given.items() if v is not None}
    try:
        settings = load_settings(env_file=ENV_FILE if from_env_file else None, given=said)
    except SettingsError as exc:
        problems += [_by_options(line, said) for line in str(exc).split("\n")]
    if settings is None or problems:
        is_of_options = all(line.startswith("--") for line in problems)
        fail("\n".join(problems if is_of_options else ("bad settings:", *problems)), code=USAGE)
    try:
        make_private(settings.service.state_dir)
    except OSError as exc:
        path = settings.service.state_dir
        reason = "it is a file" if path.is_file() else exc.strerror or exc
        fail(f"ORION_STATE_DIR={path} cannot be used: {reason}")
    if shared and not isinstance(settings.database, str):
        fail(
            f"{shared} works beside other processes, and SQLite is for one: set ORION_DATABASE_URL to a postgresql:// URL, or run `orion serve`",
            code=USAGE,
        )
    if for_serving and (missing := missing_for_serving(settings, hears=hears)):
        fail("bad settings:\n" + "\n".join(missing), code=USAGE)
    return settings


def _by_options(line: str, said: Collection[str]) -> str:
    """Returns what is wrong with a setting that an option stands for, in the words of whoever wrote the option."""
    if line.partition(":")[0].lower() not in said:
        return line
    for setting, option in _OPTIONS.items():
        line = re.sub(rf"\b{setting}(=true)?\b", option, line)
    return line


@contextmanager
def show_failures() -> Iterator[None]:
    """Shows what can go wrong with records and sandboxes in a line each, and ends the process."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as exc:
        code = _exit_code(exc)
        if code is None:
            raise
        fail(str(exc), code=code)


def _exit_code(failure: Exception) -> int | None:
    """Returns what a command ends with that fails so; None = that is a bug. Looked up once something has failed: the imports take half a second."""
    from app.cli.commands.repositories import RepositoryCommandError
    from app.cli.commands.runs import UnknownRunError, UnsaidRunError
    from app.cli.commands.sandboxes import SandboxCommandError
    from app.cli.commands.snapshots import SnapshotCommandError
    from app.store.engine import StateDirectoryBusyError, UnreadableStoreError
    from sandbox_runtime.errors import SandboxError

    if isinstance(failure, UnsaidRunError):
        return USAGE
    known = (UnknownRunError, SandboxCommandError, SnapshotCommandError, RepositoryCommandError)
    outside = (SandboxError, StateDirectoryBusyError, UnreadableStoreError, OSError)
    return 1 if isinstance(failure, (*known, *outside)) else None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end; what can go wrong with records and sandboxes ends the process with a line."""
    import asyncio

    with show_failures():
        return asyncio.run(work)


def print_rows(rows: Sequence[T], line: Callable[[T], str], *, as_json: bool) -> None:
    """Prints rows as JSON, or a line for each."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(line(row))


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Ends the process with a line on stderr."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def exit_with(code: int) -> None:
    """Ends the process."""
    raise typer.Exit(code)

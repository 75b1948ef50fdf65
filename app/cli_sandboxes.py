"""`orion sandboxes …`: thin, as `app.cli`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from app.console import USAGE, AsJson, exit_with, fail, failures_shown, read_settings

sandboxes = typer.Typer(
    no_args_is_help=True,
    help="Look at the threads' sandboxes, work in them, end or remove them. NAME: of `list`, or the beginning of an id.",
)


@sandboxes.command("list")
def list_sandboxes(as_json: AsJson = False) -> None:
    """The sandbox and the saved files of each thread, of all providers, latest used first; then what is no thread's."""
    import asyncio

    from app.commands.sandboxes import as_row
    from app.commands.sandboxes import list_sandboxes as find

    with failures_shown():
        rows = [as_row(listed) for listed in asyncio.run(find(read_settings()))]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        name = row["name"] or f"({row['id']})"
        code = "" if row["exit_code"] is None else f"({row['exit_code']})"
        print(
            f"{name:28} {row['status']}{code:{12 - len(str(row['status']))}} {row['provider']:8} {row['agent']:10} "
            f"{row['used_at'] or row['created_at']}  {row['thread'] or 'no thread'}"
        )


@sandboxes.command("logs")
def show_log(
    name: str,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the agent's end.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of what is there, the last N lines.")
    ] = None,
) -> None:
    """What the agent of the thread's latest run printed, masked."""
    import asyncio

    from app.commands.logs import show_log as show

    with failures_shown(), _ended_by_hand():
        asyncio.run(show(read_settings(), name, follow=follow, tail=tail, write=_write))


@sandboxes.command("attach")
def attach(name: str) -> None:
    """Follow the agent that is at work in the thread, to its end; Ctrl-C detaches. Exit code 0 when its run succeeded."""
    import asyncio

    from app.commands.logs import attach as follow

    with failures_shown(), _ended_by_hand("detached; it goes on"):
        is_success = asyncio.run(follow(read_settings(), name, write=_write, say=_say))
        exit_with(0 if is_success else 1)


@sandboxes.command("shell")
def open_shell(name: str) -> None:
    """Work in the thread's sandbox: the one that runs, or one from what was saved; what you change is saved, if no run is going.

    Without a terminal, stdin is the script. Network: as the agent's, none but the broker, for which there is no token.
    """
    _open_shell(name)


@sandboxes.command("resume")
def resume(
    name: str,
    shell: Annotated[bool, typer.Option("--shell", help="Work in it; the default.")] = False,
    detached: Annotated[
        bool, typer.Option("--detached", help="Leave it running, for `shell` and the next run.")
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="The agent's own form, with its memory (claude).")
    ] = False,
) -> None:
    """A sandbox from what was saved of the thread."""
    import asyncio

    if shell + detached + interactive > 1:
        fail("say which: --shell, --detached or --interactive", code=USAGE)
    if interactive:
        from app.commands.interactive import work_with_agent

        with failures_shown():
            exit_with(asyncio.run(work_with_agent(read_settings(), name, say=_say)))
    if not detached:
        _open_shell(name)
        return
    from app.commands.resume import leave_running

    with failures_shown():
        print(asyncio.run(leave_running(read_settings(), name, say=_say)))


@sandboxes.command("stop")
def stop_sandbox(name: str) -> None:
    """End a kept sandbox; the thread's files stay saved."""
    import asyncio

    from app.commands.sandboxes import stop_sandbox as stop

    with failures_shown():
        print(asyncio.run(stop(read_settings(), name)))


@sandboxes.command("rm")
def remove_sandbox(name: str) -> None:
    """Remove a thread's sandbox and its saved files."""
    import asyncio

    from app.commands.sandboxes import remove_sandbox as remove

    with failures_shown():
        print(asyncio.run(remove(read_settings(), name)))


@sandboxes.command("clean")
def clean_sandboxes(
    days: Annotated[float, typer.Option(min=0, max=36_500, help="Unused for so long.")] = 7,
) -> None:
    """Remove the sandboxes and saved files of threads that nobody has used for some days, and what crashes left."""
    import asyncio

    from app.commands.sandboxes import clean_sandboxes as clean

    with failures_shown():
        for line in asyncio.run(clean(read_settings(), days=days)):
            print(line)


@sandboxes.command("conformance")
def check_conformance(
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="P", help="Instead of ORION_SANDBOX.")
    ] = None,
) -> None:
    """Check every sentence of the sandbox contract on this machine, in sandboxes of its own: some minutes."""
    import asyncio

    from app.commands.conformance import check_conformance as check

    settings = read_settings(orion_sandbox=provider)
    exit_with(0 if asyncio.run(check(settings, write=_write)) else 1)


def _open_shell(name: str) -> None:
    import asyncio

    from app.commands.shell import open_shell as work

    with failures_shown():
        exit_with(asyncio.run(work(read_settings(), name, say=_say)))


@contextmanager
def _ended_by_hand(line: str = "") -> Iterator[None]:
    """Ctrl-C is how a person stops looking, and no failure."""
    try:
        yield
    except KeyboardInterrupt:
        if line:
            _say(line)


def _write(line: str) -> None:
    print(line, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

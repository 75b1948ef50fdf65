"""`orion sandboxes …`, `orion snapshots …` and `orion repositories …`: thin, as `app.cli.root`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from app.cli.output import USAGE, AsJson, exit_with, fail, print_rows, read_settings, run_async

sandboxes = typer.Typer(
    no_args_is_help=True,
    help="Look at the threads' sandboxes, work in them, end or remove them. NAME: of `list`, or the beginning of an id.",
)


@sandboxes.command("list")
def list_sandboxes(as_json: AsJson = False) -> None:
    """The sandbox and the saved files of each thread, of all providers, latest used first; then what is no thread's."""
    from app.cli.commands.sandboxes import as_row, line_of
    from app.cli.commands.sandboxes import list_sandboxes as find

    rows = [as_row(listed) for listed in run_async(find(read_settings()))]
    print_rows(rows, line_of, as_json=as_json)


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
    """Show what the agent of the thread's latest run printed, masked."""
    from app.cli.commands.logs import show_log as show

    with _ended_by_hand():
        run_async(show(read_settings(), name, follow=follow, tail=tail, write=_write, say=_say))


@sandboxes.command("attach")
def attach(name: str) -> None:
    """Follow the agent that is at work in the thread, to its end; Ctrl-C detaches. Exit code 0 when its run succeeded."""
    from app.cli.commands.logs import attach as follow

    with _ended_by_hand("detached; it goes on"):
        is_success = run_async(follow(read_settings(), name, write=_write, say=_say))
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
    if shell + detached + interactive > 1:
        fail("say which: --shell, --detached or --interactive", code=USAGE)
    if interactive:
        from app.cli.commands.interactive import work_with_agent

        exit_with(run_async(work_with_agent(read_settings(), name, say=_say)))
    if not detached:
        _open_shell(name)
        return
    from app.cli.commands.shell import leave_running

    print(run_async(leave_running(read_settings(), name, say=_say)))


@sandboxes.command("stop")
def stop_sandbox(name: str) -> None:
    """End an idle sandbox; the thread's files stay saved."""
    from app.cli.commands.sandboxes import stop_sandbox as stop

    print(run_async(stop(read_settings(), name)))


@sandboxes.command("rm")
def remove_sandbox(name: str) -> None:
    """Remove a thread's sandbox and its saved files."""
    from app.cli.commands.sandboxes import remove_sandbox as remove

    print(run_async(remove(read_settings(), name)))


@sandboxes.command("clean")
def clean_sandboxes(
    days: Annotated[float, typer.Option(min=0, max=36_500, help="Unused for so long.")] = 7,
) -> None:
    """Remove the sandboxes and saved files of threads that nobody has used for some days, and what crashes left."""
    from app.cli.commands.sandboxes import clean_sandboxes as clean

    for line in run_async(clean(read_settings(), days=days)):
        print(line)


@sandboxes.command("conformance")
def check_conformance(
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="P", help="Instead of ORION_SANDBOX.")
    ] = None,
) -> None:
    """Check every sentence of the sandbox contract on this machine, in sandboxes of its own: some minutes."""
    from app.cli.commands.conformance import check_conformance as check

    settings = read_settings(orion_sandbox=provider)
    exit_with(0 if run_async(check(settings, write=_write)) else 1)


def _open_shell(name: str) -> None:
    from app.cli.commands.shell import open_shell as work

    exit_with(run_async(work(read_settings(), name, say=_say)))


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


snapshots = typer.Typer(
    no_args_is_help=True,
    help="Make, look at and remove the agents' environments. (The threads' saved files: orion sandboxes.)",
)

Provider = Annotated[
    str | None, typer.Option("--provider", metavar="P", help="Instead of ORION_SANDBOX.")
]


@snapshots.command("build")
def build_snapshot(
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="A", help="Instead of ORION_AGENT.")
    ] = None,
    provider: Provider = None,
) -> None:
    """Make the agent's environment, unless it is there; prints each step when it begins."""
    from app.cli.commands.snapshots import build_snapshot as build

    settings = read_settings(orion_agent=agent, orion_sandbox=provider)
    exit_with(0 if run_async(build(settings, write=partial(print, flush=True))) else 1)


@snapshots.command("list")
def list_snapshots(provider: Provider = None, as_json: AsJson = False) -> None:
    """The agents' environments, oldest first; `in use` are those that today's settings and orion.toml ask for."""
    from app.cli.commands.snapshots import as_row, line_of
    from app.cli.commands.snapshots import list_snapshots as find

    rows = [as_row(saved) for saved in run_async(find(read_settings(orion_sandbox=provider)))]
    print_rows(rows, line_of, as_json=as_json)


@snapshots.command("rm")
def remove_snapshots(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    old: Annotated[bool, typer.Option("--old", help="All that are not in use.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also one in use: the next run makes it again.")
    ] = False,
    provider: Provider = None,
) -> None:
    """Remove environments by name or id. Their bytes stay as long as a sandbox, or a thread's saved files, stand on them."""
    from app.cli.commands.snapshots import remove_old_snapshots
    from app.cli.commands.snapshots import remove_snapshots as remove

    if bool(names) == old:
        fail("say which: names, or --old", code=USAGE)
    settings = read_settings(orion_sandbox=provider)
    work = remove(settings, names, force=force) if names else remove_old_snapshots(settings)
    for line in run_async(work):
        print(line)


repositories = typer.Typer(
    no_args_is_help=True,
    help="Repositories whose `setup` in orion.toml is run before a thread begins in them.",
)


@repositories.command("prepare")
def prepare_repository(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME")],
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="A", help="Instead of ORION_AGENT.")
    ] = None,
    provider: Provider = None,
) -> None:
    """Clone it, run its set-up and keep what that leaves, for new threads; prints each step when it begins."""
    from app.cli.commands.repositories import prepare_repository as prepare

    settings = read_settings(orion_agent=agent, orion_sandbox=provider)
    work = prepare(settings, repository, write=partial(print, flush=True))
    exit_with(0 if run_async(work) else 1)


@repositories.command("list")
def list_repositories(provider: Provider = None, as_json: AsJson = False) -> None:
    """Repositories that orion.toml has a setup of, and the agents that they are prepared for; then what is left of earlier settings and environments."""
    from app.cli.commands.repositories import line_of, list_prepared

    print_rows(
        run_async(list_prepared(read_settings(orion_sandbox=provider))), line_of, as_json=as_json
    )


@repositories.command("rm")
def remove_repositories(
    names: Annotated[list[str] | None, typer.Argument(metavar="[OWNER/NAME]...")] = None,
    old: Annotated[
        bool, typer.Option("--old", help="All that today's settings do not use.")
    ] = False,
    provider: Provider = None,
) -> None:
    """Remove what is prepared, by repository (of all agents), name or id; threads keep their files, and the next one has it made anew."""
    from app.cli.commands.repositories import remove_prepared

    if bool(names) == old:
        fail("say which: repositories, or --old", code=USAGE)
    settings = read_settings(orion_sandbox=provider)
    for line in run_async(remove_prepared(settings, names or (), old=old)):
        print(line)

"""`orion …`: thin; every command imports what it needs when it is called."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from app.config import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
runs = typer.Typer(no_args_is_help=True, help="Look at runs, and stop one.")
app.add_typer(runs, name="runs")
sandboxes = typer.Typer(
    no_args_is_help=True, help="Look at the threads' sandboxes, end or remove them."
)
app.add_typer(sandboxes, name="sandboxes")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Entry point. Exit codes: 0 ok, 1 failed, 2 usage."""
    app()


@app.callback()
def _root() -> None:
    """Orion answers in Slack with AI agents that run in isolated sandboxes."""


@app.command()
def serve() -> None:
    """Run the service."""
    from app.commands.serve import serve as run

    _exit(run(_settings(for_serving=True)))


@app.command()
def playground(
    port: Annotated[int, typer.Option(help="Port of the page; 0 = a free one.")] = 0,
    state_dir: Annotated[Path | None, typer.Option(help="Default: a directory of its own.")] = None,
) -> None:
    """Try Orion on this machine: a local Slack look-alike, an offline model, a trace page."""
    from app.commands.playground import run_playground

    _exit(run_playground(port=port, state_dir=state_dir))


@app.command()
def verify(
    provider: Annotated[str | None, typer.Option(help="Instead of ORION_SANDBOX.")] = None,
    agent: Annotated[str | None, typer.Option(help="Instead of ORION_AGENT.")] = None,
) -> None:
    """One real run in the sandbox, without Slack; prints each step with its duration."""
    import asyncio

    from app.commands.verify import verify as run

    settings = _settings(orion_sandbox=provider, orion_agent=agent)
    _exit(0 if asyncio.run(run(settings, write=print)) else 1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check settings, database, engine, sandbox, Slack, model and Langfuse by using them."""
    import asyncio

    from app.commands.doctor import examine

    settings = _settings()

    async def collect() -> bool:
        is_ok = True
        async for finding in examine(settings):
            is_ok = is_ok and finding.is_ok
            if as_json:
                print(
                    json.dumps(
                        {
                            "part": finding.part,
                            "ok": finding.is_ok,
                            "detail": finding.detail,
                            "fix": finding.fix,
                        }
                    )
                )
            else:
                fix = f"  ->  {finding.fix}" if finding.fix else ""
                print(
                    f"{'ok' if finding.is_ok else 'FAIL':5}{finding.part:10} {finding.detail}{fix}"
                )
        return is_ok

    _exit(0 if asyncio.run(collect()) else 1)


@app.command()
def manifest(
    public_url: Annotated[
        str | None, typer.Option(help="Where Slack reaches Orion over HTTP.")
    ] = None,
) -> None:
    """Print the Slack app manifest: Socket Mode, or HTTP events with --public-url."""
    from app.slack.manifest import manifest as build

    if public_url is not None and not re.fullmatch(r"https://[^\s/?#]+[^\s?#]*", public_url):
        _fail(f"--public-url: https:// and a host, not {public_url!r}", code=2)
    print(json.dumps(build(public_url=public_url, socket_mode=public_url is None), indent=2))


@app.command()
def migrate() -> None:
    """Bring the database up to this version of Orion, while no Orion is running on it."""
    from app.commands.migrate import migrate as run

    with _failures_shown():
        print(run(_settings()))


@runs.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: AsJson = False
) -> None:
    """The newest runs."""
    import asyncio

    from app.commands.runs import as_row, recent_runs

    with _failures_shown():
        rows = [as_row(run) for run in asyncio.run(recent_runs(_settings(), limit=limit))]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        seconds = f"{row['duration_s']:.1f} s" if row["duration_s"] is not None else ""
        print(
            f"{row['id']}  {row['state']:10} {row['code'] or '':24} {row['created_at']}  {row['user']}  {seconds}"
        )


@runs.command("show")
def show_run(
    run_id: str,
    as_json: AsJson = False,
    log: Annotated[bool, typer.Option("--log", help="What its agent printed, masked.")] = False,
    patch: Annotated[bool, typer.Option("--patch", help="What it did to the files.")] = False,
) -> None:
    """One run, by its id or the beginning of it."""
    import asyncio

    from app.commands.runs import as_row, file_of_run, find_run
    from app.runs.ports import RunFileKind

    if log or patch:
        kind = RunFileKind.LOG if log else RunFileKind.PATCH
        with _failures_shown():
            content = asyncio.run(file_of_run(_settings(), run_id, kind))
        if not content:
            _fail(f"run {run_id} left no {kind}")
        print(content)
        return
    with _failures_shown():
        row = as_row(asyncio.run(find_run(_settings(), run_id)))
    if as_json:
        print(json.dumps(row, indent=2))
        return
    for name, value in row.items():
        print(f"{name:14} {'' if value is None else value}")


@runs.command("stop")
def stop_run(run_id: str) -> None:
    """Stop a run that is going or waiting, by its id or the beginning of it."""
    import asyncio

    from app.commands.runs import stop_run as stop

    with _failures_shown():
        is_asked = asyncio.run(stop(_settings(), run_id))
    if not is_asked:
        _fail(f"run {run_id} is over, or was asked to stop already")
    print("asked to stop")


@sandboxes.command("list")
def list_sandboxes(as_json: AsJson = False) -> None:
    """The sandbox and the saved files of each thread, latest used first."""
    import asyncio

    from app.commands.sandboxes import as_row
    from app.commands.sandboxes import list_sandboxes as find

    with _failures_shown():
        rows = [as_row(session) for session in asyncio.run(find(_settings()))]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['name']:28} {row['status']:8} {row['provider']:8} {row['agent']:10} {row['used_at']}  {row['thread']}"
        )


@sandboxes.command("stop")
def stop_sandbox(name: str) -> None:
    """End a kept sandbox, by its name or the beginning of its id; the thread's files stay saved."""
    import asyncio

    from app.commands.sandboxes import stop_sandbox as stop

    with _failures_shown():
        print(asyncio.run(stop(_settings(), name)))


@sandboxes.command("rm")
def remove_sandbox(name: str) -> None:
    """Remove a thread's sandbox and its saved files, by its name or the beginning of its id."""
    import asyncio

    from app.commands.sandboxes import remove_sandbox as remove

    with _failures_shown():
        print(asyncio.run(remove(_settings(), name)))


@sandboxes.command("clean")
def clean_sandboxes(
    days: Annotated[float, typer.Option(min=0, help="Unused for so long.")] = 7,
) -> None:
    """Remove the sandboxes and saved files of threads that nobody has used for some days."""
    import asyncio

    from app.commands.sandboxes import clean_sandboxes as clean

    with _failures_shown():
        for line in asyncio.run(clean(_settings(), days=days)):
            print(line)


@contextmanager
def _failures_shown() -> Iterator[None]:
    """What can go wrong with records, in a line each."""
    from app.commands.runs import UnknownRunError
    from app.commands.sandboxes import SandboxCommandError
    from app.dispatch.lock import StateDirectoryBusyError
    from app.store.schema import UnreadableStoreError
    from sandbox_runtime.errors import SandboxError

    kinds = (UnknownRunError, SandboxCommandError, SandboxError)
    try:
        yield
    except (*kinds, StateDirectoryBusyError, UnreadableStoreError, OSError) as exc:
        _fail(str(exc))


def _settings(*, for_serving: bool = False, **given: str | None) -> "Settings":
    """`given`: settings from the command line, which win; None = not given."""
    from app.config import SettingsError, load_settings, make_private

    try:
        settings = load_settings(given={k: v for k, v in given.items() if v is not None})
    except SettingsError as exc:
        _fail(f"bad settings:\n{exc}", code=2)
    try:
        make_private(settings.orion_state_dir)
    except OSError as exc:
        _fail(f"ORION_STATE_DIR cannot be used: {exc}")
    if for_serving and settings.missing_for_serving:
        _fail("bad settings:\n" + "\n".join(settings.missing_for_serving), code=2)
    return settings


def _fail(message: str, *, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def _exit(code: int) -> None:
    raise typer.Exit(code)


if __name__ == "__main__":
    main()

"""`orion …`: thin; every command imports what it needs when it is called."""

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import (
    USAGE,
    AsJson,
    exit_with,
    fail,
    print_rows,
    read_settings,
    run_async,
    show_failures,
)
from app.cli.sandboxes import Provider, repositories, sandboxes, snapshots

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
runs = typer.Typer(no_args_is_help=True, help="Look at runs; stop, retry or replay one.")
notes = typer.Typer(no_args_is_help=True, help="What people told Orion to remember in channels.")
traces = typer.Typer(no_args_is_help=True, help="What Langfuse has of runs.")
egress = typer.Typer(no_args_is_help=True, help="The hosts that sandboxes may reach.")
app.add_typer(egress, name="egress")
app.add_typer(runs, name="runs")
app.add_typer(notes, name="notes")
app.add_typer(traces, name="traces")
app.add_typer(sandboxes, name="sandboxes")
app.add_typer(snapshots, name="snapshots")
app.add_typer(repositories, name="repositories")


def main() -> None:
    """Entry point. Exit codes: 0 ok, 1 failed, 2 usage."""
    app()


@app.callback()
def _root() -> None:
    """Orion answers in Slack with AI agents that run in isolated sandboxes."""


@app.command()
def serve(
    no_work: Annotated[
        bool,
        typer.Option("--no-work", help="Hear of messages; workers answer them (PostgreSQL)."),
    ] = False,
    no_env_file: Annotated[
        bool,
        typer.Option("--no-env-file", hidden=True, help="The playground has read `.env`."),
    ] = False,
) -> None:
    """Run the service."""
    from app.cli.commands.serve import serve as run
    from app.compose.adapters import Role

    shared = "orion serve --no-work" if no_work else ""
    settings = read_settings(for_serving=True, shared=shared, from_env_file=not no_env_file)
    exit_with(run(settings, role=Role.FRONT if no_work else Role.WHOLE))


@app.command()
def worker() -> None:
    """Run agents for the processes that hear of messages (PostgreSQL)."""
    from app.cli.commands.serve import serve as run
    from app.compose.adapters import Role

    settings = read_settings(for_serving=True, hears=False, shared="orion worker")
    exit_with(run(settings, role=Role.WORKER))


@app.command()
def playground(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 = a free one.")
    ] = 0,
    state_dir: Annotated[Path | None, typer.Option(help="Default: a directory of its own.")] = None,
    without_orion: Annotated[
        bool, typer.Option("--without-orion", help="Print the settings for processes of your own.")
    ] = False,
    events_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --without-orion: events are posted there, instead of sent by a socket; such as http://127.0.0.1:3000/slack/events.",
        ),
    ] = None,
) -> None:
    """Try Orion on this machine: a local fake Slack, an offline model, a trace page."""
    from app.cli.commands.playground import run_playground, run_stand_ins

    if events_url is not None and not (without_orion and events_url.startswith("http://")):
        fail(
            f"--events-url: with --without-orion, and an http:// address, not {events_url!r}",
            code=USAGE,
        )
    exit_with(
        run_stand_ins(port=port, events_url=events_url)
        if without_orion
        else run_playground(port=port, state_dir=state_dir)
    )


@app.command()
def verify(
    provider: Annotated[str | None, typer.Option(help="Instead of ORION_SANDBOX.")] = None,
    agent: Annotated[str | None, typer.Option(help="Instead of ORION_AGENT.")] = None,
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of ORION_MOUNT_DIR.")
    ] = None,
    overlay: Annotated[
        bool, typer.Option("--overlay", help="Work in a copy of it, as ORION_MOUNT_OVERLAY.")
    ] = False,
) -> None:
    """One real run in the sandbox, without Slack; prints each step with its duration."""
    from app.cli.commands.verify import verify as run

    settings = read_settings(
        orion_sandbox=provider,
        orion_agent=agent,
        orion_mount_dir=str(mount) if mount is not None else None,
        orion_mount_overlay="true" if overlay else None,
    )
    exit_with(0 if run_async(run(settings, write=print)) else 1)


@app.command()
def ask(
    question: str,
    sandbox: Annotated[
        str | None, typer.Option(help="Where it runs; as ORION_SANDBOX says without it.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Who answers it.")] = None,
) -> None:
    """Ask a question without Slack; prints each step and the answer."""
    from app.cli.commands.verify import ask as run

    settings = read_settings(orion_sandbox=sandbox, orion_agent=agent)
    exit_with(0 if run_async(run(settings, question, write=print)) else 1)


@app.command()
def tui() -> None:
    """Runs and sandboxes, live in this terminal."""
    import gc

    gc.disable()  # all that is loaded stays: to look through it takes a sixth of the start
    try:
        from app.cli.tui.board import Board
    except ModuleNotFoundError:
        fail("it needs the extra: pip install 'orion[tui]'")
    from app.cli.tui.office import open_office

    settings = read_settings()

    async def show() -> None:
        async with open_office(settings) as office:
            gc.freeze()  # nor later: a tenth of a second each time, in which no key does anything
            gc.enable()
            await Board(office).run_async()

    run_async(show())


@app.command()
def doctor(
    as_json: AsJson = False,
    mention: Annotated[
        str,
        typer.Option(
            metavar="CHANNEL",
            help="Then wait for a mention there, and follow it to its answer; the channel's name or id.",
        ),
    ] = "",
) -> None:
    """Check settings, database, engine, sandbox, Slack, model and Langfuse by using them."""
    from app.cli.commands.doctor import Finding, examine
    from app.cli.commands.mention import follow_mention

    settings = read_settings()

    def show(finding: Finding) -> bool:
        if as_json:
            print(json.dumps(finding.row))
        else:
            fix = f"  ->  {finding.fix}" if finding.fix else ""
            print(f"{finding.sign:5}{finding.part:10} {finding.detail.removeprefix('! ')}{fix}")
        return finding.is_ok

    async def collect() -> bool:
        is_ok = all([show(finding) async for finding in examine(settings)])
        if mention:
            followed = await follow_mention(settings, mention, tell=partial(print, file=sys.stderr))
            is_ok = show(followed) and is_ok
        return is_ok

    exit_with(0 if run_async(collect()) else 1)


@traces.command("check")
def check_traces(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Of the newest so many runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Ask Langfuse for the traces of the last runs that are over, and whether they have the steps of the records."""
    from app.cli.commands.probes import TryError
    from app.cli.commands.traces import check_traces as check

    settings = read_settings()
    if settings.langfuse.public_key is None:
        fail("there are no traces: LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY are not set")

    try:
        found = run_async(check(settings, limit=limit))
    except TryError as exc:
        fail(str(exc))
    if as_json:
        print(json.dumps([one.row for one in found], indent=2))
    else:
        print("\n".join(one.line for one in found) or "no run is over yet")
    exit_with(0 if all(one.is_ok for one in found) else 1)


@egress.command("check")
def check_egress(provider: Provider = None) -> None:
    """Print the lists of hosts, and try from inside a new sandbox: all of theirs, and one that must be refused."""
    from app.cli.commands.egress import check_hosts

    settings = read_settings(orion_sandbox=provider)
    exit_with(0 if run_async(check_hosts(settings, write=print)) else 1)


@app.command()
def setup(
    provider: Annotated[str, typer.Argument(help="vercel or deno.")],
    use_keyring: Annotated[
        bool, typer.Option("--keyring", help="Keep tokens in the system's keyring, not in .env.")
    ] = False,
) -> None:
    """Set up a cloud: ask for what is missing, try it, keep it, build the agent's environment there."""
    import signal
    import sys

    from app.cli.commands.setup import QUESTIONS, Question, set_up
    from app.settings.group import SettingsError

    if provider not in QUESTIONS:
        fail(f"there is no set-up for {provider!r}; there are: {', '.join(QUESTIONS)}", code=USAGE)

    async def ask(question: Question) -> str:
        # asyncio's own handler would wait for an answer before it ends anything.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer: str = typer.prompt(
                question.text, default=question.default or None, hide_input=question.is_secret
            )
        finally:
            signal.signal(signal.SIGINT, before)
        return answer.strip()

    try:
        is_ready = run_async(
            set_up(
                provider,
                ask=ask if sys.stdin.isatty() else None,
                say=print,
                use_keyring=use_keyring,
            )
        )
    except SettingsError as exc:
        fail(f"bad settings:\n{exc}", code=USAGE)
    exit_with(0 if is_ready else 1)


@app.command()
def manifest(
    public_url: Annotated[
        str | None, typer.Option(help="Where Slack reaches Orion over HTTP.")
    ] = None,
) -> None:
    """Print the Slack app manifest: Socket Mode, or HTTP events with --public-url."""
    from app.slack.manifest import manifest as build

    if public_url is not None and not re.fullmatch(r"https://[^\s/?#]+[^\s?#]*", public_url):
        fail(f"--public-url: https:// and a host, not {public_url!r}", code=USAGE)
    print(json.dumps(build(public_url=public_url, socket_mode=public_url is None), indent=2))


@app.command()
def migrate() -> None:
    """Bring the database up to this version of Orion; says so where processes must be stopped first."""
    from app.cli.commands.runs import migrate as run

    with show_failures():
        print(run(read_settings()))


@app.command()
def audit(
    *,
    user: Annotated[
        str, typer.Option(metavar="ID", help="Of this person; operator = of commands like these.")
    ] = "",
    channel: Annotated[str, typer.Option(metavar="ID", help="In this channel.")] = "",
    act: Annotated[
        str, typer.Option(help="ask, settings, memory, own-keys, link, stop or approve.")
    ] = "",
    run: Annotated[str, typer.Option(metavar="ID", help="Of this run.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Of the last so many.")] = 90,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show who was allowed or refused what, and why, the newest first; kept for ORION_AUDIT_DAYS."""
    from datetime import UTC, datetime, timedelta

    from app.audit.records import Act, AuditQuery
    from app.cli.commands.audit import as_row, find_entries, line_of

    if act and act not in set(Act):
        fail(f"--act: there are {', '.join(Act)}, not {act!r}", code=USAGE)
    query = AuditQuery(
        since=datetime.now(UTC) - timedelta(days=days),
        user=user,
        channel=channel,
        act=Act(act) if act else None,
        run_id=run,
        is_allowed=False if refused else None,
        limit=limit,
    )
    found = run_async(find_entries(read_settings(), query))
    print_rows([as_row(entry) for entry in found], line_of, as_json=as_json)


@runs.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: AsJson = False
) -> None:
    """The newest runs."""
    from app.cli.commands.runs import recent_runs, short_line_of
    from app.operators.records import as_row

    rows = [as_row(run) for run in run_async(recent_runs(read_settings(), limit=limit))]
    print_rows(rows, short_line_of, as_json=as_json)


@runs.command("show")
def show_run(
    run_id: str,
    as_json: AsJson = False,
    log: Annotated[bool, typer.Option("--log", help="What its agent printed, masked.")] = False,
    patch: Annotated[bool, typer.Option("--patch", help="What it did to the files.")] = False,
) -> None:
    """One run, by its id or the beginning of it."""
    from app.cli.commands.runs import asked_of, file_of_run, find_run, lines_of, steps_of
    from app.operators.records import as_row
    from app.runs.model import RunFileKind

    if log or patch:
        kind = RunFileKind.LOG if log else RunFileKind.PATCH
        content = run_async(file_of_run(read_settings(), run_id, kind))
        if not content:
            fail(f"run {run_id} left no {kind}")
        print(content)
        return
    run = run_async(find_run(read_settings(), run_id))
    asked, steps = (
        run_async(asked_of(read_settings(), run)),
        run_async(steps_of(read_settings(), run)),
    )
    row = as_row(run, asked, steps)
    if as_json:
        print(json.dumps(row, indent=2))
        return
    for line in lines_of(row):
        print(line)


@runs.command("cost")
def show_costs(
    days: Annotated[int, typer.Option(min=1, max=366, help="Of UTC, today included.")] = 30,
    by: Annotated[str, typer.Option(help="day, user, channel, agent or model.")] = "day",
    as_json: AsJson = False,
) -> None:
    """Show what runs have used and cost; they are forgotten after ORION_RETENTION_DAYS."""
    from app.cli.commands.runs import sum_costs
    from app.operators.records import By

    if by not in set(By):
        fail(f"--by: there are {', '.join(By)}, not {by!r}", code=USAGE)
    sums = run_async(sum_costs(read_settings(), days=days, by=By(by)))
    if as_json:
        print(json.dumps([one.row for one in sums], indent=2))
        return
    for one in sums:
        print(one.line)


@runs.command("stop")
def stop_run(run_id: str) -> None:
    """Stop a run that is going or waiting, by its id or the beginning of it."""
    from app.cli.commands.runs import stop_run as stop

    is_asked = run_async(stop(read_settings(), run_id))
    if not is_asked:
        fail(f"run {run_id} is over, or was asked to stop already")
    print("asked to stop")


@runs.command("retry")
def retry_run(run_id: str) -> None:
    """Ask a failed run's question again, by its id or the beginning of it."""
    from app.cli.commands.runs import UnfailedRunError
    from app.cli.commands.runs import retry_run as retry

    try:
        print(run_async(retry(read_settings(), run_id)))
    except UnfailedRunError as exc:
        fail(str(exc))


@runs.command("replay")
def replay_run(
    run_id: str,
    *,
    speed: Annotated[
        float, typer.Option(min=0, max=1000, help="So much faster than it was; 0 = at once.")
    ] = 1.0,
    channel: Annotated[
        str, typer.Option(metavar="ID", help="In a thread of its own there, for all to see.")
    ] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the page on this machine; 0 = a free one.")
    ] = 0,
) -> None:
    """Show a run that is over once more, from its record: on a page of this machine, or in a channel."""
    from app.cli.commands.replay import (
        ReplayError,
        load_recording,
        replay_in_channel,
        replay_in_playground,
    )

    settings = read_settings()
    try:
        recording = run_async(load_recording(settings, run_id))
        if channel:
            print(run_async(replay_in_channel(settings, recording, channel=channel, speed=speed)))
        else:
            run_async(replay_in_playground(recording, port=port, speed=speed, say=print))
    except ReplayError as exc:
        fail(str(exc))


Channel = Annotated[str, typer.Option(metavar="ID", help="Of this channel or direct message.")]
Person = Annotated[str, typer.Option(metavar="ID", help="Said by this person, wherever.")]


@notes.command("list")
def list_notes(channel: Channel = "", person: Person = "", as_json: AsJson = False) -> None:
    """What is remembered, by channel."""
    from app.cli.commands.notes import as_row, find_notes, line_of

    found = run_async(find_notes(read_settings(), channel=channel, person=person))
    print_rows([as_row(note) for note in found], line_of, as_json=as_json)


@notes.command("forget")
def forget_notes(
    channel: Channel = "",
    person: Person = "",
    number: Annotated[int | None, typer.Option(min=1, help="The one of that number.")] = None,
) -> None:
    """Forget what a person said, or what a channel has; agents that were told before may know it in their threads."""
    from app.cli.commands.notes import forget_notes as forget

    if not (channel or person) or (number is not None and not channel):
        fail("say which: --channel ID, --person ID, or --channel ID --number N", code=USAGE)
    gone = run_async(forget(read_settings(), channel=channel, person=person, number=number))
    if not gone:
        fail("nothing of that is remembered")
    print(f"{gone} forgotten")

"""`orion snapshots …`: thin, as `app.cli`."""

import json
from functools import partial
from typing import Annotated

import typer

from app.console import USAGE, AsJson, exit_with, fail, failures_shown, read_settings

snapshots = typer.Typer(
    no_args_is_help=True,
    help="Make, look at and remove the agents' environments. (The threads' saved files: orion sandboxes.)",
)

Provider = Annotated[
    str | None, typer.Option("--provider", metavar="P", help="Instead of ORION_SANDBOX.")
]
_MIB = 1024 * 1024


@snapshots.command("build")
def build_snapshot(
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="A", help="Instead of ORION_AGENT.")
    ] = None,
    provider: Provider = None,
) -> None:
    """Make the agent's environment, unless it is there; prints each step when it begins."""
    import asyncio

    from app.commands.snapshots import build_snapshot as build

    settings = read_settings(orion_agent=agent, orion_sandbox=provider)
    exit_with(0 if asyncio.run(build(settings, write=partial(print, flush=True))) else 1)


@snapshots.command("list")
def list_snapshots(provider: Provider = None, as_json: AsJson = False) -> None:
    """The agents' environments, oldest first; `in use` are those that today's settings and orion.toml ask for."""
    import asyncio

    from app.commands.snapshots import as_row
    from app.commands.snapshots import list_snapshots as find

    with failures_shown():
        rows = [as_row(kept) for kept in asyncio.run(find(read_settings(orion_sandbox=provider)))]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        size = "" if row["size_bytes"] is None else f"{row['size_bytes'] / _MIB:.0f} MiB"
        print(
            f"{row['name']:32} {row['id']}  {row['agent']:10} {size:>10}  {row['created_at']}"
            f"  {'in use' if row['in_use'] else 'old'}"
        )


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
    import asyncio

    from app.commands.snapshots import remove_old_snapshots
    from app.commands.snapshots import remove_snapshots as remove

    if bool(names) == old:
        fail("say which: names, or --old", code=USAGE)
    settings = read_settings(orion_sandbox=provider)
    with failures_shown():
        work = remove(settings, names, force=force) if names else remove_old_snapshots(settings)
        for line in asyncio.run(work):
            print(line)

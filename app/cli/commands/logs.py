"""Shows what the agent of a thread's latest run printed, and follows it while it is at work."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from app.cli.commands.sandboxes import SandboxAdmin, SandboxCommandError, open_admin
from app.cli.commands.terminal import Print
from app.redaction import Masker
from app.runs.model import STARTED_STATES, Run, RunFileKind, RunState
from app.runs.progress import LiveLogs
from app.runs.request import RunId
from app.runs.session import Session
from app.settings.settings import Settings
from app.store.engine import place_of

POLL_S = 0.3
SILENCE_AFTER_DEADLINE = timedelta(minutes=1)
"""A run whose deadline is over by this much, and whose end is not recorded, has nobody who works on it."""


_HARMLESS = {
    number: "\ufffd" for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) != "\t"
}
"""What an agent prints must not command the terminal of who looks at it."""


async def show_log(
    settings: Settings, text: str, *, follow: bool, tail: int | None, write: Print, say: Print
) -> None:
    """Writes the lines, masked; `tail`: only so many of those that are there now. With `follow` until the agent's end.

    `say` is told whose agents cannot be followed from here.

    Raises:
        SandboxCommandError: nothing to show.
    """
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        run = await _latest(admin, session)
        if follow and not _has_ended(run):
            await _say_what_is_unseen(admin, say)
        await _write_log(admin, run, follow=follow, tail=tail, write=write)


async def attach(settings: Settings, text: str, *, write: Print, say: Print) -> bool:
    """Writes all lines of the agent that is at work until its end; whether its run succeeded.

    Raises:
        SandboxCommandError: none is at work.
    """
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        run = await admin.find_going(session)
        if run is None or _has_ended(run):
            raise SandboxCommandError(f"{session.name}: no agent is at work in its thread")
        say(f"{session.name}: at work on {run.id}; Ctrl-C detaches, and it goes on")
        await _say_what_is_unseen(admin, say)
        run = await _write_log(admin, run, follow=True, tail=None, write=write)
        say(f"{session.name}: {run.id} {run.result.state}")
        return run.result.state is RunState.SUCCEEDED


async def follow_run(settings: Settings, run_id: str, *, write: Print) -> None:
    """Writes all lines of a run's agent, masked, until its end, and then how it ended; of one that waits as soon as it has begun.

    Raises:
        SandboxCommandError: there is no such run, or it has left no log.
    """
    async with open_admin(settings) as admin:
        run = await admin.store.get(RunId(run_id))
        if run is None:
            raise SandboxCommandError(f"{run_id} is gone: its record has been removed")
        if not _has_ended(run):
            await _say_what_is_unseen(admin, write)
        run = await _write_log(admin, run, follow=True, tail=None, write=write)
        write(f"({run.result.error_code or run.result.state})")


async def _say_what_is_unseen(admin: SandboxAdmin, say: Print) -> None:
    """Says which processes write elsewhere what their agents print."""
    here = place_of(admin.settings.service.state_dir)
    living = await admin.store.leases.living() if admin.store.leases.is_shared else ()
    elsewhere = [one.name for one in living if one.is_working and one.host not in (None, here)]
    if elsewhere:
        say(
            f"not seen from this host and ORION_STATE_DIR: what agents of {', '.join(elsewhere)} print, until their run's end"
        )


async def _latest(admin: SandboxAdmin, session: Session) -> Run:
    runs = await admin.store.of_thread(session.thread)
    begun = [run for run in runs if run.attempt > 0]
    going = [run for run in begun if run.state in STARTED_STATES]
    if not begun:
        raise SandboxCommandError(f"{session.name}: its runs are not kept any more")
    return (going or begun)[-1]


async def _write_log(
    admin: SandboxAdmin, run: Run, *, follow: bool, tail: int | None, write: Print
) -> Run:
    path = LiveLogs(admin.settings.live_logs_dir).path(run.id)
    with closing(_LiveLines(path)) as live:
        return await _write_live(admin, run, live, follow=follow, tail=tail, write=write)


async def _write_live(
    admin: SandboxAdmin,
    run: Run,
    live: "_LiveLines",
    *,
    follow: bool,
    tail: int | None,
    write: Print,
) -> Run:
    mask = Masker(admin.settings.secrets).mask
    lines = await asyncio.to_thread(live.read)
    if not live.is_open and (_has_ended(run) or not follow):
        return await _write_stored(admin, run, tail=tail, write=write)
    for line in _last(lines, tail):
        write(mask(line).translate(_HARMLESS))
    while follow:
        # In this order: all that was printed before the end is there once the end is known.
        run = await admin.store.get(run.id) or run
        for line in await asyncio.to_thread(live.read):
            write(mask(line).translate(_HARMLESS))
        if _has_ended(run):
            if not live.is_open:
                return await _write_stored(admin, run, tail=tail, write=write)
            break
        deadline_at = run.deadline_at or run.started_at  # neither: it waits
        if deadline_at and datetime.now(UTC) > deadline_at + SILENCE_AFTER_DEADLINE:
            raise SandboxCommandError(f"{run.id} is past its deadline, and nobody has ended it")
        await asyncio.sleep(POLL_S)
    return run


async def _write_stored(admin: SandboxAdmin, run: Run, *, tail: int | None, write: Print) -> Run:
    content = await admin.store.files.load(run.id, RunFileKind.LOG)
    if not content:
        raise SandboxCommandError(f"{run.id} has left no log")
    for line in _last(content.split("\n"), tail):
        write(line.translate(_HARMLESS))
    return run


def _last(lines: Sequence[str], count: int | None) -> Sequence[str]:
    if count is None:
        return lines
    return lines[-count:] if count else ()


def _has_ended(run: Run) -> bool:
    return run.outcome is not None or run.state.is_final


class _LiveLines:
    """New lines of a file that may not be there yet, may be replaced by another, and in the end is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._carry = b""

    @property
    def is_open(self) -> bool:
        """Whether it was there at some time; what is read after its removal is its end."""
        return self._file is not None

    def read(self) -> Sequence[str]:
        """Returns whole lines since the last time."""
        with suppress(FileNotFoundError):
            self._open()
        if self._file is None:
            return ()
        *lines, self._carry = (self._carry + self._file.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        found = self._path.stat()
        if self._file is None or os.fstat(self._file.fileno()).st_ino != found.st_ino:
            self._file, old = self._path.open("rb"), self._file
            self._carry = b""
            if old is not None:
                old.close()

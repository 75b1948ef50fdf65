"""Filling, saving and removing the directories of local sandboxes, by the coreutils: killable, and fast on large trees."""

import asyncio
import os
from pathlib import Path

from sandbox_runtime.output import BoundedBuffer
from sandbox_runtime.providers.local.place import Place
from sandbox_runtime.providers.local.processes import HostCommand, start_process
from sandbox_runtime.types import ExecExited, ExecOutput

COPY_TIMEOUT_S = 300.0
_PATH = "/usr/local/bin:/usr/bin:/bin"
_SAVED = ("work", "home")


def _make(directory: Path, *, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)


async def fill_place(place: Place, *, saved: Path | None, template: Path | None) -> None:
    """Make the directories of a new sandbox, with the workspace from `saved` and a copy of the environment `template`."""
    owned = [place.home, place.run, place.tmp]
    if place.mounted is None:
        owned.append(place.work)
    if place.environment_writable or place.environment_id is None:
        owned.append(place.environment)
    for directory in owned:
        _make(directory, mode=0o1777 if directory == place.tmp else 0o755)
    if saved is not None:
        for name in set(_saved(place)).intersection(os.listdir(saved)):  # noqa: PTH208  # names only
            await _copy(saved / name, place.directory / name)
    if place.environment_writable and template is not None:
        await _copy(template, place.environment)
    if place.host_uid is not None:
        await _chown(place.host_uid, *owned)


async def save_workspace(place: Place, target: Path) -> None:
    """Copy what is worth keeping of a sandbox in which nothing runs."""
    _make(target, mode=0o755)
    for name in _saved(place):
        source = place.directory / name
        if os.listdir(source):  # noqa: PTH208  # whether there is anything
            _make(target / name, mode=0o755)
            try:
                await _copy(source, target / name)
            except OSError:
                await _open_up(source, target / name)
                await _copy(source, target / name)


def _saved(place: Place) -> tuple[str, ...]:
    return _SAVED if place.mounted is None else ("home",)


async def seal_environment(place: Place) -> None:
    """Give a finished environment to the service, readable by the users of all sandboxes."""
    if place.host_uid is not None:
        await _chown(0, place.environment)
        await _run("chmod", "-R", "a+rX", "--", str(place.environment))


async def remove(path: Path) -> None:
    """Remove a tree, whatever modes its directories have. One that does not exist is fine."""
    try:
        await _run("rm", "-rf", "--", str(path))
    except OSError:
        await _open_up(path)
        await _run("rm", "-rf", "--", str(path))


async def _copy(source: Path, target: Path) -> None:
    await _run("cp", "-a", "--reflink=auto", "-T", "--", str(source), str(target))


async def _chown(uid: int, *paths: Path) -> None:
    await _run("chown", "-R", "-h", "--", f"{uid}:{uid}", *map(str, paths))


async def _open_up(*paths: Path) -> None:
    """An ordinary user cannot read what it has forbidden itself; root never gets here."""
    await _run("chmod", "-R", "u+rwX", "--", *map(str, paths))


async def _run(*argv: str) -> None:
    """Raises: OSError: it failed."""
    command = HostCommand(
        argv=lambda _memory, _status: list(argv),
        env={"PATH": _PATH, "LC_ALL": "C"},
        cwd="/",
        namespaces=0,
    )
    stderr = BoundedBuffer(2000)
    exit_code = -1
    process = start_process(command, stdin=b"", merge_output=True)
    try:
        async with asyncio.timeout(COPY_TIMEOUT_S):
            async for event in process.events():
                match event:
                    case ExecOutput():
                        stderr.feed(event.data)
                    case ExecExited():
                        exit_code = event.exit_code
    finally:
        await process.kill()
    if exit_code != 0:
        raise OSError(f"{argv[0]} failed: {os.fsdecode(stderr.value()).strip()}")

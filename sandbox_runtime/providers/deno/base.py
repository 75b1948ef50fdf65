"""The base environment: Debian with our tools, made once per organisation and region, kept as a snapshot."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import ProgressListener
from sandbox_runtime.providers.deno.console import BUILTIN_BASE, Console
from sandbox_runtime.providers.deno.disks import Disks
from sandbox_runtime.providers.deno.remote import run_shell
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.settings import DenoSettings
from sandbox_runtime.providers.deno.slugs import Kind, Slug

BUILD_TIMEOUT_S = 1500.0
"""The sandbox lives no longer than 30 minutes."""

SETUP = (files("sandbox_runtime.providers.deno") / "setup.sh").read_text("utf-8")

Boot = Callable[[Slug], Awaitable[tuple[str, RpcConnection]]]
"""Boots a bare machine on a root volume, with open network: its id and connection."""


def base_recipe(settings: DenoSettings) -> str:
    """The script that makes it, whole: a change of it makes another base."""
    names = {"GIT_NAME": settings.git_name, "GIT_EMAIL": settings.git_email}
    lines = [f"{name}={shlex.quote(value)}" for name, value in names.items()]
    return "\n".join(["set -eu", "PATH=$PATH:/usr/sbin:/sbin", *lines, settings.setup or SETUP])


async def ensure_base(
    console: Console, disks: Disks, settings: DenoSettings, boot: Boot, tell: ProgressListener
) -> Slug:
    """Its snapshot, made if it does not exist.

    Raises:
        SandboxError: SETUP_FAILED with the end of what the script said; UNAVAILABLE, LIMIT_REACHED.
    """
    tell("checking")
    found = await disks.base()
    if found is not None:
        tell("exists")
        return found
    tell("creating")
    try:
        made = await _build(console, disks, settings, boot, tell)
    except BaseException:
        tell("error")
        raise
    tell("done")
    # Of two that were made at once, all take the same one.
    return await disks.base() or made


async def _build(
    console: Console, disks: Disks, settings: DenoSettings, boot: Boot, tell: ProgressListener
) -> Slug:
    volume = disks.new_slug(Kind.ROOT_VOLUME)
    was_saved = False
    await disks.create_volume(volume, source=BUILTIN_BASE)
    try:
        tell("booting")
        sandbox_id, connection = await boot(volume)
        async with _ending(console, sandbox_id, connection):
            tell("installing tools")
            await _install(connection, base_recipe(settings))
        tell("snapshotting")
        slug = disks.saved_slug(volume, Kind.BASE, number=0)
        await disks.save(volume, slug, name=None)
        was_saved = True
    finally:
        tell("cleaning up")
        await disks.discard_volume(volume, was_saved=was_saved)
    return slug


@asynccontextmanager
async def _ending(
    console: Console, sandbox_id: str, connection: RpcConnection
) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await connection.close()
        await console.end_sandbox(sandbox_id)


async def _install(connection: RpcConnection, script: str) -> None:
    try:
        async with asyncio.timeout(BUILD_TIMEOUT_S):
            await run_shell(connection, f"{script}\nsync\n", timeout_s=BUILD_TIMEOUT_S)
    except SandboxError as exc:
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED,
            f"the base environment was not made: {exc}",
            retryable=exc.retryable,
        ) from exc
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED,
            f"the base environment was not made within {BUILD_TIMEOUT_S:g} s",
        ) from exc

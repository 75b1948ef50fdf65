"""How a sandbox is made: volumes, boot, start, with nothing left of what fails; and the base environment below them all."""

import asyncio
import json
import logging
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from urllib.parse import SplitResult, urlsplit

from sandbox_runtime.command import validate_command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import Orphans, Owner, shielded
from sandbox_runtime.provider import ProgressListener
from sandbox_runtime.providers.deno import MAX_LIFETIME_S, MIN_MEMORY_MIB, DenoSettings
from sandbox_runtime.providers.deno.client import (
    BUILTIN_BASE,
    CONCURRENCY_LIMIT,
    DenoClient,
    map_errors,
    refusal_of,
)
from sandbox_runtime.providers.deno.connection import (
    CREATE_TIMEOUT_S,
    Connector,
    SandboxConfig,
    SandboxConnection,
    Secret,
    run_shell,
)
from sandbox_runtime.providers.deno.labels import MANAGED, NO_ID, Kind, SandboxLabels, Slug
from sandbox_runtime.providers.deno.machine import (
    BROKER_KEY,
    COPY,
    SESSION,
    Machine,
    Record,
    read_record,
    start_machine,
)
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.snapshots import MAX_DEPTH, Snapshots, Source
from sandbox_runtime.task_group import TaskGroup
from sandbox_runtime.types import BrokeredNetwork, Network, OpenNetwork, SandboxSpec

BUILD_TIMEOUT_S = 1500.0
"""The sandbox lives no longer than 30 minutes."""
SETUP = (files("sandbox_runtime.providers.deno") / "setup.sh").read_text("utf-8")
_MIB = 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    settings: DenoSettings
    client: DenoClient
    connector: Connector
    snapshots: Snapshots
    orphans: Orphans
    group: TaskGroup


Created = tuple[Machine, Record, SandboxConnection]


async def create_sandbox(state: State, spec: SandboxSpec) -> Created:
    """Makes a new sandbox. The caller ends it, discards its volumes, and closes the connection.

    Raises:
        SandboxError: as `SandboxProvider.create`. Nothing of it is left then.
    """
    lifetime_s = _check_spec(state.settings, spec)
    source = await state.snapshots.find_source(spec)
    mounts = await create_mounts(state.snapshots, source, writable=spec.environment_writable)
    try:
        labels = _labels_for(
            state.settings,
            spec,
            volume=mounts.own.id,
            environment=source.environment.id,
            base=source.base_id,
        )
        config = _config_for(state.settings, spec, mounts, labels, lifetime_s=lifetime_s)
        sandbox_id, rpc = await boot(state, config)
        connection = SandboxConnection(state.connector, state.group, sandbox_id)
        connection.use(rpc)
        try:
            record = await _start(rpc, spec, fill=mounts.fill)
        except BaseException:
            await connection.close()
            await shielded(state.client.end_sandbox(sandbox_id))
            raise
    except BaseException:
        await shielded(discard_volumes(state.snapshots, mounts.own, mounts.copied))
        raise
    machine = Machine(
        id=sandbox_id,
        labels=labels,
        volume=mounts.own,
        copied=mounts.copied,
        expires_at=config.expires_at,
    )
    return machine, record, connection


async def _start(rpc: RpcConnection, spec: SandboxSpec, *, fill: str) -> Record:
    try:
        return await start_machine(rpc, spec, fill=fill)
    except SandboxError as exc:
        text = f"the sandbox did not start: {exc}"
        raise SandboxError(SandboxErrorCode.CREATE_FAILED, text, retryable=exc.retryable) from exc


async def attach_sandbox(state: State, machine: Machine) -> Created:
    """Connects to one that another process made. Raises: SandboxError: NOT_FOUND, UNAVAILABLE."""
    connection = SandboxConnection(state.connector, state.group, machine.id)
    try:
        return machine, await read_record(await connection.rpc()), connection
    except ValueError as exc:
        await connection.close()
        raise SandboxError(
            SandboxErrorCode.NOT_FOUND, f"sandbox {machine.id} was never ready"
        ) from exc
    except BaseException:
        await connection.close()
        raise


def _check_spec(settings: DenoSettings, spec: SandboxSpec) -> float:
    """Checks what can be checked without asking; returns how long the sandbox shall live.

    Raises:
        SandboxError: UNSUPPORTED, LIMIT_REACHED, CREATE_FAILED.
    """
    lifetime_s = settings.lifetime_s if spec.lifetime_s is None else spec.lifetime_s
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise SandboxError(
            SandboxErrorCode.LIMIT_REACHED,
            f"a Deno sandbox lives at most {MAX_LIFETIME_S:g} s, not {lifetime_s:g}",
        )
    try:
        _allowed_hosts(spec.network)
        _wire_secrets(spec.network)
    except ValueError as exc:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, str(exc)) from exc
    try:
        _labels_for(settings, spec, volume=NO_ID)
    except ValueError as exc:
        raise SandboxError(SandboxErrorCode.CREATE_FAILED, str(exc)) from exc
    validate_command(["sh"], env=spec.env, cwd=None)
    return lifetime_s


def _labels_for(
    settings: DenoSettings,
    spec: SandboxSpec,
    *,
    volume: str,
    environment: str = NO_ID,
    base: str = NO_ID,
) -> SandboxLabels:
    """Returns what is written on the sandbox. Raises: ValueError: the caller's labels are not of their form."""
    return SandboxLabels(
        namespace=settings.name,
        owner=Owner.of(settings.owner),
        volume=volume,
        environment=environment,
        base=base,
        environment_writable=spec.environment_writable,
        labels=dict(spec.labels),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """The volumes of one sandbox, and how its workspace gets there."""

    own: Slug
    """The session's volume, or a root volume that may be written."""
    copied: Slug | None = None
    root: str
    paths: Mapping[str, Slug] = field(default_factory=dict)
    fill: str
    """As inside/boot.py knows it: `seed`, `copy`, or nothing to do."""


async def create_mounts(snapshots: Snapshots, source: Source, *, writable: bool) -> Mounts:
    """Makes new volumes. The caller discards them. Raises: SandboxError: NOT_FOUND, CREATE_FAILED, LIMIT_REACHED."""
    environment, workspace = source.environment, source.workspace
    if writable:
        own = snapshots.new_slug(Kind.ROOT_VOLUME, parent=environment.id)
        await snapshots.create_volume(own, source=environment)
        if workspace is None:
            return Mounts(own=own, root=str(own), fill="none" if source.is_emptied else "seed")
        copied = await _copied(snapshots, workspace, for_=own)
        return Mounts(own=own, copied=copied, root=str(own), paths={COPY: copied}, fill="copy")
    depth = 0 if workspace is None else workspace.depth + 1
    if workspace is not None and depth > MAX_DEPTH:
        own = snapshots.new_slug(Kind.SESSION_VOLUME, parent=environment.id)
        await snapshots.create_volume(own, source=None)
        copied = await _copied(snapshots, workspace, for_=own)
        paths = {SESSION: own, COPY: copied}
        return Mounts(own=own, copied=copied, root=str(environment), paths=paths, fill="copy")
    own = snapshots.new_slug(Kind.SESSION_VOLUME, depth=depth, parent=environment.id)
    await snapshots.create_volume(own, source=workspace)
    fill = "seed" if workspace is None and not source.is_emptied else "none"
    return Mounts(own=own, root=str(environment), paths={SESSION: own}, fill=fill)


async def _copied(snapshots: Snapshots, workspace: Slug, *, for_: Slug) -> Slug:
    copied = snapshots.new_slug(Kind.COPY_VOLUME, parent=workspace.parent)
    try:
        await snapshots.create_volume(copied, source=workspace)
    except BaseException:
        await shielded(discard_volumes(snapshots, for_))
        raise
    return copied


async def discard_volumes(snapshots: Snapshots, *volumes: Slug | None) -> None:
    """Deletes volumes of a sandbox that never was; what cannot be deleted now is collected later."""
    for volume in volumes:
        if volume is not None:
            try:
                await snapshots.discard_volume(volume)
            except SandboxError as exc:
                _log.warning(
                    "volume not removed",
                    extra={"action": "sandbox.volume_left", "reason": str(exc)},
                )


def _config_for(
    settings: DenoSettings,
    spec: SandboxSpec,
    mounts: Mounts,
    labels: SandboxLabels,
    *,
    lifetime_s: float,
) -> SandboxConfig:
    memory_mib = max(MIN_MEMORY_MIB, spec.limits.memory_bytes // _MIB)
    return SandboxConfig(
        region=settings.region,
        root=mounts.root,
        volumes={path: str(slug) for path, slug in mounts.paths.items()},
        memory_mib=min(settings.memory_mib, memory_mib),
        expires_at=datetime.now(UTC) + timedelta(seconds=lifetime_s),
        labels=labels.encode(),
        allow_net=_allowed_hosts(spec.network),
        secrets=_wire_secrets(spec.network),
    )


def _allowed_hosts(network: Network) -> list[str] | None:
    """Returns `SandboxConfig.allow_net` of a network. Raises: ValueError: the endpoint is no URL."""
    match network:
        case OpenNetwork():
            return None
        case BrokeredNetwork():
            url = _split(network)
            port = url.port or (443 if url.scheme == "https" else 80)
            hosts = [host if ":" in host else f"{host}:443" for host in network.hosts]
            return [f"{_bracketed(url.hostname or '')}:{port}", *hosts]
        case _:
            return []


def _wire_secrets(network: Network) -> dict[str, Secret]:
    """Returns `SandboxConfig.secrets` of a network: requests carry the text in `BROKER_KEY` where the headers have the secret.

    Raises:
        ValueError: the headers have not one secret in common, as `x-api-key: S` and `authorization: Bearer S` have.
    """
    if not isinstance(network, BrokeredNetwork) or not network.headers:
        return {}
    value = min(network.headers.values(), key=len)
    if not value or not all(value in other for other in network.headers.values()):
        raise ValueError("a Deno sandbox can have headers of one secret added, not of several")
    return {BROKER_KEY: Secret(host=_split(network).hostname or "", value=value)}


def _split(network: BrokeredNetwork) -> SplitResult:
    url = urlsplit(network.endpoint)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError(f"not a URL that a Deno sandbox could reach: {network.endpoint!r}")
    return url


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def boot(state: State, config: SandboxConfig) -> tuple[str, RpcConnection]:
    """Returns the id of a machine that runs, and the connection to it, which the caller runs and closes.

    Raises:
        SandboxError: LIMIT_REACHED with the number running, CREATE_FAILED, NOT_FOUND, UNAVAILABLE. None was made then,
            or it was ended.
    """

    async def ask() -> tuple[str, RpcConnection]:
        async with map_errors(
            "cannot make a sandbox",
            timeout_s=CREATE_TIMEOUT_S,
            otherwise=SandboxErrorCode.CREATE_FAILED,
        ):
            return await state.connector.create(config)

    async def give_up(made: tuple[str, RpcConnection] | Exception) -> None:
        """Ends what was made for somebody who did not wait for it."""
        if not isinstance(made, Exception):
            await made[1].close()
        await _end_lost(state.client, config)

    try:
        return await state.orphans.ask(ask(), give_up)
    except SandboxError as exc:
        refusal = refusal_of(exc.__cause__)
        if refusal is not None and refusal.code == CONCURRENCY_LIMIT:
            raise await _limit(state.client, exc) from exc
        if refusal is None or refusal.status >= 500:  # noqa: PLR2004  # HTTP: it may have been done
            await shielded(_end_lost(state.client, config))
        raise


async def _limit(client: DenoClient, exc: SandboxError) -> SandboxError:
    running = "?"
    with suppress(SandboxError):
        running = str(await client.count_running())
    return SandboxError(
        exc.code, f"{running} sandboxes run, no more are allowed: {exc}", retryable=True
    )


async def _end_lost(client: DenoClient, config: SandboxConfig) -> None:
    """Ends what was made without our hearing of it. If this fails too, it ends by itself, and `sweep` sooner."""
    try:
        for sandbox in await client.list_sandboxes():
            if sandbox.running and sandbox.labels.get(MANAGED) == config.labels[MANAGED]:
                await client.end_sandbox(sandbox.id)
    except SandboxError as exc:
        _log.warning(
            "lost sandbox not ended",
            extra={
                "action": "sandbox.stop_failed",
                "labels": json.dumps(config.labels),
                "reason": str(exc),
            },
        )


def base_recipe(settings: DenoSettings) -> str:
    """Returns the script that makes the base environment, whole: a change of it makes another base."""
    names = {"GIT_NAME": settings.git_name, "GIT_EMAIL": settings.git_email}
    lines = [f"{name}={shlex.quote(value)}" for name, value in names.items()]
    return "\n".join(["set -eu", "PATH=$PATH:/usr/sbin:/sbin", *lines, settings.setup or SETUP])


async def ensure_base(state: State, tell: ProgressListener) -> Slug:
    """Returns the snapshot of Debian with our tools, made once per organisation and region.

    Raises:
        SandboxError: SETUP_FAILED with the end of what the script said; UNAVAILABLE, LIMIT_REACHED.
    """
    tell("checking")
    found = await state.snapshots.find_base()
    if found is not None:
        tell("exists")
        return found
    tell("creating")
    try:
        made = await _build_base(state, tell)
    except BaseException:
        tell("error")
        raise
    tell("done")
    # Of two that were made at once, all take the same one.
    return await state.snapshots.find_base() or made


async def _build_base(state: State, tell: ProgressListener) -> Slug:
    snapshots = state.snapshots
    volume = snapshots.new_slug(Kind.ROOT_VOLUME)
    was_saved = False
    await snapshots.create_volume(volume, source=BUILTIN_BASE)
    try:
        tell("booting")
        async with _running(state, volume) as rpc:
            tell("installing tools")
            await _install(rpc, base_recipe(state.settings))
        tell("snapshotting")
        slug = snapshots.saved_slug(volume, Kind.BASE, number=0)
        await snapshots.save(volume, slug, name=None)
        was_saved = True
    finally:
        tell("cleaning up")
        await snapshots.discard_volume(volume, was_saved=was_saved)
    return slug


@asynccontextmanager
async def _running(state: State, volume: Slug) -> AsyncIterator[RpcConnection]:
    """Boots a bare machine on a root volume, with open network, for the length of the block."""
    settings = state.settings
    spec = SandboxSpec(network=OpenNetwork())
    labels = _labels_for(settings, spec, volume=volume.id)
    mounts = Mounts(own=volume, root=str(volume), fill="none")
    config = _config_for(settings, spec, mounts, labels, lifetime_s=settings.lifetime_s)
    sandbox_id, rpc = await boot(state, config)
    state.group.create_task(rpc.run())
    try:
        yield rpc
    finally:
        await rpc.close()
        await state.client.end_sandbox(sandbox_id)


async def _install(rpc: RpcConnection, script: str) -> None:
    try:
        async with asyncio.timeout(BUILD_TIMEOUT_S):
            await run_shell(rpc, f"{script}\nsync\n", timeout_s=BUILD_TIMEOUT_S)
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

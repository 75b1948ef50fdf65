"""How an open provider makes a machine a sandbox, and finds one again."""

import json
from dataclasses import dataclass

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.owner import Owner
from sandbox_runtime.processes import validate_command
from sandbox_runtime.providers.deno.booting import Booter, Mounts, give_up, make_mounts
from sandbox_runtime.providers.deno.connecting import Connector
from sandbox_runtime.providers.deno.console import Console
from sandbox_runtime.providers.deno.disks import Disks, Origin
from sandbox_runtime.providers.deno.errors import asking
from sandbox_runtime.providers.deno.inside_scripts import BOOT_SOURCE
from sandbox_runtime.providers.deno.labels import SandboxLabels
from sandbox_runtime.providers.deno.link import Link
from sandbox_runtime.providers.deno.machine import Machine, Record
from sandbox_runtime.providers.deno.paths import (
    BROKER_KEY,
    RECORD,
    allowed_hosts,
    wire_secrets,
)
from sandbox_runtime.providers.deno.remote import run_script
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.settings import MAX_LIFETIME_S, DenoSettings
from sandbox_runtime.providers.deno.slugs import NO_ID
from sandbox_runtime.sandbox_user import UID
from sandbox_runtime.task_group import TaskGroup
from sandbox_runtime.types import BrokeredNetwork, SandboxSpec, endpoint_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What an open provider has."""

    settings: DenoSettings
    console: Console
    connector: Connector
    booter: Booter
    disks: Disks
    group: TaskGroup


Made = tuple[Machine, Record, Link]


def check_spec(settings: DenoSettings, spec: SandboxSpec) -> float:
    """How long it shall live.

    Raises:
        SandboxError: UNSUPPORTED, LIMIT_REACHED, CREATE_FAILED.
    """
    if spec.work_dir is not None:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED, "Deno sandboxes do not work in a directory of the host"
        )
    lifetime_s = settings.lifetime_s if spec.lifetime_s is None else spec.lifetime_s
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise SandboxError(
            SandboxErrorCode.LIMIT_REACHED,
            f"a Deno sandbox lives at most {MAX_LIFETIME_S:g} s, not {lifetime_s:g}",
        )
    try:
        allowed_hosts(spec.network)
        wire_secrets(spec.network)
    except ValueError as exc:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, str(exc)) from exc
    try:
        labels_for(settings, spec, volume=NO_ID)
    except ValueError as exc:
        raise SandboxError(SandboxErrorCode.CREATE_FAILED, str(exc)) from exc
    validate_command(["sh"], env=spec.env, cwd=None)
    return lifetime_s


def labels_for(
    settings: DenoSettings,
    spec: SandboxSpec,
    *,
    volume: str,
    environment: str = NO_ID,
    base: str = NO_ID,
) -> SandboxLabels:
    """Raises: ValueError: the caller's are not of their form."""
    return SandboxLabels(
        namespace=settings.name,
        owner=Owner.current(),
        volume=volume,
        environment=environment,
        base=base,
        environment_writable=spec.environment_writable,
        labels=dict(spec.labels),
    )


async def make(opened: Opened, spec: SandboxSpec) -> Made:
    """A new sandbox. The caller ends it, gives its volumes up, and closes the link.

    Raises:
        SandboxError: as `SandboxProvider.create`. Nothing of it is left then.
    """
    lifetime_s = check_spec(opened.settings, spec)
    origin = await opened.disks.origin(spec)
    mounts = await make_mounts(opened.disks, origin, writable=spec.environment_writable)
    try:
        return await _boot(opened, spec, origin, mounts, lifetime_s=lifetime_s)
    except BaseException:
        await finish(give_up(opened.disks, mounts.own, mounts.copied))
        raise


async def _boot(
    opened: Opened, spec: SandboxSpec, origin: Origin, mounts: Mounts, *, lifetime_s: float
) -> Made:
    labels = labels_for(
        opened.settings,
        spec,
        volume=mounts.own.id,
        environment=origin.environment.id,
        base=origin.base_id,
    )
    sandbox_id, connection, expires_at = await opened.booter.boot(
        root=mounts.root,
        paths=mounts.paths,
        labels=labels,
        allow_net=allowed_hosts(spec.network),
        secrets=wire_secrets(spec.network),
        memory_bytes=spec.limits.memory_bytes,
        lifetime_s=lifetime_s,
    )
    link = Link(opened.connector, opened.group, sandbox_id)
    link.use(connection)
    try:
        record = await _start(connection, spec, fill=mounts.fill)
    except BaseException as exc:
        await link.close()
        await finish(opened.console.end_sandbox(sandbox_id))
        if isinstance(exc, SandboxError):
            text = f"the sandbox did not start: {exc}"
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED, text, retryable=exc.retryable
            ) from exc
        raise
    machine = Machine(
        id=sandbox_id,
        labels=labels,
        volume=mounts.own,
        copied=mounts.copied,
        expires_at=expires_at,
    )
    return machine, record, link


async def _start(connection: RpcConnection, spec: SandboxSpec, *, fill: str) -> Record:
    """Make the machine a sandbox."""
    network = spec.network
    env = dict(spec.env)
    if isinstance(network, BrokeredNetwork) and network.headers:
        async with asking("cannot make a sandbox", otherwise=SandboxErrorCode.CREATE_FAILED):
            env[BROKER_KEY] = await connection.variable(BROKER_KEY)
    record = Record(
        env=env,
        broker=endpoint_of(network),
        limits=spec.limits,
    )
    config = {
        "user": UID,
        "fill": fill,
        "writable": spec.environment_writable,
        "record": record.encode(),
    }
    await run_script(connection, BOOT_SOURCE, "start", json.dumps(config))
    return record


async def find_again(opened: Opened, machine: Machine) -> Made:
    """One that another process made.

    Raises:
        SandboxError: NOT_FOUND, UNAVAILABLE.
    """
    link = Link(opened.connector, opened.group, machine.id)
    try:
        said = await run_script(await link.connection(), f"print(open({RECORD!r}).read())")
        return machine, Record.decode(said), link
    except ValueError as exc:
        await link.close()
        raise SandboxError(
            SandboxErrorCode.NOT_FOUND, f"sandbox {machine.id} was never ready"
        ) from exc
    except BaseException:
        await link.close()
        raise

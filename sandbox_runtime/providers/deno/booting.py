"""From what a caller wants to a machine that runs: volumes, boot, and nothing left of what fails."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import Unfinished, finish
from sandbox_runtime.providers.deno.connecting import (
    CREATE_TIMEOUT_S,
    Connector,
    SandboxConfig,
    Secret,
)
from sandbox_runtime.providers.deno.console import Console
from sandbox_runtime.providers.deno.disks import MAX_DEPTH, Disks, Origin
from sandbox_runtime.providers.deno.errors import CONCURRENCY_LIMIT, asking, refusal_of
from sandbox_runtime.providers.deno.labels import MANAGED, SandboxLabels
from sandbox_runtime.providers.deno.paths import COPY, SESSION
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.settings import MIN_MEMORY_MIB, DenoSettings
from sandbox_runtime.providers.deno.slugs import Kind, Slug

_MIB = 1024 * 1024
_log = logging.getLogger(__name__)


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


async def make_mounts(disks: Disks, origin: Origin, *, writable: bool) -> Mounts:
    """New volumes. The caller gives them up.

    Raises:
        SandboxError: NOT_FOUND, CREATE_FAILED, LIMIT_REACHED.
    """
    environment, workspace = origin.environment, origin.workspace
    if writable:
        own = disks.new_slug(Kind.ROOT_VOLUME, parent=environment.id)
        await disks.create_volume(own, source=environment)
        if workspace is None:
            return Mounts(own=own, root=str(own), fill="none" if origin.is_emptied else "seed")
        copied = await _copied(disks, workspace, for_=own)
        return Mounts(own=own, copied=copied, root=str(own), paths={COPY: copied}, fill="copy")
    depth = 0 if workspace is None else workspace.depth + 1
    if workspace is not None and depth > MAX_DEPTH:
        own = disks.new_slug(Kind.SESSION_VOLUME, parent=environment.id)
        await disks.create_volume(own, source=None)
        copied = await _copied(disks, workspace, for_=own)
        paths = {SESSION: own, COPY: copied}
        return Mounts(own=own, copied=copied, root=str(environment), paths=paths, fill="copy")
    own = disks.new_slug(Kind.SESSION_VOLUME, depth=depth, parent=environment.id)
    await disks.create_volume(own, source=workspace)
    fill = "seed" if workspace is None and not origin.is_emptied else "none"
    return Mounts(own=own, root=str(environment), paths={SESSION: own}, fill=fill)


async def _copied(disks: Disks, workspace: Slug, *, for_: Slug) -> Slug:
    copied = disks.new_slug(Kind.COPY_VOLUME, parent=workspace.parent)
    try:
        await disks.create_volume(copied, source=workspace)
    except BaseException:
        await finish(give_up(disks, for_))
        raise
    return copied


async def give_up(disks: Disks, *volumes: Slug | None) -> None:
    """Delete volumes of a sandbox that never was; what cannot be deleted now is collected later."""
    for volume in volumes:
        if volume is not None:
            try:
                await disks.discard_volume(volume)
            except SandboxError as exc:
                _log.warning(
                    "volume not removed",
                    extra={"action": "sandbox.volume_left", "reason": str(exc)},
                )


class Booter:
    """Of one region."""

    def __init__(
        self,
        connector: Connector,
        console: Console,
        settings: DenoSettings,
        unfinished: Unfinished,
    ) -> None:
        self._unfinished = unfinished
        self._connector = connector
        self._console = console
        self._settings = settings

    async def boot(
        self,
        *,
        root: str,
        paths: Mapping[str, Slug],
        labels: SandboxLabels,
        allow_net: Sequence[str] | None,
        secrets: Mapping[str, Secret],
        memory_bytes: int,
        lifetime_s: float,
    ) -> tuple[str, RpcConnection, datetime]:
        """A machine that runs: its id, the connection to it, and when it ends by itself.

        Raises:
            SandboxError: LIMIT_REACHED with the number running, CREATE_FAILED, NOT_FOUND, UNAVAILABLE. None was made then,
                or it was ended.
        """
        expires_at = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        config = SandboxConfig(
            region=self._settings.region,
            root=root,
            volumes={path: str(slug) for path, slug in paths.items()},
            memory_mib=min(self._settings.memory_mib, max(MIN_MEMORY_MIB, memory_bytes // _MIB)),
            stop_at_ms=int(expires_at.timestamp() * 1000),
            labels=labels.encode(),
            allow_net=allow_net,
            secrets=secrets,
        )
        try:
            sandbox_id, connection = await self._unfinished.ask(
                self._create(config), lambda made: self._give_up(labels, made)
            )
        except SandboxError as exc:
            refusal = refusal_of(exc.__cause__)
            if refusal is not None and refusal.code == CONCURRENCY_LIMIT:
                raise await self._limit(exc) from exc
            if refusal is None or refusal.status >= 500:  # noqa: PLR2004  # HTTP: it may have been done
                await finish(self.end_lost(labels))
            raise
        return sandbox_id, connection, expires_at

    async def _create(self, config: SandboxConfig) -> tuple[str, RpcConnection]:
        async with asking(
            "cannot make a sandbox",
            timeout_s=CREATE_TIMEOUT_S,
            otherwise=SandboxErrorCode.CREATE_FAILED,
        ):
            return await self._connector.create(config)

    async def _give_up(
        self, labels: SandboxLabels, made: tuple[str, RpcConnection] | SandboxError
    ) -> None:
        """What was made for somebody who did not wait for it."""
        if not isinstance(made, SandboxError):
            await made[1].close()
        await self.end_lost(labels)

    async def _limit(self, exc: SandboxError) -> SandboxError:
        running = "?"
        with suppress(SandboxError):
            running = str(await self._console.count_running())
        return SandboxError(
            exc.code, f"{running} sandboxes run, no more are allowed: {exc}", retryable=True
        )

    async def end_lost(self, labels: SandboxLabels) -> None:
        """End what was made without our hearing of it. If this fails too, it ends by itself, and `sweep` sooner."""
        mark = labels.encode()[MANAGED]
        try:
            for sandbox in await self._console.list_sandboxes():
                if sandbox.running and sandbox.labels.get(MANAGED) == mark:
                    await self._console.end_sandbox(sandbox.id)
        except SandboxError as exc:
            _log.warning(
                "lost sandbox not ended",
                extra={
                    "action": "sandbox.stop_failed",
                    "labels": json.dumps(labels.encode()),
                    "reason": str(exc),
                },
            )

"""How a sandbox is made: once, whatever becomes of the answer.

The API makes sandboxes with names that are unique in the project. A request whose outcome is unknown (the connection broke,
an answer of no sense) is looked up by its name: what it made is taken, or removed.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import vercel.sandbox as sdk

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import Unfinished
from sandbox_runtime.providers.vercel.errors import asking, is_status
from sandbox_runtime.providers.vercel.settings import VercelSettings
from sandbox_runtime.providers.vercel.snapshots import Snapshots, end_record
from sandbox_runtime.providers.vercel.tags import RUN, SnapshotTags, sandbox_name, sandbox_tags

_MAX_NUMBERS = 16
_POLL_S = 0.5
_LOOK_TIMEOUT_S, _DISCARD_TIMEOUT_S = 20.0, 20.0
_TERMINAL = frozenset(
    {sdk.SandboxStatus.STOPPED, sdk.SandboxStatus.FAILED, sdk.SandboxStatus.ABORTED}
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the API is asked for."""

    source: SnapshotTags | None
    """None = the image."""
    network_policy: sdk.NetworkPolicy
    labels: Mapping[str, str]
    lifetime_s: float


class Creation:
    """Of one namespace; remembers which requests' outcome is unknown."""

    def __init__(
        self,
        client: sdk.SandboxClient,
        settings: VercelSettings,
        snapshots: Snapshots,
        unfinished: Unfinished,
    ) -> None:
        self._unfinished = unfinished
        self._client = client
        self._settings = settings
        self._snapshots = snapshots
        self._unsure: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Run -> number of its next sandbox."""

    async def create(self, order: Order) -> sdk.Sandbox:
        """A running sandbox. The caller ends it.

        Raises:
            SandboxError: CREATE_FAILED, LIMIT_REACHED, NOT_FOUND for a lost snapshot, UNAVAILABLE.
        """
        run = order.labels.get(RUN, "")
        for _ in range(_MAX_NUMBERS):
            name = sandbox_name(self._settings.name, order.labels, self._numbers.get(run, 1))
            try:
                made = await self._create_once(order, name)
            except SandboxError as exc:
                if not is_status(exc, 409) or not run:
                    raise
                # One of the run's earlier sandboxes, or the record of its snapshot: not ours to take.
                self._numbers[run] = self._numbers.get(run, 1) + 1
                continue
            if run:
                self._numbers[run] = self._numbers.get(run, 1) + 1
            return made
        raise SandboxError(SandboxErrorCode.CREATE_FAILED, f"run {run} has too many sandboxes")

    def suspect(self, name: str) -> None:
        """It may still be there."""
        self._unsure.add(name)

    async def close(self) -> None:
        """Remove what may have been made without our knowing."""
        await self._unfinished.close()
        for name in tuple(self._unsure):
            await self._discard(name)

    async def _create_once(self, order: Order, name: str) -> sdk.Sandbox:
        try:
            made = await self._unfinished.ask(
                self._ask(order, name), lambda _made: self._discard(name)
            )
        except SandboxError as exc:
            if is_status(exc, 409) and name in self._unsure:
                found = await self._look(name, exc)
            elif isinstance(exc.__cause__, sdk.SandboxTerminalStateError):
                self._unsure.add(name)
                await self._discard(name)
                raise
            elif exc.retryable and not is_status(exc, 429):
                self._unsure.add(name)
                found = await self._look(name, exc)
            else:
                raise
            made = found
        except asyncio.CancelledError:
            self._unsure.add(name)  # until its answer has come, and it has been removed
            raise
        self._unsure.discard(name)
        return made

    async def _ask(self, order: Order, name: str) -> sdk.Sandbox:
        settings, source = self._settings, order.source
        async with asking(
            "cannot make a sandbox",
            timeout_s=settings.create_timeout_s,
            otherwise=SandboxErrorCode.CREATE_FAILED,
            missing=SandboxErrorCode.CREATE_FAILED
            if source is None
            else SandboxErrorCode.NOT_FOUND,
        ):
            return await self._client.create_sandbox(
                name=name,
                image=settings.image if source is None else None,
                source=sdk.SnapshotSource(snapshot_id=source.vercel_id) if source else None,
                execution_time_limit=order.lifetime_s,
                resources=sdk.SandboxResources(vcpus=settings.vcpus),
                # Otherwise each end would write, and bill, a snapshot.
                persistent=False,
                network_policy=order.network_policy,
                tags=sandbox_tags(order.labels),
                region=settings.region,
            )

    async def _look(self, name: str, failure: SandboxError) -> sdk.Sandbox:
        """What the request has made; if nothing, or nothing of use, its failure is raised."""
        try:
            async with asyncio.timeout(min(_LOOK_TIMEOUT_S, self._settings.create_timeout_s)):
                record = await self._snapshots.record(name)
                while record is not None and record.status not in (
                    sdk.SandboxStatus.RUNNING,
                    *_TERMINAL,
                ):
                    await asyncio.sleep(_POLL_S)
                    record = await self._snapshots.record(name)
        except (SandboxError, TimeoutError):
            raise failure from failure.__cause__  # still unknown: found by its name next time
        if record is not None and record.status is sdk.SandboxStatus.RUNNING:
            return record
        if record is not None:
            await self._discard(name)
        raise failure from failure.__cause__

    async def _discard(self, name: str) -> None:
        try:
            async with asyncio.timeout(_DISCARD_TIMEOUT_S):
                record = await self._snapshots.record(name)
                if record is not None:
                    await end_record(record)
        except (SandboxError, TimeoutError) as exc:
            _log.warning(
                "sandbox not destroyed",
                extra={
                    "action": "sandbox.stop_failed",
                    "sandbox_id": name,
                    "reason": str(exc) or "no answer in time",
                },
            )
        else:
            self._unsure.discard(name)

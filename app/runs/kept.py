"""Sandboxes that outlive their runs for a while, each for the next run of its thread."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.policy import RunPolicy
from app.runs.session import GONE, Session, SessionId, SessionStore, session_id_for
from app.runs.visits import Visits
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.lifecycle import destroy_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import SandboxId, SnapshotId

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    sandbox: Sandbox
    environment_id: SnapshotId | None
    snapshot_slug: str
    """What was saved of it last; another process may have gone on from there since."""
    until_s: float
    """On the monotonic clock."""


class KeptSandboxes:
    """Of this process, and those that a person left running."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        store: SessionStore,
        policy: RunPolicy,
        visits: Visits,
        on_gone: Callable[[SessionId], object],
    ) -> None:
        """`on_gone` hears of each thread that has no sandbox any more, before the sandbox goes."""
        self._provider = provider
        self._store = store
        self._policy = policy
        self._visits = visits
        self._on_gone = on_gone
        self._kept: OrderedDict[SessionId, Kept] = OrderedDict()

    def __contains__(self, session_id: SessionId) -> bool:
        return session_id in self._kept

    def add(self, session_id: SessionId, kept: Kept) -> None:
        self._kept[session_id] = kept

    async def take(
        self, attempt: Attempt, session: Session | None, *, environment_id: SnapshotId | None
    ) -> Sandbox | None:
        """The one of the attempt's thread, if it has that environment, and holds what was saved last.

        Whether it lives shows at its first use: asking would cost an exec.
        """
        kept = await self._find(attempt, session)
        if kept is None:
            return None
        with attempt.trace.step("take-warm") as step:
            step.set(sandbox_id=kept.sandbox.id)
            slug = session.snapshot_slug if session is not None else ""
            is_fit = (kept.environment_id, kept.snapshot_slug) == (environment_id, slug)
            step.set(taken=is_fit)
            if is_fit:
                _log.info("sandbox.attached", sandbox_id=kept.sandbox.id)
                return kept.sandbox
            await destroy_sandbox(kept.sandbox)
            return None

    async def close_overdue(self) -> None:
        """One round; beyond as many as may run at once, the oldest go before their time."""
        excess = len(self._kept) - self._policy.capacity
        for number, (session_id, kept) in enumerate(list(self._kept.items())):
            is_over = kept.until_s <= time.monotonic() and not self._visits.is_visited(session_id)
            if number < excess or is_over:
                await self.end(session_id)

    async def make_room(self) -> bool:
        """Give up the one that has been kept for longest and that nobody works in; False when there is none."""
        for session_id in self._kept:
            if not self._visits.is_visited(session_id):
                await self.end(session_id)
                return True
        return False

    async def end(self, session_id: SessionId) -> None:
        """Destroy the one of a session, if it has one."""
        kept = self._kept.pop(session_id, None)
        if kept is None:
            return
        # At once: while the sandbox goes, the thread's next run may begin with another one.
        if not self._visits.is_left(session_id):
            self._on_gone(session_id)
        await destroy_sandbox(kept.sandbox)
        _log.info("sandbox.stopped", sandbox_id=kept.sandbox.id, reason="kept long enough")
        session = await self._store.get(session_id)
        if session is not None and session.sandbox_id == kept.sandbox.id:
            await self._store.update(session_id, **GONE)

    async def _find(self, attempt: Attempt, session: Session | None) -> Kept | None:
        kept = self._kept.pop(session_id_for(attempt.run.thread), None)
        if session is None or not session.kept_environment:
            return kept
        if kept is not None and kept.sandbox.id == session.sandbox_id:
            return kept
        if kept is not None:
            await destroy_sandbox(kept.sandbox)
        return await self._attach_left(session)

    async def _attach_left(self, session: Session) -> Kept | None:
        try:
            sandbox = await self._provider.attach(SandboxId(session.sandbox_id))
        except SandboxError:
            return None
        finally:
            self._visits.take_left(session.id)
        return Kept(
            sandbox=sandbox,
            environment_id=SnapshotId(session.kept_environment),
            snapshot_slug=session.snapshot_slug,
            until_s=0,
        )

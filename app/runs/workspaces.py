"""Where a thread's files are between its runs: in a sandbox that is kept for a while, and in what each run saves at its end."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.creation import create
from app.runs.model import Run
from app.runs.patience import patiently
from app.runs.policy import RunPolicy
from app.runs.ports import Clock
from app.runs.session import (
    NameTakenError,
    Session,
    SessionId,
    SessionStatus,
    SessionStore,
    session_id_for,
)
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.lifecycle import destroy_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability, SandboxId, SandboxSpec, SnapshotId

SAVE_TIMEOUT_S = 120.0
ALIVE_TIMEOUT_S = 10.0
CLOSE_INTERVAL_S = 5.0
ABANDON_TIMEOUT_S = 30.0
NAME_ATTEMPTS = 5
PROMPT_CHARS = 200
REMOVED_IN_A_ROUND = 1000

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """Who works in a sandbox."""

    agent: str
    model: str


@dataclass(slots=True, kw_only=True)
class Workspace:
    """A thread's files in a sandbox, for one run. The fields that the run may set decide what becomes of them."""

    session: Session
    sandbox: Sandbox
    is_new: bool
    """It begins empty."""
    is_usable: bool = True
    """False = it is destroyed after the run, unsaved."""
    has_changed: bool = True
    """False = there is nothing to save that was not saved before."""
    agent_session_id: str = ""
    """By which the agent will find its own memory among these files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    sandbox: Sandbox
    environment_id: SnapshotId | None
    snapshot_slug: str
    """What was saved of it last; another process may have gone on from there since."""
    until_s: float
    """On the monotonic clock."""


class Workspaces:
    """One run at a time opens a thread's; the dispatcher sees to that."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        store: SessionStore,
        policy: RunPolicy,
        clock: Clock,
        mask: Callable[[str], str],
        on_gone: Callable[[SessionId], None],
    ) -> None:
        """`on_gone` hears of each thread whose sandbox goes, before it does."""
        self._provider = provider
        self._store = store
        self._policy = policy
        self._clock = clock
        self._mask = mask
        self._on_gone = on_gone
        self._kept: OrderedDict[SessionId, _Kept] = OrderedDict()
        self._opening: set[SessionId] = set()

    @asynccontextmanager
    async def open(
        self, attempt: Attempt, spec: SandboxSpec, who: AgentIdentity
    ) -> AsyncIterator[Workspace]:
        """The thread's files above the environment of `spec`, for the length of the block.

        When the block ends well, they are saved and the sandbox is kept; after an error it is destroyed, and the next run
        finds what was saved before.

        Raises:
            SandboxError: no sandbox could be made.
        """
        session_id = session_id_for(attempt.run.thread)
        self._opening.add(session_id)
        try:
            session = await patiently(lambda: self._store.get(session_id))
            slug = session.snapshot_slug if session else ""
            sandbox = await self._take_kept(attempt, spec, slug)
            is_new = False
            if sandbox is None:
                if slug:
                    spec = replace(spec, workspace_id=SnapshotId(slug))
                sandbox, is_new = await create(
                    self._provider, attempt, spec, policy=self._policy, make_room=self._make_room
                )
        except BaseException:
            if session_id not in self._kept:
                self._on_gone(session_id)  # no sandbox came of it
            raise
        finally:
            self._opening.discard(session_id)
        begin = partial(self._begin, attempt, session, sandbox.id, who)
        async with self._using(attempt, sandbox, begin, environment_id=spec.snapshot_id) as opened:
            opened.is_new = is_new
            if is_new:
                opened.agent_session_id = ""
            yield opened

    @asynccontextmanager
    async def attach(self, attempt: Attempt, who: AgentIdentity) -> AsyncIterator[Workspace | None]:
        """The sandbox in which an earlier process left the run, where it still is; otherwise None. Else as `open`."""
        session_id = session_id_for(attempt.run.thread)
        session = await patiently(lambda: self._store.get(session_id))
        sandbox = None
        if session is not None and session.sandbox_id:
            with suppress(SandboxError):
                sandbox = await self._provider.attach(SandboxId(session.sandbox_id))
        if session is None or sandbox is None:
            yield None
            return
        begin = partial(self._begin, attempt, session, sandbox.id, who)
        async with self._using(attempt, sandbox, begin, environment_id=None) as opened:
            opened.is_new = not session.snapshot_slug
            yield opened

    @asynccontextmanager
    async def _using(
        self,
        attempt: Attempt,
        sandbox: Sandbox,
        begin: Callable[[], Awaitable[Session]],
        *,
        environment_id: SnapshotId | None,
    ) -> AsyncIterator[Workspace]:
        try:
            attempt.sandbox_id = sandbox.id
            session = await patiently(begin)
            workspace = Workspace(
                session=session,
                sandbox=sandbox,
                is_new=False,
                agent_session_id=session.agent_session_id,
            )
            yield workspace
            slug = session.snapshot_slug
            if workspace.is_usable:
                slug = await self._save(attempt, workspace)
        except BaseException as exc:
            await self._close(attempt, sandbox, first_error=exc)
            raise
        keep_s = self._policy.session_keep_s if workspace.is_usable else 0
        if keep_s > 0:
            self._kept[session.id] = _Kept(
                sandbox=sandbox,
                environment_id=environment_id,
                snapshot_slug=slug,
                until_s=time.monotonic() + keep_s,
            )
        else:
            await self._close(attempt, sandbox, first_error=None)
        await patiently(
            lambda: self._store.update(
                session.id,
                status=SessionStatus.RUNNING if keep_s > 0 else SessionStatus.STOPPED,
                sandbox_id=sandbox.id if keep_s > 0 else "",
                snapshot_slug=slug,
                agent_session_id=workspace.agent_session_id,
                used_at=self._clock.now(),
            )
        )

    async def abandon(self, run: Run) -> None:
        """Destroy the sandbox in which an earlier process left a run that will not go on; a failure to is logged."""
        try:
            session = await self._store.get(session_id_for(run.thread))
            if session is None or not session.sandbox_id or session.id in self._kept:
                return
            self._on_gone(session.id)
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                await self._provider.remove(SandboxId(session.sandbox_id))
            await self._store.update(session.id, status=SessionStatus.STOPPED, sandbox_id="")
        except (SandboxError, OSError, TimeoutError) as exc:
            _log.warning("sandbox.stop_failed", run_id=run.id, reason=str(exc))

    async def close_forever(self) -> None:
        """Destroy kept sandboxes when their time is over."""
        while True:
            await self._clock.sleep(CLOSE_INTERVAL_S)
            try:
                await self.close_overdue()
            except Exception:  # noqa: BLE001 - must outlive a sick database; the next round is 5 s away
                _log.exception("sandbox.close_failed")

    async def close_overdue(self) -> None:
        """One round; beyond as many as may run at once, the oldest go before their time."""
        excess = len(self._kept) - self._policy.capacity
        for number, (session_id, kept) in enumerate(list(self._kept.items())):
            if number < excess or kept.until_s <= time.monotonic():
                await self._end(session_id)

    async def _make_room(self) -> bool:
        """Give up the sandbox that has been kept for longest; False when none is."""
        for session_id in self._kept:
            await self._end(session_id)
            return True
        return False

    async def remove_unused(self, before: datetime) -> int:
        """Remove sessions last used before then, with what they saved; returns how many."""
        removed = 0
        for session in await self._store.unused_since(before, limit=REMOVED_IN_A_ROUND):
            await self._end(session.id)
            if session.snapshot_slug and session.provider == self._provider.name:
                await self._provider.delete_snapshot(SnapshotId(session.snapshot_slug))
            await self._store.remove(session.id)
            removed += 1
        return removed

    async def _end(self, session_id: SessionId) -> None:
        kept = self._kept.pop(session_id, None)
        if kept is None:
            return
        # At once: while the sandbox goes, the thread's next run may begin with another one; or has, just now.
        if session_id not in self._opening:
            self._on_gone(session_id)
        await destroy_sandbox(kept.sandbox)
        _log.info("sandbox.stopped", sandbox_id=kept.sandbox.id, reason="kept long enough")
        session = await self._store.get(session_id)
        if session is not None and session.sandbox_id == kept.sandbox.id:
            await self._store.update(session_id, status=SessionStatus.STOPPED, sandbox_id="")

    async def _take_kept(
        self, attempt: Attempt, spec: SandboxSpec, snapshot_slug: str
    ) -> Sandbox | None:
        kept = self._kept.pop(session_id_for(attempt.run.thread), None)
        if kept is None:
            return None
        with attempt.trace.step("take-warm") as step:
            step.set(sandbox_id=kept.sandbox.id)
            is_fit = (kept.environment_id, kept.snapshot_slug) == (spec.snapshot_id, snapshot_slug)
            try:
                is_fit = is_fit and await _is_alive(kept.sandbox)
            except BaseException:
                await destroy_sandbox(kept.sandbox)
                raise
            step.set(taken=is_fit)
            if is_fit:
                _log.info("sandbox.attached", sandbox_id=kept.sandbox.id)
                return kept.sandbox
            await destroy_sandbox(kept.sandbox)
            return None

    async def _begin(
        self, attempt: Attempt, session: Session | None, sandbox_id: SandboxId, who: AgentIdentity
    ) -> Session:
        """The record of the session, made or brought up to date."""
        now = self._clock.now()
        if session is not None:
            updated = await self._store.update(
                session.id,
                status=SessionStatus.RUNNING,
                provider=self._provider.name,
                agent=who.agent,
                model=who.model,
                agent_session_id=session.agent_session_id if session.agent == who.agent else "",
                sandbox_id=sandbox_id,
                used_at=now,
            )
            if updated is not None:
                return updated
        run = attempt.run
        for _ in range(NAME_ATTEMPTS):
            session = Session(
                id=session_id_for(run.thread),
                name=_new_name(),
                thread=run.thread,
                provider=self._provider.name,
                agent=who.agent,
                model=who.model,
                prompt=self._mask(run.request.text)[:PROMPT_CHARS],
                sandbox_id=sandbox_id,
                created_at=now,
                used_at=now,
            )
            try:
                return await self._store.add(session)
            except NameTakenError:
                continue
        raise AssertionError(f"{NAME_ATTEMPTS} random names were all taken")

    async def _save(self, attempt: Attempt, workspace: Workspace) -> str:
        """The slug of what the next run shall find; a failure to save costs this run's files, not its answer."""
        session = workspace.session
        if not workspace.has_changed or Capability.SNAPSHOT not in self._provider.capabilities:
            return session.snapshot_slug
        with attempt.trace.step("workspace-save") as step:
            try:
                async with asyncio.timeout(SAVE_TIMEOUT_S):
                    ref = await workspace.sandbox.snapshot(name=f"session-{session.id}")
            except (SandboxError, OSError, TimeoutError) as exc:
                step.fail("save_failed", str(exc))
                _log.warning(
                    "sandbox.save_failed", sandbox_id=workspace.sandbox.id, reason=str(exc)
                )
                return session.snapshot_slug
            step.set(snapshot=ref.id)
            return ref.id

    async def _close(
        self, attempt: Attempt, sandbox: Sandbox, *, first_error: BaseException | None
    ) -> None:
        started_s = time.monotonic()
        self._on_gone(session_id_for(attempt.run.thread))
        with attempt.trace.step("sandbox-stop") as step:
            step.set(sandbox_id=sandbox.id)
            await destroy_sandbox(sandbox, first_error=first_error)
        duration_s = round(time.monotonic() - started_s, 3)
        _log.info("sandbox.stopped", sandbox_id=sandbox.id, duration_s=duration_s)


async def _is_alive(sandbox: Sandbox) -> bool:
    try:
        result = await sandbox.exec(["true"], timeout_s=ALIVE_TIMEOUT_S)
    except SandboxError:
        return False
    return result.exit_code == 0


def _new_name() -> str:
    from coolname import generate_slug  # noqa: PLC0415 - reads its word lists

    return str(generate_slug(2))

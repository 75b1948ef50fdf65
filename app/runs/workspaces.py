"""Where a thread's files are between its runs: in a sandbox that is kept for a while, and in what each run saves at its end."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime

from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.beginning import record_begin
from app.runs.copying import copy_into
from app.runs.creation import create
from app.runs.kept import Kept, KeptSandboxes
from app.runs.leftovers import OpenProvider, remove_held
from app.runs.memory import AgentMemory
from app.runs.model import Run
from app.runs.mount import Mount
from app.runs.patience import patiently
from app.runs.policy import RunPolicy
from app.runs.pool import WarmPool
from app.runs.ports import Clock
from app.runs.session import (
    GONE,
    Session,
    SessionChanges,
    SessionId,
    SessionStore,
    session_id_for,
)
from app.runs.visits import Visits
from app.runs.waiting import UnfitSandboxError, WaitingAgent
from app.runs.workspace import AgentIdentity, Workspace, having, save
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.lifecycle import destroy_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability, SandboxId, SandboxSpec, SnapshotId

CLOSE_INTERVAL_S = 5.0
ABANDON_TIMEOUT_S = 30.0
REMOVED_IN_A_ROUND = 1000

_log = get_logger(__name__)


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
        visits: Visits,
        mount: Mount | None = None,
        elsewhere: OpenProvider,
        on_gone: Callable[[SessionId], None],
        pool: WarmPool | None = None,
    ) -> None:
        """`on_gone` hears of each thread whose sandbox goes, before it does.

        `elsewhere` makes another provider by its name, for what threads left there; SandboxError when it cannot be used.
        """
        self._provider = provider
        self._visits = visits
        self._mount = mount
        self._elsewhere = elsewhere
        self._store = store
        self._policy = policy
        self._clock = clock
        self._mask = mask
        self._on_gone = on_gone
        self._pool = pool
        self._opening: set[SessionId] = set()
        self._kept = KeptSandboxes(
            provider=provider,
            store=store,
            policy=policy,
            visits=visits,
            on_gone=self._tell_gone,
        )

    def _tell_gone(self, session_id: SessionId) -> None:
        if session_id not in self._opening:
            self._on_gone(session_id)

    @asynccontextmanager
    async def open(
        self,
        attempt: Attempt,
        spec: SandboxSpec,
        who: AgentIdentity,
        *,
        may_have_waited: bool = False,
    ) -> AsyncIterator[Workspace]:
        """The thread's files above the environment of `spec`, for the length of the block.

        When the block ends well, they are saved and the sandbox is kept; after an error it is destroyed, and the next run
        finds what was saved before. `may_have_waited`: a sandbox may be given that was kept, or without files to bring one of the
        pool; an UnfitSandboxError in the block gives it up.

        Raises:
            SandboxError: no sandbox could be made.
        """
        session_id = session_id_for(attempt.run.thread)
        self._opening.add(session_id)
        try:
            with suppress(TimeoutError):  # whoever saves is stuck: then with what was saved before
                await self._visits.until_saved(session_id)
            session = await patiently(lambda: self._store.get(session_id))
            if session is not None and session.provider != self._provider.name:
                session = session.moved_to(self._provider.name)
            slug = session.snapshot_slug if session else ""
            sandbox = await self._kept.take(attempt, session, environment_id=spec.snapshot_id)
            is_new, is_kept = False, sandbox is not None
            waiting = None
            if sandbox is None and may_have_waited and not slug:
                waiting = self._take_waiting(attempt, spec, session_id, who)
            if waiting is not None:
                sandbox, is_new = waiting.sandbox, True
            if sandbox is None:
                if slug:
                    spec = replace(spec, workspace_id=SnapshotId(slug))
                sandbox, is_new = await create(
                    self._provider,
                    attempt,
                    spec,
                    policy=self._policy,
                    make_room=self._make_room,
                )
        except BaseException:
            if session_id not in self._kept:
                self._on_gone(session_id)  # no sandbox came of it
            raise
        finally:
            self._opening.discard(session_id)
        begin = self._beginning(attempt, session, sandbox, who)
        async with self._using(
            attempt, sandbox, begin, environment_id=spec.snapshot_id, waiting=waiting
        ) as opened:
            opened.is_new, opened.may_be_gone = is_new, is_kept and may_have_waited
            if is_new:
                opened.memory = AgentMemory()
                if self._mount is not None and self._mount.is_overlay:
                    with attempt.trace.step("copy-directory"):
                        await copy_into(sandbox, self._mount.directory)
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
        begin = self._beginning(attempt, session, sandbox, who)
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
        waiting: WaitingAgent | None = None,
    ) -> AsyncIterator[Workspace]:
        try:
            attempt.sandbox_id = sandbox.id
            session = await patiently(begin)
            workspace = Workspace(
                session=session,
                sandbox=sandbox,
                is_new=False,
                memory=session.memory,
                waiting=waiting,
            )
            yield workspace
            saved = await save(attempt, workspace, self._provider) if workspace.is_usable else None
        except UnfitSandboxError as exc:
            if waiting is None or self._pool is None:
                await self._close(attempt, sandbox, first_error=exc)
            else:
                self._on_gone(session_id_for(attempt.run.thread))
                self._pool.discard(waiting)
            raise
        except BaseException as exc:
            await self._close(attempt, sandbox, first_error=exc)
            raise
        keep_s = self._policy.session_keep_s if workspace.is_usable else 0
        if Capability.REMOTE in self._provider.capabilities:
            keep_s = 0  # saving it has ended it, and an idle one would cost money
        if keep_s > 0:
            kept = Kept(
                sandbox=sandbox,
                environment_id=environment_id,
                snapshot_slug=saved or session.snapshot_slug,
                until_s=time.monotonic() + keep_s,
            )
            self._kept.add(session.id, kept)
        else:
            await self._close(attempt, sandbox, first_error=None)
        memory = workspace.memory if workspace.is_usable else session.memory
        changes = workspace.session.with_memory(memory) | SessionChanges(used_at=self._clock.now())
        if saved is not None:
            changes["snapshot_slug"] = saved
        changes |= GONE if keep_s <= 0 else having(sandbox)
        await patiently(lambda: self._store.update(session.id, **changes))

    async def abandon(self, run: Run) -> None:
        """Destroy the sandbox in which an earlier process left a run that will not go on; a failure to is logged."""
        try:
            session = await self._store.get(session_id_for(run.thread))
            if session is None or not session.sandbox_id or session.id in self._kept:
                return
            self._on_gone(session.id)
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                await self._provider.remove(SandboxId(session.sandbox_id))
            await self._store.update(session.id, **GONE)
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

    async def leave(self, session_id: SessionId) -> None:
        """Destroy the sandbox that is kept for a thread: its next run begins in one of another provider."""
        await self._kept.end(session_id)

    async def close_overdue(self) -> None:
        """One round."""
        await self._kept.close_overdue()

    async def remove_unused(self, before: datetime) -> int:
        """Remove sessions last used before then, with what they saved; returns how many."""
        removed = 0
        for session in await self._store.unused_since(before, limit=REMOVED_IN_A_ROUND):
            await self._kept.end(session.id)
            try:
                await remove_held(session, self._open_provider)
            except SandboxError as exc:
                # The record stays, and with it the knowledge of what is left there, for a later round.
                _log.warning("sandbox.remove_failed", session=session.id, reason=str(exc))
                continue
            await self._store.remove(session.id)
            self._visits.forget(session.id)
            removed += 1
        return removed

    @asynccontextmanager
    async def _open_provider(self, name: str) -> AsyncIterator[SandboxProvider]:
        if name == self._provider.name:
            yield self._provider
            return
        async with self._elsewhere(name) as provider:
            yield provider

    def _take_waiting(
        self, attempt: Attempt, spec: SandboxSpec, session_id: SessionId, who: AgentIdentity
    ) -> WaitingAgent | None:
        # A person may be at work in the thread's directory of the broker, and a mounted one may have changed since.
        is_fit = self._mount is None and not self._visits.is_visited(session_id)
        if attempt.repo:  # its agent is loaded for another directory
            return None
        if self._pool is None or self._pool.size == 0 or not is_fit:
            return None
        if self._pool.agent != who.agent:  # to look for another's would clear the pool
            return None
        with attempt.trace.step("take-warm") as step:
            found = self._pool.take(spec, session_id)
            step.set(origin="pool", taken=found is not None)
            if found is not None:
                step.set(sandbox_id=found.sandbox.id)
                _log.info("sandbox.taken", sandbox_id=found.sandbox.id)
            return found

    async def _make_room(self) -> bool:
        if self._pool is not None and self._pool.make_room():
            return True
        return await self._kept.make_room()

    def _beginning(
        self, attempt: Attempt, session: Session | None, sandbox: Sandbox, who: AgentIdentity
    ) -> Callable[[], Awaitable[Session]]:
        return lambda: record_begin(
            self._store,
            session,
            attempt.run,
            sandbox,
            provider=self._provider.name,
            agent=who.agent,
            model=who.model,
            chosen_model=attempt.chosen_model,
            mount_dir=str(self._mount.directory) if self._mount else "",
            masked_prompt=self._mask(attempt.run.request.text),
            now=self._clock.now(),
        )

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

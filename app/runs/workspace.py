"""Where a thread's files are between its runs: in a sandbox that is kept for a while, and in what each run saves at its end."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.aio import retry_store
from app.errors import LeaseLostError
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.environment import FilesFact
from app.runs.model import Assignment, Run
from app.runs.policy import RunPolicy
from app.runs.sandboxes import (
    RUN_LABEL,
    IdleSandbox,
    IdleSandboxCache,
    OpenProvider,
    SessionLocks,
    SessionRemoval,
    copy_into,
    create,
)
from app.runs.session import (
    GONE,
    AgentMemory,
    NameTakenError,
    Session,
    SessionChanges,
    SessionId,
    SessionStatus,
    SessionStore,
    new_name,
    session_id_for,
)
from app.runs.warm_pool import UnhealthySandboxError, WaitingAgent, WarmPool
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.lifecycle import destroy_sandbox, shielded
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability, SandboxId, SandboxSpec, SnapshotId

_log = get_logger(__name__)

SAVE_TIMEOUT_S = 120.0
UNSAVED = (
    "I could not save the files of this answer: they may be missing when you ask for more here."
)


@dataclass(slots=True, kw_only=True)
class Workspace:
    """A thread's files in a sandbox, for one run. The fields that the run may set decide what becomes of them."""

    session: Session
    sandbox: Sandbox
    is_new: bool
    """It begins empty."""
    is_usable: bool = True
    """False = it is destroyed after the run, unsaved."""
    is_left: bool = False
    """It goes on as it is: the run's next slice attaches to it."""
    has_changed: bool = True
    """False = there is nothing to save that was not saved before."""
    memory: AgentMemory
    """The agent's own, among these files."""
    environment_id: SnapshotId | None = None
    """Below it; None = unknown."""
    waiting: WaitingAgent | None = None
    """Whom the sandbox has loaded already."""
    may_be_gone: bool = False
    """It was kept since the thread's run before, and nobody has asked it whether it lives."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no file in the work directory at the beginning."""
        return self.is_new and not self.session.mount_dir

    def files(self, *, is_mounted: bool) -> FilesFact:
        """Returns what the agent is told of them; `is_mounted`: they are the operator's directory itself."""
        if self.session.mount_dir:
            return FilesFact.MOUNTED if is_mounted else FilesFact.COPY
        return FilesFact.FRESH if self.is_new else FilesFact.KEPT


async def save(attempt: Attempt, workspace: Workspace, provider: SandboxProvider) -> str | None:
    """Returns the slug of what the next run shall find, if there is anything new.

    A failure to save costs this run's files, and what the agent remembers of it, not its answer.
    """
    session = workspace.session
    if not workspace.has_changed or Capability.SNAPSHOT not in provider.capabilities:
        return None
    with attempt.trace.step("workspace-save") as step:
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                ref = await workspace.sandbox.snapshot(name=f"session-{session.id}")
        except (SandboxError, OSError, TimeoutError) as exc:
            step.fail("save_failed", str(exc))
            _log.warning("sandbox.save_failed", sandbox_id=workspace.sandbox.id, reason=str(exc))
            workspace.memory = session.memory
            if attempt.tracker.steps:
                attempt.notes.append(UNSAVED)
            return None
        step.set(snapshot=ref.id)
        return ref.id


def describe_running(sandbox: Sandbox) -> SessionChanges:
    """Returns what a session says whose thread's sandbox lives."""
    return SessionChanges(
        status=SessionStatus.RUNNING,
        sandbox_id=sandbox.id,
        container_name=sandbox.container_name,
    )


FindPrepared = Callable[[], Awaitable[SnapshotId | None]]
"""Returns a snapshot in whose workspace a new thread begins; None = in an empty one."""


NAME_ATTEMPTS = 5
PROMPT_CHARS = 200


async def record_begin(
    store: SessionStore,
    session: Session | None,
    run: Run,
    sandbox: Sandbox,
    *,
    who: Assignment,
    region: str,
    mount_dir: str,
    masked_prompt: str,
    now: datetime,
) -> Session:
    """Makes the record, or brings it up to date; safe to repeat."""
    if session is not None:
        if session.agent != who.agent:
            session = session.without_memory()
        updated = await store.update(
            session.id,
            status=SessionStatus.RUNNING,
            exit_code=None,
            provider=who.provider,
            region=region,
            agent=who.agent,
            model=who.model,
            mount_dir=mount_dir,
            snapshot_slug=session.snapshot_slug,
            agent_session_id=session.agent_session_id,
            sandbox_id=sandbox.id,
            container_name=sandbox.container_name,
            heard_until=session.heard_until,
            elsewhere=session.elsewhere,
            detached="",  # the sandbox is no longer a person's
            kept_by="",
            kept_until=None,
            kept_environment="",
            chosen_model=who.model if who.is_chosen else "",
            used_at=now,
        )
        if updated is not None:
            return updated
    for _ in range(NAME_ATTEMPTS):
        made = Session(
            id=session_id_for(run.thread),
            name=new_name(),
            thread=run.thread,
            provider=who.provider,
            region=region,
            agent=who.agent,
            model=who.model,
            mount_dir=mount_dir,
            prompt=masked_prompt[:PROMPT_CHARS],
            sandbox_id=sandbox.id,
            container_name=sandbox.container_name,
            created_at=now,
            used_at=now,
        )
        try:
            return await store.add(made)
        except NameTakenError:
            continue
    raise AssertionError(f"{NAME_ATTEMPTS} random names were all taken")


ABANDON_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0
GATE_TIMEOUT_S = 5.0
"""For a database that is away when a sandbox is to be ended; then it is left to whoever sweeps."""


class Workspaces:
    """Opens the workspaces of threads; of one thread for one run at a time, which the dispatcher sees to."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        store: SessionStore,
        policy: RunPolicy,
        mask: Callable[[str], str],
        locks: SessionLocks,
        on_gone: Callable[[SessionId], None],
        pool: WarmPool | None = None,
    ) -> None:
        """`on_gone` hears of each thread whose sandbox goes, before it does."""
        self._provider = provider
        self._locks = locks
        self._mount = policy.mount
        self._store = store
        self._policy = policy
        self._mask = mask
        self._on_gone = on_gone
        self._pool = pool
        self._opening: set[SessionId] = set()
        self._left: dict[SessionId, Sandbox] = {}
        """Between two slices, where no other process could go on with them."""
        self._idle = IdleSandboxCache(
            provider=provider,
            store=store,
            policy=policy,
            locks=locks,
            on_gone=self._tell_gone,
        )

    def is_in_use(self, session_id: SessionId) -> bool:
        """Whether a person is in a thread's sandbox."""
        return self._locks.is_in_use(session_id)

    def _tell_gone(self, session_id: SessionId) -> None:
        if session_id not in self._opening:
            self._on_gone(session_id)

    @asynccontextmanager
    async def open(
        self,
        attempt: Attempt,
        spec: SandboxSpec,
        who: Assignment,
        *,
        find_prepared: FindPrepared | None = None,
        may_have_waited: bool = False,
    ) -> AsyncIterator[Workspace]:
        """Opens the thread's files above the environment of `spec`, for the length of the block.

        When the block ends well, they are saved and the sandbox is kept; after an error it is destroyed, and the next run
        finds what was saved before. `may_have_waited`: a sandbox may be given that was kept, or without files to bring one of the
        pool; an UnhealthySandboxError in the block gives it up. `find_prepared`: for a thread without files.

        Raises:
            SandboxError: no sandbox could be made.
        """
        await attempt.may_act()
        session_id = session_id_for(attempt.run.thread)
        self._opening.add(session_id)
        try:
            with suppress(TimeoutError):  # whoever saves is stuck: then with what was saved before
                await self._locks.wait_until_saved(session_id)
            session = await retry_store(lambda: self._store.get(session_id))
            if session is not None and session.provider != self._provider.name:
                session = session.moved_to(self._provider.name)
            slug = session.snapshot_slug if session else ""
            sandbox = await self._idle.take(attempt, session, environment_id=spec.snapshot_id)
            is_new, is_reused = False, sandbox is not None
            waiting = None
            if sandbox is None and may_have_waited and not slug:
                waiting = self._take_waiting(attempt, spec, session_id, who)
            if waiting is not None:
                sandbox, is_new = waiting.sandbox, True
            if sandbox is None:
                sandbox, is_new = await self._create(attempt, spec, slug, find_prepared)
        except BaseException:
            if session_id not in self._idle:
                await shielded(self._tell_no_sandbox(attempt))
            raise
        finally:
            self._opening.discard(session_id)
        begin = self._begin_later(attempt, session, sandbox, who)
        async with self._hold(
            attempt, sandbox, begin, environment_id=spec.snapshot_id, waiting=waiting
        ) as opened:
            opened.is_new, opened.may_be_gone = is_new, is_reused and may_have_waited
            if is_new:
                opened.memory = AgentMemory()
                if self._mount is not None and self._mount.is_overlay:
                    with attempt.trace.step("copy-directory"):
                        await copy_into(sandbox, self._mount.directory)
            yield opened

    async def _create(
        self, attempt: Attempt, spec: SandboxSpec, slug: str, find_prepared: FindPrepared | None
    ) -> tuple[Sandbox, bool]:
        """Returns a sandbox with what was saved, or prepared; and whether nothing of the thread is in it."""
        prepared = await find_prepared() if find_prepared is not None and not slug else None
        if slug or prepared:
            spec = replace(spec, workspace_id=prepared or SnapshotId(slug))
        sandbox, is_empty = await create(
            self._provider, attempt, spec, policy=self._policy, make_space=self._make_space
        )
        return sandbox, is_empty or not slug

    @asynccontextmanager
    async def attach(self, attempt: Attempt, who: Assignment) -> AsyncIterator[Workspace | None]:
        """Opens the sandbox in which an earlier process, or slice, left the run, where it still is; otherwise None. Else as `open`.

        Raises:
            SandboxError: it was left by a slice, and cannot be reached now: that may pass.
        """
        await attempt.may_act()
        session_id, checkpoint = session_id_for(attempt.run.thread), attempt.checkpoint
        session = await retry_store(lambda: self._store.get(session_id))
        sandbox = None
        if session is not None and session.sandbox_id:
            left = self._left.get(session_id)
            if left is not None and left.id == session.sandbox_id:
                del self._left[session_id]
            try:
                sandbox = await self._provider.attach(SandboxId(session.sandbox_id))
            except SandboxError as exc:
                if checkpoint is not None and exc.retryable:
                    raise
        if session is None or sandbox is None:
            yield None
            return
        if checkpoint is None:
            environment_id, is_new = None, not session.snapshot_slug
        else:
            is_new = checkpoint.is_new
            known = checkpoint.environment_id
            environment_id = SnapshotId(known) if known is not None else None
        begin = self._begin_later(attempt, session, sandbox, who)
        async with self._hold(attempt, sandbox, begin, environment_id=environment_id) as opened:
            opened.is_new = is_new
            yield opened

    @asynccontextmanager
    async def _hold(
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
            session = await retry_store(begin)
            workspace = Workspace(
                session=session,
                sandbox=sandbox,
                is_new=False,
                memory=session.memory,
                environment_id=environment_id,
                waiting=waiting,
            )
            yield workspace
            if workspace.is_left:
                self._leave(sandbox, between_slices_of=session.id)
                return
            await attempt.may_act()
            saved = await save(attempt, workspace, self._provider) if workspace.is_usable else None
        except UnhealthySandboxError as exc:
            if waiting is None or self._pool is None:
                await self._destroy(attempt, sandbox, first_error=exc)
            else:
                self._pool.discard(
                    waiting
                )  # before anything is waited for: who waits may be told to end
                await shielded(self._tell_no_sandbox(attempt))
            raise
        except BaseException as exc:
            await self._destroy(attempt, sandbox, first_error=exc)
            raise
        keep_s = self._policy.session_keep_s if workspace.is_usable else 0
        if {Capability.ENDS_WHEN_SAVED, Capability.BILLED} & self._provider.capabilities:
            keep_s = 0
        if keep_s <= 0:
            await self._destroy(attempt, sandbox, first_error=None)
        memory = workspace.memory if workspace.is_usable else session.memory
        changes = SessionChanges(
            agent_session_id=memory.session_id,
            heard_until=memory.until_ts,
            used_at=attempt.time.now,
        )
        if saved is not None:
            changes["snapshot_slug"] = saved
        changes |= GONE if keep_s <= 0 else describe_running(sandbox)
        if keep_s > 0:
            changes |= SessionChanges(
                kept_by=self._locks.owner,
                kept_until=attempt.time.now + timedelta(seconds=keep_s),
                kept_environment=environment_id or "",
            )
            self._leave(sandbox)
        await retry_store(lambda: self._store.update(session.id, **changes))
        if keep_s > 0:
            # It is recorded: whoever takes it, now or before its time is over, is the only one.
            idle = IdleSandbox(
                sandbox=sandbox,
                environment_id=environment_id,
                snapshot_slug=saved or session.snapshot_slug,
                until_s=time.monotonic() + keep_s,
            )
            self._idle.add(session.id, idle)

    async def _may_act(self, attempt: Attempt) -> bool:
        """Whether nobody else may be at work on the attempt's run by now."""
        try:
            async with asyncio.timeout(GATE_TIMEOUT_S):
                await attempt.may_act()
        except (LeaseLostError, TimeoutError):
            return False
        return True

    async def _tell_no_sandbox(self, attempt: Attempt) -> None:
        """Not for a run that another process may have made one for, which is reached in the same place."""
        if await self._may_act(attempt):
            self._on_gone(session_id_for(attempt.run.thread))

    def _leave(self, sandbox: Sandbox, *, between_slices_of: SessionId | None = None) -> None:
        """Owns it no more, for whoever attaches to it next; where nobody else could, it stays this process's."""
        if Capability.ATTACH in self._provider.capabilities:
            self._provider.release(sandbox.id)
        elif between_slices_of is not None:
            self._left[between_slices_of] = sandbox

    async def abandon(self, run: Run) -> None:
        """Destroys the sandboxes in which earlier processes left a run that will not go on; a failure to is logged."""
        await self.end_earlier(run)
        try:
            session = await self._store.get(session_id_for(run.thread))
            if session is None or not session.sandbox_id or session.id in self._idle:
                return
            self._on_gone(session.id)
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                await self._provider.remove(SandboxId(session.sandbox_id))
            await self._store.update(session.id, **GONE)
        except (SandboxError, OSError, TimeoutError) as exc:
            _log.warning("sandbox.stop_failed", run_id=run.id, reason=str(exc))

    async def end_earlier(self, run: Run) -> None:
        """Destroys what was made for the run by processes that died, whether they had put it on record or not; a failure to is logged."""
        try:
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                for left in await self._provider.list({RUN_LABEL: run.id}):
                    await self._provider.remove(left.id)
        except (SandboxError, OSError, TimeoutError) as exc:
            _log.warning("sandbox.stop_failed", run_id=run.id, reason=str(exc))

    async def end_idle(self, session_id: SessionId) -> None:
        """Destroys the idle sandbox of a thread, if it has one: its next run begins at another provider."""
        await self._idle.end(session_id)

    async def close(self) -> None:
        """Destroys the idle sandboxes that are this process's, within 10 s; what is left then is swept by another one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._idle.end_all()

    async def destroy_overdue(self) -> None:
        """Destroys the idle sandboxes whose time is over, and those left between slices of a run that has begun anew elsewhere."""
        await self._idle.destroy_overdue()
        for session_id, sandbox in list(self._left.items()):
            session = await self._store.get(session_id)
            if session is None or session.sandbox_id != sandbox.id:
                if self._left.get(session_id) is sandbox:
                    del self._left[session_id]
                await destroy_sandbox(sandbox)

    def removal(self, elsewhere: OpenProvider) -> SessionRemoval:
        """Returns who removes what threads have left. `elsewhere` opens another provider by its name; SandboxError when it cannot be used."""

        @asynccontextmanager
        async def open_provider(name: str) -> AsyncIterator[SandboxProvider]:
            if name == self._provider.name:
                yield self._provider
                return
            async with elsewhere(name) as provider:
                yield provider

        return SessionRemoval(self._store, self._idle, self._locks, open_provider)

    def _take_waiting(
        self, attempt: Attempt, spec: SandboxSpec, session_id: SessionId, who: Assignment
    ) -> WaitingAgent | None:
        # A person may be at work in the thread's directory of the broker, and a mounted one may have changed since.
        is_current = self._mount is None and not self._locks.is_in_use(session_id)
        if attempt.choice.repo.value:  # its agent is loaded for another directory
            return None
        if self._pool is None or self._pool.size == 0 or not is_current:
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

    async def _make_space(self) -> bool:
        if self._pool is not None and self._pool.make_space():
            return True
        return await self._idle.make_space()

    def _begin_later(
        self, attempt: Attempt, session: Session | None, sandbox: Sandbox, who: Assignment
    ) -> Callable[[], Awaitable[Session]]:
        return lambda: record_begin(
            self._store,
            session,
            attempt.run,
            sandbox,
            who=who,
            region=self._provider.region,
            mount_dir=str(self._mount.directory) if self._mount else "",
            masked_prompt=self._mask(attempt.run.request.text),
            now=attempt.time.now,
        )

    async def _destroy(
        self, attempt: Attempt, sandbox: Sandbox, *, first_error: BaseException | None
    ) -> None:
        await shielded(self._destroy_or_leave(attempt, sandbox, first_error))

    async def _destroy_or_leave(
        self, attempt: Attempt, sandbox: Sandbox, first_error: BaseException | None
    ) -> None:
        may_act = first_error is None or await self._may_act(attempt)
        if not may_act and Capability.ATTACH in self._provider.capabilities:
            self._provider.release(sandbox.id)
            return
        started_s = time.monotonic()
        if may_act:
            self._on_gone(session_id_for(attempt.run.thread))
        with attempt.trace.step("sandbox-stop") as step:
            step.set(sandbox_id=sandbox.id)
            await destroy_sandbox(sandbox, first_error=first_error)
        duration_s = round(time.monotonic() - started_s, 3)
        _log.info("sandbox.stopped", sandbox_id=sandbox.id, duration_s=duration_s)

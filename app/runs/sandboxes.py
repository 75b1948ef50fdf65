"""The sandboxes of threads: how a run comes by a new one, which ones wait for a thread's next run, and the locks of who works in them."""

import asyncio
import fcntl
import secrets
import time
from asyncio.subprocess import PIPE
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

from agent_scripts.adapter import AgentPaths
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.policy import RunPolicy
from app.runs.ports import TraceStep
from app.runs.session import (
    GONE,
    Session,
    SessionChanges,
    SessionId,
    SessionStore,
    session_id_for,
)
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import AttemptRecord, create_sandbox, destroy_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability, SandboxId, SandboxPaths, SandboxSpec, SnapshotId

_log = get_logger(__name__)

RUN_LABEL = "orion.run"
"""Of sandboxes that were made for a run: its id."""
POOL_LABEL = "orion.pool"
"""Of sandboxes that were made to wait for a run; it stays when one is taken."""


def agent_paths(paths: SandboxPaths) -> AgentPaths:
    """Returns paths for an agent whose start has no directory of its own yet."""
    return AgentPaths(
        work=paths.work, home=paths.home, run=paths.run, environment=paths.environment
    )


MAX_COPY_BYTES = 256 * 1024 * 1024
COPY_TIMEOUT_S = 120.0


async def copy_into(sandbox: Sandbox, directory: Path) -> None:
    """Puts what is in the directory into the sandbox's work directory, except other file systems mounted in it.

    Raises:
        SandboxError: FILE_TOO_LARGE, EXEC_TIMEOUT, UNAVAILABLE.
    """
    archive = await _archive(directory)
    result = await sandbox.exec(
        ["tar", "--extract", "--no-same-owner", "--file", "-"],
        timeout_s=COPY_TIMEOUT_S,
        stdin=archive,
    )
    if result.exit_code != 0:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"cannot copy {directory} into a sandbox: {result.error_text.strip()[-500:]}",
        )


async def _archive(directory: Path) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("tar", "--create", "--one-file-system", "--file", "-", "--directory", str(directory)),
        ".",
        stdout=PIPE,
    )
    if process.stdout is None:
        raise AssertionError("it has a pipe")
    try:
        async with asyncio.timeout(COPY_TIMEOUT_S):
            parts: list[bytes] = []
            size = 0
            while part := await process.stdout.read(1024 * 1024):
                parts.append(part)
                size += len(part)
                if size > MAX_COPY_BYTES:
                    raise SandboxError(
                        SandboxErrorCode.FILE_TOO_LARGE,
                        f"{directory} holds more than {MAX_COPY_BYTES} bytes: too much to copy",
                    )
            code = await process.wait()
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.EXEC_TIMEOUT, f"copying {directory} took over {COPY_TIMEOUT_S:g} s"
        ) from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"cannot read all of {directory}")
    return b"".join(parts)


async def create(
    provider: SandboxProvider,
    attempt: Attempt,
    spec: SandboxSpec,
    *,
    policy: RunPolicy,
    make_space: Callable[[], Awaitable[bool]],
) -> tuple[Sandbox, bool]:
    """Returns the sandbox, and whether its workspace is empty. `make_space` gives up another one, or says that there is none.

    Raises:
        SandboxError: none could be made.
    """
    attempt.enter("Starting a sandbox")
    with attempt.trace.step("sandbox-create") as step:
        started_s = time.monotonic()
        sandbox = None
        while sandbox is None:
            try:
                sandbox = await _create(provider, attempt, spec, policy=policy, step=step)
            except SandboxError as exc:
                if exc.code is SandboxErrorCode.NOT_FOUND and await _is_lost(provider, spec):
                    # The thread's files are lost, not the question.
                    _log.warning("sandbox.workspace_lost", snapshot=spec.workspace_id)
                    spec = replace(spec, workspace_id=None)
                elif exc.code is not SandboxErrorCode.LIMIT_REACHED or not await make_space():
                    raise
        step.set(
            sandbox_id=sandbox.id,
            provider=provider.name,
            workspace="restored" if spec.workspace_id else "new",
        )
        duration_s = round(time.monotonic() - started_s, 3)
        _log.info("sandbox.created", sandbox_id=sandbox.id, duration_s=duration_s)
        return sandbox, spec.workspace_id is None


async def _is_lost(provider: SandboxProvider, spec: SandboxSpec) -> bool:
    """Whether it is the workspace that is not there, and not the environment.

    A provider may list one that it has let expire; asked for by its name it says so.
    """
    if not spec.workspace_id:
        return False
    refs = {ref.id: ref for ref in await provider.list_snapshots()}
    ref = refs.get(spec.workspace_id)
    if ref is None or ref.name is None:
        return ref is None
    found = await provider.find_snapshot(ref.name)
    return found is None or found.id != ref.id


async def _create(
    provider: SandboxProvider,
    attempt: Attempt,
    spec: SandboxSpec,
    *,
    policy: RunPolicy,
    step: TraceStep,
) -> Sandbox:
    def note(record: AttemptRecord) -> None:
        now = attempt.time.now
        error = record.error
        step.attempt(
            number=record.number,
            started_at=now - timedelta(seconds=record.duration_s),
            ended_at=now,
            error="" if error is None else f"{error.code}: {error}",
        )
        if error is not None:
            is_last = not error.retryable or record.number >= policy.create_attempts
            event = "sandbox.creation_failed" if is_last else "sandbox.retry"
            _log.warning(event, attempt=record.number, code=error.code, reason=str(error))

    return await create_sandbox(provider, spec, attempts=policy.create_attempts, on_attempt=note)


# -- between runs ----------------------------------------------------------------------------------------------------------


SAVING_TIMEOUT_S = 150.0
"""Longer than anyone may take to save."""
POLL_S = 0.05


class SessionLocks:
    """Two locks of each session: one that all who work in its sandbox share, and one for whoever saves what they have changed."""

    def __init__(self, directory: Path, *, owner: str = "") -> None:
        """`owner`: the name of this process, by which it keeps sandboxes; empty = one of its own."""
        self._directory = directory
        self.owner = owner or f"w-{secrets.token_hex(16)}"

    @contextmanager
    def use(self, session_id: SessionId) -> Iterator[Callable[[], bool]]:
        """Notes that a person works in a thread's sandbox: it is not given up meanwhile for want of use. Yields: is nobody else there?

        Once that was answered with yes, others wait until this one leaves.
        """
        with self._open(session_id, "visit") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield lambda: _lock_alone(file) or _share_again(file)

    def is_in_use(self, session_id: SessionId) -> bool:
        return self._is_held(session_id, "visit")

    @contextmanager
    def lock_for_saving(self, session_id: SessionId) -> Iterator[None]:
        """Keeps runs from beginning to use a thread's files meanwhile. Inside, look whether one is going: it began before.

        Raises:
            BlockingIOError: another one saves.
        """
        with self._open(session_id, "save") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    async def wait_until_saved(self, session_id: SessionId) -> None:
        """Waits, for a run that is recorded as going and is about to use the files; returns when nobody saves them (any more).

        Raises:
            TimeoutError: after `SAVING_TIMEOUT_S`.
        """
        async with asyncio.timeout(SAVING_TIMEOUT_S):
            while self._is_held(session_id, "save"):  # noqa: ASYNC110 - another process lets go of it
                await asyncio.sleep(POLL_S)

    def mark_detached(self, session_id: SessionId) -> None:
        """Notes that a sandbox of the session is left running, for whoever takes it."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path(session_id, "left").touch()

    def is_detached(self, session_id: SessionId) -> bool:
        return self._path(session_id, "left").exists()

    def clear_detached(self, session_id: SessionId) -> None:
        self._path(session_id, "left").unlink(missing_ok=True)

    def forget(self, session_id: SessionId) -> None:
        for kind in ("visit", "save", "left"):
            self._path(session_id, kind).unlink(missing_ok=True)

    def _is_held(self, session_id: SessionId, kind: str) -> bool:
        path = self._path(session_id, kind)
        if not path.exists():
            return False
        with path.open("ab") as file:
            return not _lock_alone(file)

    @contextmanager
    def _open(self, session_id: SessionId, kind: str) -> Iterator[IO[bytes]]:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path(session_id, kind).open("ab") as file:
            yield file

    def _path(self, session_id: SessionId, kind: str) -> Path:
        return self._directory / f"{session_id}.{kind}"


def _lock_alone(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _share_again(file: IO[bytes]) -> bool:
    """Returns False. A lock is lost by the attempt to have it alone. Source: flock(2), converting a lock."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSandbox:
    sandbox: Sandbox
    environment_id: SnapshotId | None
    snapshot_slug: str
    """What was saved of it last; another process may have gone on from there since."""
    until_s: float
    """On the monotonic clock."""


class IdleSandboxCache:
    """The idle sandboxes of this process, and those that a person left running."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        store: SessionStore,
        policy: RunPolicy,
        locks: SessionLocks,
        on_gone: Callable[[SessionId], object],
    ) -> None:
        """`on_gone` hears of each thread that has no sandbox any more, before the sandbox goes."""
        self._provider = provider
        self._store = store
        self._policy = policy
        self._locks = locks
        self._on_gone = on_gone
        self._idle: OrderedDict[SessionId, IdleSandbox] = OrderedDict()

    def __contains__(self, session_id: SessionId) -> bool:
        return session_id in self._idle

    def add(self, session_id: SessionId, idle: IdleSandbox) -> None:
        self._idle[session_id] = idle

    async def take(
        self, attempt: Attempt, session: Session | None, *, environment_id: SnapshotId | None
    ) -> Sandbox | None:
        """Returns the one of the attempt's thread, if it has that environment, and holds what was saved last.

        Whether it lives shows at its first use: asking would cost an exec.
        """
        idle = await self._find(attempt, session)
        if idle is None:
            return None
        with attempt.trace.step("take-warm") as step:
            step.set(sandbox_id=idle.sandbox.id)
            slug = session.snapshot_slug if session is not None else ""
            is_current = (idle.environment_id, idle.snapshot_slug) == (environment_id, slug)
            step.set(taken=is_current)
            if is_current:
                _log.info("sandbox.attached", sandbox_id=idle.sandbox.id)
                return idle.sandbox
            await destroy_sandbox(idle.sandbox)
            return None

    async def destroy_overdue(self) -> None:
        """Ends those whose time is over; beyond as many as may run at once, the oldest go before their time."""
        excess = len(self._idle) - self._policy.capacity
        for number, (session_id, idle) in enumerate(list(self._idle.items())):
            is_over = number < excess or idle.until_s <= time.monotonic()
            if is_over and not self._locks.is_in_use(session_id):
                await self.end(session_id)

    async def make_space(self) -> bool:
        """Gives up the one that has been idle for longest and that nobody works in; False when there is none."""
        for session_id in self._idle:
            if not self._locks.is_in_use(session_id):
                await self.end(session_id)
                return True
        return False

    async def end(self, session_id: SessionId) -> None:
        """Destroys the one of a session, if it has one."""
        idle = self._idle.pop(session_id, None)
        if idle is None:
            return
        try:
            is_kept = await self._store.take_kept(session_id, by=self._locks.owner)
            is_taken = not is_kept and await self._is_taken(session_id, idle.sandbox)
        except BaseException:  # a sick database: it is looked at again
            self._idle.setdefault(session_id, idle)
            raise
        if is_taken:
            return
        # At once: while the sandbox goes, the thread's next run may begin with another one.
        if is_kept and not self._locks.is_detached(session_id):
            self._on_gone(session_id)
        await destroy_sandbox(idle.sandbox)
        _log.info("sandbox.stopped", sandbox_id=idle.sandbox.id, reason="kept no longer")
        session = await self._store.get(session_id)
        if is_kept and session is not None and session.sandbox_id == idle.sandbox.id:
            await self._store.update(session_id, **GONE)

    async def end_all(self) -> None:
        """Destroys all that this process keeps; a failure is logged, and costs the others nothing."""
        for session_id in list(self._idle):
            try:
                await self.end(session_id)
            except Exception as exc:  # noqa: BLE001 - whatever ails the database or the provider: the next start sweeps
                _log.warning("sandbox.stop_failed", session=session_id, reason=str(exc))

    async def _is_taken(self, session_id: SessionId, sandbox: Sandbox) -> bool:
        """Whether another process uses one that this one does not keep any more."""
        if Capability.ATTACH not in self._provider.capabilities:
            return False
        session = await self._store.get(session_id)
        return session is not None and session.sandbox_id == sandbox.id

    async def _find(self, attempt: Attempt, session: Session | None) -> IdleSandbox | None:
        session_id = session_id_for(attempt.run.thread)
        idle = self._idle.pop(session_id, None)
        keeper = session.kept_by if session is not None else ""
        is_taken = bool(keeper) and await self._store.take_kept(session_id, by=keeper)
        can_attach = Capability.ATTACH in self._provider.capabilities
        if session is not None and is_taken and can_attach:
            return await self._attach(session, session.kept_environment)
        if idle is not None and can_attach:
            idle = None  # another process has taken, or ended it
        if session is None or not session.detached_environment:
            return idle
        if idle is not None and idle.sandbox.id == session.sandbox_id:
            return idle
        if idle is not None:
            await destroy_sandbox(idle.sandbox)
        try:
            return await self._attach(session, session.detached_environment)
        finally:
            self._locks.clear_detached(session.id)

    async def _attach(self, session: Session, environment_id: str) -> IdleSandbox | None:
        try:
            sandbox = await self._provider.attach(SandboxId(session.sandbox_id))
        except SandboxError:
            return None
        return IdleSandbox(
            sandbox=sandbox,
            environment_id=SnapshotId(environment_id) if environment_id else None,
            snapshot_slug=session.snapshot_slug,
            until_s=0,
        )


OpenProvider = Callable[[str], AbstractAsyncContextManager[SandboxProvider]]
"""A provider by its name, for the length of a block."""


async def remove_held(session: Session, open_provider: OpenProvider) -> None:
    """Removes its sandbox and all that is saved of it, wherever that is. Safe to repeat.

    Raises:
        SandboxError: a provider cannot be used now; what it has is still there.
    """
    if session.sandbox_id:
        async with open_provider(session.provider) as provider:
            await provider.remove(SandboxId(session.sandbox_id))
    for name, slug in session.snapshots.items():
        async with open_provider(name) as provider:
            await provider.delete_snapshot(SnapshotId(slug))


REMOVED_IN_A_ROUND = 1000
_EMPTY = GONE | SessionChanges(
    snapshot_slug="", elsewhere={}, agent_session_id="", heard_until="", branch="", detached=""
)
"""What changes when all that is kept of it is removed: its thread begins anew, where it was at work before."""


class SessionRemoval:
    """Removes what threads have left, wherever that is."""

    def __init__(
        self,
        store: SessionStore,
        idle: IdleSandboxCache,
        locks: SessionLocks,
        open_provider: OpenProvider,
    ) -> None:
        self._store = store
        self._idle = idle
        self._locks = locks
        self._open_provider = open_provider

    async def remove_unused(self, before: datetime) -> int:
        """Removes sessions last used before then, with what they saved; returns how many."""
        removed = 0
        for session in await self._store.unused_since(before, limit=REMOVED_IN_A_ROUND):
            if await self._remove_files(session):
                await self._store.remove(session.id)
                self._locks.forget(session.id)
                removed += 1
        return removed

    async def empty(self, session_id: SessionId, is_over: Callable[[], Awaitable[bool]]) -> bool:
        """Removes what is kept for a thread, if nobody is at work in it and `is_over` says so while no run can begin there. False: not now."""
        try:
            with self._locks.lock_for_saving(session_id):
                if self._locks.is_in_use(session_id) or not await is_over():
                    return False
                session = await self._store.get(session_id)
                if session is not None:
                    if not await self._remove_files(session):
                        return False
                    await self._store.update(session_id, **_EMPTY)
        except BlockingIOError:
            return False
        return True

    async def _remove_files(self, session: Session) -> bool:
        await self._idle.end(session.id)
        try:
            await remove_held(session, self._open_provider)
        except SandboxError as exc:
            # The record stays, and with it the knowledge of what is left there, for a later round.
            _log.warning("sandbox.remove_failed", session=session.id, reason=str(exc))
            return False
        return True

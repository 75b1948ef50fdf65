"""What providers share whose sandboxes are kept by a service outside this process: an engine, a cloud.

A provider derives from `ManagedProvider` and says six things; opening, closing, owning, attaching twice, listing by labels and
the log are done here:

    class ExampleProvider(ManagedProvider[_State, ExampleSandbox]):
        async def _open(self, stack: AsyncExitStack) -> _State: ...          # connections, closed by the stack
        async def _create(self, state: _State, spec: SandboxSpec) -> ExampleSandbox: ...
        async def _attach(self, state: _State, sandbox_id: SandboxId) -> ExampleSandbox: ...
        async def _end(self, state: _State, sandbox_id: SandboxId) -> None: ...      # one that another process made
        async def _infos(self, state: _State) -> Iterable[SandboxInfo]: ...          # all of the namespace
        async def _reap(self, state: _State, keep: Keep) -> int: ...                  # by their owners' labels

besides `name`, `capabilities`, `probe` and `ensure_ready`. `_State` has what an open provider needs, and its `snapshots`. A
sandbox that ends calls `_forget`. What has to happen before the connections are closed, but after the sandboxes have ended,
is pushed onto the stack last.
"""

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import Owner, destroy_all
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import (
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Says which sandboxes stay when others are removed."""

    ids: Collection[SandboxId]
    living: Collection[str] | None
    """As `SandboxProvider.sweep` has it."""

    def covers(self, sandbox_id: str, owner: Owner | None) -> bool:
        """Whether it stays; `owner`: as its labels say, None = they say nothing."""
        return sandbox_id in self.ids or (owner is not None and not owner.is_gone(self.living))


class SnapshotStore(Protocol):
    """Snapshots of one namespace."""

    async def find_named(self, name: str) -> SnapshotRef | None:
        """Returns what `SandboxProvider.find_snapshot` promises."""
        ...

    async def list(self) -> Sequence[SnapshotRef]:
        """Returns all snapshots, oldest first."""
        ...

    async def delete(self, snapshot_id: str) -> None:
        """Removes a snapshot; unknown ids are fine."""
        ...


class ProviderState(Protocol):
    @property
    def snapshots(self) -> SnapshotStore: ...


StateT = TypeVar("StateT", bound=ProviderState)
SandboxT = TypeVar("SandboxT", bound=Sandbox)


class ManagedProvider(SandboxProvider, Generic[StateT, SandboxT]):
    """Owns the sandboxes that it made or attached to, and destroys them when it is closed. See the module."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._opened: StateT | None = None
        self._sandboxes: dict[SandboxId, SandboxT] = {}

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> StateT:
        """Connects; whatever has to be closed is entered into the stack, which unwinds also when this raises."""
        ...

    @abstractmethod
    async def _create(self, state: StateT, spec: SandboxSpec) -> SandboxT:
        """Makes a sandbox, for `create`. `spec.work_dir` is None here without Capability.MOUNT."""
        ...

    @abstractmethod
    async def _attach(self, state: StateT, sandbox_id: SandboxId) -> SandboxT:
        """Finds a sandbox that this provider does not own, for `attach`. Raises: SandboxError: NOT_FOUND."""
        ...

    @abstractmethod
    async def _end(self, state: StateT, sandbox_id: SandboxId) -> None:
        """Ends a sandbox that this provider does not own, if there is one of that id."""
        ...

    @abstractmethod
    async def _infos(self, state: StateT) -> Iterable[SandboxInfo]:
        """Returns what is known of each sandbox of the namespace, in any order."""
        ...

    @abstractmethod
    async def _reap(self, state: StateT, keep: Keep) -> int:
        """Ends sandboxes that nobody keeps, and removes what nothing uses; returns how many ended."""
        ...

    @property
    def _state(self) -> StateT:
        if self._opened is None:
            raise RuntimeError("the provider is not open")
        return self._opened

    def _forget(self, sandbox_id: SandboxId) -> None:
        """Owns a sandbox no more, because it has ended."""
        self._sandboxes.pop(sandbox_id, None)

    def _own(self, sandbox: SandboxT) -> SandboxT:
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    @override
    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._opened = await self._open(stack)
            self._stack = stack.pop_all()
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await destroy_all(self._sandboxes.values())
        finally:
            self._opened = None
            await self._stack.aclose()

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        if spec.work_dir is not None and Capability.MOUNT not in self.capabilities:
            raise SandboxError(
                SandboxErrorCode.UNSUPPORTED,
                f"{self.name} sandboxes do not work in a directory of the host",
            )
        return self._own(await self._create(self._state, spec))

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        own = self._sandboxes.get(sandbox_id)
        return own or self._own(await self._attach(self._state, sandbox_id))

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        own = self._sandboxes.get(sandbox_id)
        if own is not None:
            await own.destroy()
        else:
            await self._end(self._state, sandbox_id)

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        self._forget(sandbox_id)

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        wanted = (labels or {}).items()
        infos = (info for info in await self._infos(self._state) if wanted <= info.labels.items())
        return tuple(sorted(infos, key=lambda info: info.created_at))

    @override
    async def sweep(
        self, keep: Collection[SandboxId] = (), *, living: Collection[str] | None = None
    ) -> int:
        ids = frozenset(keep) | self._sandboxes.keys()
        swept = await self._reap(self._state, Keep(ids=ids, living=living))
        if swept:
            _log.info("sandboxes swept", extra={"action": "sandbox.swept", "count": swept})
        return swept

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        return await self._state.snapshots.find_named(name)

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return await self._state.snapshots.list()

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        await self._state.snapshots.delete(snapshot_id)


async def remove_replaced(removing: Callable[[], Awaitable[None]]) -> bool:
    """Removes snapshots that nothing needs any more, and returns whether that worked: a failure is logged, for the one that
    replaced them is there.
    """
    try:
        await removing()
    except SandboxError as exc:
        _log.warning(
            "snapshot not removed",
            extra={"action": "snapshot.remove_failed", "reason": str(exc)},
        )
        return False
    return True

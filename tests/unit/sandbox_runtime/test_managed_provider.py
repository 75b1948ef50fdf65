"""What a provider of sandboxes elsewhere need not say itself."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from typing_extensions import override

from sandbox_runtime import (
    Capability,
    ProgressListener,
    Sandbox,
    SandboxError,
    SandboxErrorCode,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotRef,
)
from sandbox_runtime.managed_provider import Keep, ManagedProvider, remove_replaced
from sandbox_runtime.testing.fake import FakeProvider


class _Snapshots:
    async def find_named(self, _name: str) -> SnapshotRef | None:
        return None

    async def list(self) -> Sequence[SnapshotRef]:
        return ()

    async def delete(self, _snapshot_id: str) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    service: FakeProvider
    snapshots: _Snapshots = field(default_factory=_Snapshots)


class _Provider(ManagedProvider[_State, Sandbox]):
    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.closed: list[str] = []
        self.attached = 0
        self.ended: list[str] = []
        self.kept: Keep | None = None

    @property
    @override
    def name(self) -> str:
        return "example"

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.ATTACH})

    @override
    async def probe(self) -> str:
        return "example"

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        raise AssertionError("not asked")

    @override
    async def _open(self, stack: AsyncExitStack) -> _State:
        stack.callback(self.closed.append, "connection")
        if self.fails:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, "no answer")
        return _State(service=await stack.enter_async_context(FakeProvider()))

    @override
    async def _create(self, state: _State, spec: SandboxSpec) -> Sandbox:
        return await state.service.create(spec)

    @override
    async def _attach(self, state: _State, sandbox_id: SandboxId) -> Sandbox:
        self.attached += 1
        return await state.service.create(SandboxSpec())

    @override
    async def _end(self, state: _State, sandbox_id: SandboxId) -> None:
        self.ended.append(sandbox_id)

    @override
    async def _infos(self, state: _State) -> Iterable[SandboxInfo]:
        return [
            SandboxInfo(
                id=SandboxId(str(day)),
                provider="example",
                running=True,
                created_at=datetime(2026, 1, day, tzinfo=UTC),
                labels={"day": str(day), "kind": "a" if day < 3 else "b"},
            )
            for day in (2, 3, 1)
        ]

    @override
    async def _reap(self, state: _State, keep: Keep) -> int:
        self.kept = keep
        return 2


async def test_failed_opening_is_unwound() -> None:
    """What was opened before the failure is closed."""
    provider = _Provider(fails=True)
    with pytest.raises(SandboxError):
        async with provider:
            pass
    assert provider.closed == ["connection"]


async def test_closed_provider() -> None:
    """Its sandboxes have ended, and it can be asked nothing more."""
    provider = _Provider()
    async with provider:
        sandbox = await provider.create(SandboxSpec())
    with pytest.raises(SandboxError, match="is destroyed"):
        await sandbox.exec(["true"], timeout_s=5)
    with pytest.raises(RuntimeError, match="not open"):
        await provider.list()


async def test_attaching_twice_gives_one_sandbox() -> None:
    """Also to one that it made itself."""
    async with _Provider() as provider:
        made = await provider.create(SandboxSpec())
        assert await provider.attach(made.id) is made
        found = await provider.attach(SandboxId("left"))
        assert await provider.attach(found.id) is found
        assert provider.attached == 1


async def test_removing() -> None:
    """Its own is destroyed; of another's the provider decides; a released one is another's."""
    async with _Provider() as provider:
        released = await provider.create(SandboxSpec())
        provider.release(released.id)
        for sandbox_id in (released.id, SandboxId("left")):
            await provider.remove(sandbox_id)
        assert provider.ended == [released.id, "left"]
        await released.destroy()


async def test_list_is_by_labels_and_age() -> None:
    """All the given labels, oldest first."""
    async with _Provider() as provider:
        assert [info.id for info in await provider.list()] == ["1", "2", "3"]
        assert [info.id for info in await provider.list({"kind": "a"})] == ["1", "2"]
        assert await provider.list({"kind": "a", "day": "3"}) == ()


async def test_sweep(caplog: pytest.LogCaptureFixture) -> None:
    """What it owns is kept with what was named, and the log tells how many ended."""
    caplog.set_level(logging.INFO)
    async with _Provider() as provider:
        made = await provider.create(SandboxSpec())
        assert await provider.sweep([SandboxId("named")]) == 2
        assert provider.kept == Keep(ids={made.id, SandboxId("named")}, living=None)
    assert [record.action for record in caplog.records if hasattr(record, "action")] == [
        "sandbox.swept"
    ]


async def test_directory_of_the_host() -> None:
    """It is refused in one sentence by a provider that does not declare it."""
    async with _Provider() as provider:
        with pytest.raises(SandboxError, match="example sandboxes do not work in a directory"):
            await provider.create(SandboxSpec(work_dir="/srv"))


async def test_replaced_snapshot_that_stays(caplog: pytest.LogCaptureFixture) -> None:
    """A failure to remove it is logged: what replaced it is there."""

    async def fail() -> None:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "busy")

    async def work() -> None:
        pass

    assert await remove_replaced(work)
    assert not await remove_replaced(fail)
    assert [record.message for record in caplog.records] == ["snapshot not removed"]

"""A provider for tests: its answers can be scripted, its failures chosen, its calls read.

Commands that no script answers really run, as plain processes in a temporary directory, so the fake passes the same
conformance facts as a provider without isolation and cannot lie about the contract.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from typing_extensions import override

from sandbox_runtime.command import EndedProcess, result_events
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Process, ProgressListener, Sandbox, SandboxProvider, Terminal
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Capability,
    ExecResult,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
    TerminalSize,
)

Operation = Literal[
    "probe",
    "ensure_ready",
    "create",
    "attach",
    "exec",
    "spawn",
    "write_file",
    "write_files",
    "read_file",
    "snapshot",
    "destroy",
    "find_snapshot",
    "extend",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """One command as the fake received it."""

    operation: Literal["exec", "spawn"]
    argv: tuple[str, ...]
    cwd: str | None
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(repr=False)


Match = Sequence[str] | Callable[[FakeCall], bool]
"""Which commands a script answers: those whose argv begins so, or those the function likes."""
Reply = ExecResult | Callable[[FakeCall], ExecResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    match: Match
    reply: Reply

    def answers(self, call: FakeCall) -> bool:
        if callable(self.match):
            return self.match(call)
        return call.argv[: len(self.match)] == tuple(self.match)

    def result(self, call: FakeCall) -> ExecResult:
        return self.reply(call) if callable(self.reply) else self.reply


class FakeProvider(SandboxProvider):
    def __init__(self, *, capabilities: frozenset[Capability] | None = None) -> None:
        """`capabilities` takes some away: using a missing one then raises UNSUPPORTED."""
        self._directory = tempfile.TemporaryDirectory(prefix="fake-provider-")
        self._inner = LocalProvider(Path(self._directory.name, "state"), isolation="none")
        all_of_them = self._inner.capabilities
        self._capabilities = all_of_them if capabilities is None else capabilities & all_of_them
        self._scripts: list[Script] = []
        self._counts: Counter[str] = Counter()
        self._failures: dict[tuple[str, int], Exception] = {}
        self._alive: set[SandboxId] = set()
        self.calls: list[FakeCall] = []
        """Every command, in order."""
        self.specs: list[SandboxSpec] = []
        """What was asked of `create`, in order."""
        self.lifetimes_s: dict[SandboxId, float] = {}
        """Of sandboxes that were extended, as the last one asked."""
        self.created = 0
        self.destroyed = 0

    @property
    def alive(self) -> int:
        """Returns how many sandboxes were created and not yet destroyed."""
        return len(self._alive)

    def script(self, match: Match, reply: Reply) -> None:
        """Answers matching commands so from now on; later scripts win over earlier ones."""
        self._scripts.insert(0, Script(match=match, reply=reply))

    def fail(self, operation: Operation, nth: int, error: Exception) -> None:
        """Lets the `nth` call of an operation, counted from 1 over the provider's life, raise instead of act."""
        if nth < 1:
            raise ValueError(f"calls are counted from 1, not {nth}")
        self._failures[operation, nth] = error

    def enter(self, operation: Operation) -> None:
        """Counts a call; raises if it was told to fail."""
        self._counts[operation] += 1
        error = self._failures.pop((operation, self._counts[operation]), None)
        if error is not None:
            raise error

    def count(self, operation: Operation) -> int:
        return self._counts[operation]

    def find_script(self, call: FakeCall) -> Script | None:
        self.calls.append(call)
        for script in self._scripts:
            if script.answers(call):
                return script
        return None

    def require(self, capability: Capability) -> None:
        if capability not in self._capabilities:
            raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"fake without {capability}")

    def forget(self, sandbox_id: SandboxId) -> None:
        if sandbox_id in self._alive:
            self._alive.discard(sandbox_id)
            self.destroyed += 1

    @property
    @override
    def name(self) -> str:
        return "fake"

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities

    @override
    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        await self._inner.__aexit__(*exc_info)
        self._alive.clear()
        self._directory.cleanup()

    @override
    async def probe(self) -> str:
        self.enter("probe")
        return "fake: plain processes in a temporary directory"

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        self.enter("ensure_ready")
        return _as_fake(await self._inner.ensure_ready(progress))

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.enter("create")
        if spec.work_dir is not None:
            self.require(Capability.MOUNT)
        self.specs.append(spec)
        sandbox = FakeSandbox(self, await self._inner.create(spec))
        self.created += 1
        self._alive.add(sandbox.id)
        return sandbox

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        self.enter("attach")
        return FakeSandbox(self, await self._inner.attach(sandbox_id))

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        return await self._inner.list(labels)

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        self.forget(sandbox_id)
        await self._inner.remove(sandbox_id)

    @override
    async def sweep(
        self, keep: Collection[SandboxId] = (), *, living: Collection[str] | None = None
    ) -> int:
        return 0

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        self.enter("find_snapshot")
        found = await self._inner.find_snapshot(name)
        return None if found is None else _as_fake(found)

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return tuple(_as_fake(ref) for ref in await self._inner.list_snapshots())

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        await self._inner.delete_snapshot(snapshot_id)

    @override
    async def keep_copy(self, snapshot_id: SnapshotId) -> None:
        await self._inner.keep_copy(snapshot_id)


class FakeSandbox(Sandbox):
    """A sandbox of the fake: scripts first, then the real thing."""

    def __init__(self, provider: FakeProvider, inner: Sandbox) -> None:
        self._provider = provider
        self._inner = inner
        self.id = inner.id
        self.paths = inner.paths
        self._destroyed = False

    @override
    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        merge_output: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        call = FakeCall(operation="exec", argv=tuple(argv), cwd=cwd, env=env or {}, stdin=stdin)
        script = self._enter(call)
        result = script.result(call) if script else None
        if result is not None:
            return result
        return await self._inner.exec(
            argv,
            timeout_s=timeout_s,
            cwd=cwd,
            env=env,
            stdin=stdin,
            merge_output=merge_output,
            max_output_bytes=max_output_bytes,
        )

    @override
    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Process:
        call = FakeCall(operation="spawn", argv=tuple(argv), cwd=cwd, env=env or {}, stdin=stdin)
        script = self._enter(call)
        result = script.result(call) if script else None
        if result is not None:
            return EndedProcess(result_events(result))
        return await self._inner.spawn(argv, cwd=cwd, env=env, stdin=stdin)

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        self._provider.require(Capability.TERMINAL)
        return await self._inner.open_terminal(argv, size=size, env=env)

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        self._provider.enter("write_file")
        await self._inner.write_file(path, data, executable=executable)

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        self._provider.enter("write_files")
        await self._inner.write_files(files)

    @override
    async def read_file(self, path: str, *, max_bytes: int = 100 * 1024 * 1024) -> bytes:
        self._provider.enter("read_file")
        return await self._inner.read_file(path, max_bytes=max_bytes)

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        self._provider.enter("snapshot")
        self._provider.require(Capability.SNAPSHOT)
        return _as_fake(await self._inner.snapshot(name=name))

    @override
    async def extend(self, lifetime_s: float) -> None:
        self._provider.enter("extend")
        await super().extend(lifetime_s)
        self._provider.lifetimes_s[self.id] = lifetime_s

    @override
    async def destroy(self) -> None:
        self._provider.enter("destroy")
        self._destroyed = True
        self._provider.forget(self.id)
        await self._inner.destroy()

    def _enter(self, call: FakeCall) -> Script | None:
        self._provider.enter(call.operation)
        if not call.argv:
            raise ValueError("argv must not be empty")
        if self._destroyed:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} is destroyed")
        return self._provider.find_script(call)


def _as_fake(ref: SnapshotRef) -> SnapshotRef:
    return replace(ref, provider="fake")

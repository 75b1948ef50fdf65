"""The seam every sandbox provider implements; the docstrings are the contract, `testing.conformance` checks it."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Protocol, Self

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Capability,
    ExecEvent,
    ExecResult,
    SandboxId,
    SandboxInfo,
    SandboxPaths,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
    TerminalSize,
)


class Process(Protocol):
    """A started command. Whoever spawned it must consume `events` or call `kill`."""

    def events(self) -> AsyncIterator[ExecEvent]:
        """Output as it arrives, ending with exactly one `ExecExited`. May be iterated once.

        Back-pressure: a consumer that does not read stops the process at a full pipe; nothing is buffered without bound.
        """
        ...

    async def kill(self) -> None:
        """Kill the command and everything it started; returns when the tree is verified dead. Idempotent, <= 5 s."""
        ...


class Terminal(Protocol):
    """A started command with a terminal of its own. Whoever opened it calls `close`."""

    async def read(self) -> bytes:
        """What it shows next, as it comes; empty at the end. One reader at a time."""
        ...

    async def write(self, data: bytes) -> None:
        """What is typed, Ctrl-C and the like included; waits while the command does not take it. At its end, lost."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Tell the command that the window has changed. At its end, nothing."""
        ...

    async def close(self) -> int:
        """End it and all it started, as far as it has not ended; its exit code. Idempotent, <= 10 s."""
        ...


class Sandbox(Protocol):
    """One isolated place to run commands. Made by a provider, ended by `destroy`."""

    @property
    def id(self) -> SandboxId: ...

    @property
    def paths(self) -> SandboxPaths: ...

    @property
    def container_name(self) -> str:
        """By which its host's own tools know it; empty where they do not."""
        return ""

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
        """Run a command and wait for it.

        A command that fails, is missing or dies by a signal is a result, never an error. On timeout or cancellation the
        command and all it started are dead before this returns. `argv` never passes through a shell. `cwd` defaults to
        `paths.work`; relative ones start there; a missing one gives exit code 126 or 127 with a text on stderr.
        `merge_output` sends stderr to stdout in the order written. Each stream keeps its first `max_output_bytes`, then a mark.

        Raises:
            SandboxError: EXEC_TIMEOUT after `timeout_s` of wall clock; UNAVAILABLE when the sandbox is gone or destroyed.
            ValueError: `argv` is empty, or a string in it holds a NUL.
        """
        ...

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Process:
        """Start a command and stream its output. It lives until it exits, `kill`, or the sandbox is destroyed.

        Raises:
            SandboxError: UNAVAILABLE when the sandbox is gone or destroyed.
        """
        ...

    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        """Start a command on a new terminal, in `paths.work`, for a person: no limit of time or output.

        Raises:
            SandboxError: UNSUPPORTED without Capability.TERMINAL; UNAVAILABLE when the sandbox is gone or destroyed.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Write a file inside, making parent directories. Relative paths start at `paths.work`. Replaces what is there.

        The path is resolved *inside* the sandbox: a symlink planted there can never reach the host.

        Raises:
            IsADirectoryError, PermissionError: as the builtins say.
            SandboxError: UNAVAILABLE.
        """
        ...

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write several files, in order, in one go: path to content; same rules as `write_file`, none executable.

        The first that cannot be written ends it; those before it stand.

        Raises:
            OSError: its subclass says why, `filename` which one.
            SandboxError: UNAVAILABLE.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = 100 * 1024 * 1024) -> bytes:
        """Read a file inside; same path rules as `write_file`.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: as the builtins say.
            SandboxError: FILE_TOO_LARGE above `max_bytes`; UNAVAILABLE.
        """
        ...

    async def extend(self, lifetime_s: float) -> None:
        """See that it lives so long from now, as `SandboxSpec.lifetime_s`; nothing to do where sandboxes do not end.

        Raises:
            SandboxError: LIMIT_REACHED when the provider does not let it live so long; UNAVAILABLE.
            ValueError: not above 0.
        """
        if lifetime_s <= 0:
            raise ValueError(f"a lifetime is above 0 s, not {lifetime_s:g}")

    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        """Save environment and workspace. May end this sandbox (some providers stop it): use it no more, but `destroy` it.

        Raises:
            SandboxError: UNSUPPORTED without Capability.SNAPSHOT; UNAVAILABLE.
        """
        ...

    async def destroy(self) -> None:
        """End it: every process dead, its files gone. Idempotent; afterwards everything else raises UNAVAILABLE."""
        ...


ProgressListener = Callable[[str], None]
"""Called with a short step name when it begins: checking, exists, creating, booting, installing ..., snapshotting,
cleaning up, done, error.
"""


def ignore_progress(_step: str) -> None:
    """A listener that does nothing."""


class SandboxProvider(Protocol):
    """Makes sandboxes. Open it with `async with`; leaving destroys every sandbox it still owns."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def probe(self) -> str:
        """Try it for real, once, bounded to 10 s. Returns one line saying what it found (isolation, limits enforced).

        Raises:
            SandboxError: ISOLATION_UNAVAILABLE or UNAVAILABLE with the reason and, where known, the fix.
        """
        ...

    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        """The base environment, made on first use. Cheap when it exists.

        Raises:
            SandboxError: SETUP_FAILED, ISOLATION_UNAVAILABLE.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A new sandbox. The caller destroys it.

        Raises:
            SandboxError: CREATE_FAILED, LIMIT_REACHED (with the number running), NOT_FOUND for an unknown snapshot,
                UNSUPPORTED for a network kind it cannot enforce.
        """
        ...

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        """A sandbox made earlier, maybe by another process.

        Raises:
            SandboxError: UNSUPPORTED without Capability.ATTACH; NOT_FOUND.
        """
        ...

    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        """Sandboxes carrying all the given labels."""
        ...

    async def find(self, sandbox_id: SandboxId) -> SandboxInfo | None:
        """What is known of one, also for a while after it ended by itself; None = nothing, or it was ended from outside."""
        return next((info for info in await self.list() if info.id == sandbox_id), None)

    def release(self, sandbox_id: SandboxId) -> None:
        """Own it no more: it goes on when this provider is closed, and whoever attaches to it owns it.

        Raises:
            SandboxError: UNSUPPORTED without Capability.ATTACH.
        """
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED, f"sandbox {sandbox_id} ends with the process that made it"
        )

    async def remove(self, sandbox_id: SandboxId) -> None:
        """End a sandbox, whoever made it: as `Sandbox.destroy`, which its maker then sees as UNAVAILABLE. Unknown ids are fine."""
        ...

    async def sweep(self, keep: Collection[SandboxId] = ()) -> int:
        """Remove what processes that live no more have left, except the sandboxes of `keep`; returns how many sandboxes.

        A provider whose sandboxes end with their process has done so when it was opened.
        """
        ...

    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        """The snapshot of that name, if it exists and is whole."""
        ...

    async def list_snapshots(self) -> Sequence[SnapshotRef]: ...

    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Remove it; unknown ids are fine. Running sandboxes made from it keep working."""
        ...

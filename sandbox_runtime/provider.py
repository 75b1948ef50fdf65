"""The seam every sandbox provider implements, and what is known of one without importing it.

The docstrings are the contract, `testing.conformance` checks it.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self

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
    SandboxStats,
    SnapshotId,
    SnapshotRef,
    TerminalSize,
)


class Process(Protocol):
    """A started command. Whoever spawned it must consume `events`, or call `kill` or `detach`."""

    def events(self) -> AsyncIterator[ExecEvent]:
        """Yields output as it arrives, ending with exactly one `ExecExited`, or with none after `detach`. May be iterated once.

        Back-pressure: a consumer that does not read stops the process at a full pipe; nothing is buffered without bound.
        """
        ...

    async def kill(self) -> None:
        """Kills the command and everything it started; returns when the tree is verified dead. Idempotent, <= 5 s."""
        ...

    async def detach(self) -> None:
        """Stops reading the command, which goes on; whoever iterates `events` is at its end at once. Idempotent, <= 5 s.

        What it prints from then on is lost, or stops it at a full pipe: it had better keep a log of its own. `kill` still
        ends it, and so does the end of its sandbox.
        """
        ...


class Terminal(Protocol):
    """A started command with a terminal of its own. Whoever opened it calls `close`."""

    async def read(self) -> bytes:
        """Returns what it shows next, as it comes; empty at the end. One reader at a time."""
        ...

    async def write(self, data: bytes) -> None:
        """Types, Ctrl-C and the like included; waits while the command does not take it. Lost at its end."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Tells the command that the window has changed; nothing at its end."""
        ...

    async def close(self) -> int:
        """Ends it and all it started, as far as it has not ended; returns its exit code. Idempotent, <= 10 s.

        Raises:
            SandboxError: it was lost while it ran; once.
        """
        ...


class Sandbox(Protocol):
    """One isolated place to run commands. Made by a provider, ended by `destroy`."""

    id: SandboxId
    paths: SandboxPaths
    container_name: str = ""
    """By which its host's own tools know it; empty where they do not."""

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
        """Runs a command and waits for it.

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
        """Starts a command and streams its output. It lives until it exits, `kill`, or the sandbox is destroyed.

        Raises:
            SandboxError: UNAVAILABLE when the sandbox is gone or destroyed.
        """
        ...

    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        """Starts a command on a new terminal, in `paths.work`, for a person: no limit of time or output.

        Raises:
            SandboxError: UNSUPPORTED without Capability.TERMINAL; UNAVAILABLE when the sandbox is gone or destroyed.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Writes a file inside, making parent directories. Relative paths start at `paths.work`. Replaces what is there.

        The path is resolved *inside* the sandbox: a symlink planted there can never reach the host.

        Raises:
            IsADirectoryError, PermissionError: as the builtins say.
            SandboxError: UNAVAILABLE.
        """
        ...

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Writes several files, in order, in one go: path to content; same rules as `write_file`, none executable.

        The first that cannot be written ends it; those before it stand.

        Raises:
            OSError: its subclass says why, `filename` which one.
            SandboxError: UNAVAILABLE.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = 100 * 1024 * 1024) -> bytes:
        """Reads a file inside; same path rules as `write_file`.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: as the builtins say.
            SandboxError: FILE_TOO_LARGE above `max_bytes`; UNAVAILABLE.
        """
        ...

    async def extend(self, lifetime_s: float) -> None:
        """Sees that it lives so long from now, as `SandboxSpec.lifetime_s`; nothing to do where sandboxes do not end.

        Raises:
            SandboxError: LIMIT_REACHED when the provider does not let it live so long; UNAVAILABLE.
            ValueError: not above 0.
        """
        if lifetime_s <= 0:
            raise ValueError(f"a lifetime is above 0 s, not {lifetime_s:g}")

    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        """Saves environment and workspace. With Capability.ENDS_WHEN_SAVED, or a writable environment, use it no more, but `destroy` it.

        Raises:
            SandboxError: UNSUPPORTED without Capability.SNAPSHOT; UNAVAILABLE.
        """
        ...

    async def destroy(self) -> None:
        """Ends it: every process dead, its files gone. Idempotent; afterwards everything else raises UNAVAILABLE."""
        ...


ProgressListener = Callable[[str], None]
"""Called with a short step name when it begins: checking, exists, creating, booting, installing ..., snapshotting,
cleaning up, done, error.
"""


def ignore_progress(_step: str) -> None:
    """Does nothing, for who does not listen."""


class SandboxProvider(Protocol):
    """Makes sandboxes. Open it with `async with`; leaving destroys every sandbox it still owns."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def region(self) -> str:
        """Returns where its sandboxes run, in its own word; empty = on this machine."""
        return ""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def probe(self) -> str:
        """Tries it for real, once, bounded to 10 s. Returns one line saying what it found (isolation, limits enforced).

        Raises:
            SandboxError: ISOLATION_UNAVAILABLE or UNAVAILABLE with the reason and, where known, the fix.
        """
        ...

    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        """Returns the base environment, made on first use. Cheap when it exists.

        Raises:
            SandboxError: SETUP_FAILED, ISOLATION_UNAVAILABLE.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Makes a sandbox. The caller destroys it.

        Raises:
            SandboxError: CREATE_FAILED, LIMIT_REACHED (with the number running), NOT_FOUND for an unknown snapshot,
                UNSUPPORTED for a network kind it cannot enforce.
        """
        ...

    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        """Returns a sandbox made earlier, maybe by another process.

        Raises:
            SandboxError: UNSUPPORTED without Capability.ATTACH, unless this provider made it; NOT_FOUND.
        """
        ...

    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        """Lists the sandboxes carrying all the given labels."""
        ...

    async def find(self, sandbox_id: SandboxId) -> SandboxInfo | None:
        """Returns what is known of one, also for a while after it ended by itself; None = nothing, or it was ended from outside."""
        return next((info for info in await self.list() if info.id == sandbox_id), None)

    async def stats(self, sandbox_id: SandboxId) -> SandboxStats:
        """Returns what a sandbox uses and how long it may live, as far as that is told; nothing of one that does not run.

        Raises:
            SandboxError: UNAVAILABLE.
        """
        del sandbox_id  # nothing is told
        return SandboxStats()

    def release(self, sandbox_id: SandboxId) -> None:
        """Owns it no more: it goes on when this provider is closed, and whoever attaches to it owns it.

        Raises:
            SandboxError: UNSUPPORTED without Capability.ATTACH.
        """
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED, f"sandbox {sandbox_id} ends with the process that made it"
        )

    async def remove(self, sandbox_id: SandboxId) -> None:
        """Ends a sandbox, whoever made it: as `Sandbox.destroy`, which its maker then sees as UNAVAILABLE. Unknown ids are fine."""
        ...

    async def sweep(
        self, keep: Collection[SandboxId] = (), *, living: Collection[str] | None = None
    ) -> int:
        """Removes what owners that live no more have left, except the sandboxes of `keep`; returns how many sandboxes.

        Args:
            keep: ids of sandboxes that stay, whoever made them.
            living: the names of all owners that live (`ServiceContext.owner`), in whatever process, container or host; what
                has an owner of another name goes. None = nobody knows: what belongs to a name stays. What belongs to a
                process without a name goes when it is seen to be dead from here.

        What is another namespace's stays. A provider whose sandboxes end with their process has swept when it was opened.
        """
        ...

    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        """Returns the snapshot of that name, if it exists and is whole."""
        ...

    async def list_snapshots(self) -> Sequence[SnapshotRef]: ...

    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Removes it; unknown ids are fine. Running sandboxes made from it keep working."""
        ...

    async def keep_copy(self, snapshot_id: SnapshotId) -> None:
        """Sees that the next sandbox that takes its workspace from it needs not wait for a copy, where that takes any; unknown ids are fine.

        Raises:
            OSError: there is no room.
        """
        del snapshot_id  # nothing is copied at a beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSetting:
    """Something that an operator may say of one provider."""

    name: str
    """In the environment, such as VERCEL_TOKEN."""
    description: str
    default: str | None = None
    choices: tuple[str, ...] = ()
    """What it may be; empty = any text."""
    is_secret: bool = False
    is_token: bool = False
    """A part of its credentials, which may be kept in the keyring of the system."""
    question: str = ""
    """By which `orion setup` asks for it; empty = it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """Holds what a service tells any provider that it makes."""

    values: Mapping[str, str | None] = field(repr=False)
    """Of the provider's own settings, by their names."""
    namespace: str
    """Another service's is another, even in the same account."""
    state_dir: Path
    region: str
    """One of its own; empty where it has none."""
    vcpus: float
    run_timeout_s: float
    git_name: str
    git_email: str
    ca_bundle: Path | None
    host_env: Mapping[str, str] = field(repr=False)
    """The service's environment: what package installers need of it is passed into open sandboxes."""
    owner: str = ""
    """The name of whoever makes sandboxes with it, by which `sweep` knows whether it lives; empty = this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """One provider, as settings, set-up, doctor and options of messages know it."""

    name: str
    provider: str
    """`module:Class`."""
    create: str
    """`module:function`, which makes it from a `ServiceContext`; it raises ValueError for what it cannot have."""
    fix: str
    """What an operator can do when it does not work."""
    settings: tuple[ProviderSetting, ...] = ()
    credentials: tuple[tuple[str, ...], ...] = ()
    """Groups of settings; it is set up when all of any group are there. Empty = nothing is needed."""
    package: str = ""
    """Which must be installed for it to be offered; empty = none, or credentials say it."""
    auto: Literal["", "credentials", "probe", "fallback"] = ""
    """When ORION_SANDBOX=auto takes it: its credentials are set, a try of it succeeds, or there is no other."""
    is_cloud: bool = False
    """Its sandboxes are on no machine of the operator's."""
    is_isolated: bool = True
    """False: its commands are plain processes of this machine, for trusted code."""
    has_mount: bool = False
    """Its sandboxes can work in a directory of the host's."""
    tells_ports: bool = True
    """False: of hosts that sandboxes may reach its networks know the name alone, and only by TLS."""
    regions: tuple[str, ...] = ()
    """The first is the default."""
    max_vcpus: float | None = None
    has_whole_vcpus: bool = False
    max_lifetime_s: float | None = None
    """Of a sandbox, whatever is asked for."""
    sdk_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its client reads when it is imported."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Returns the names of the settings that a keyring may hold."""
        return tuple(one.name for one in self.settings if one.is_token)

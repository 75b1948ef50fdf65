"""The values that cross the sandbox seam: specifications, results, snapshots, capabilities."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

SandboxId = NewType("SandboxId", str)
SnapshotId = NewType("SnapshotId", str)

DEFAULT_MAX_OUTPUT_BYTES = 10 * 1024 * 1024
"""Per stream of one exec; the same bound as inspect_ai's sandbox contract."""
EGRESS_NAME = "egress"
"""Of the socket to the proxy, in the directory of a brokered network's endpoint."""
EGRESS_PORT = 3128
"""Inside, where a relay serves that socket. Each sandbox's loopback is its own. Any would do; this is the one that Squid made customary."""


class Capability(StrEnum):
    """Names what a provider can do beyond the floor (exec, spawn, kill-tree, files, timeout), which all must offer."""

    SNAPSHOT = "snapshot"
    ATTACH = "attach"
    """A sandbox and its spawned processes survive a crash of this process and can be attached to again."""
    REMOTE = "remote"
    """Sandboxes run elsewhere: the endpoint of a `BrokeredNetwork` is a URL, and nothing else of this machine is in reach."""
    BILLED = "billed"
    """A sandbox costs money as long as it runs, also while nothing is done in it."""
    ENDS_WHEN_SAVED = "ends_when_saved"
    """`Sandbox.snapshot` ends the sandbox; where it does not, one whose environment is read-only goes on."""
    HEADER_INJECTION = "header_injection"
    """Its network can add headers to what a sandbox sends."""
    MOUNT = "mount"
    """A directory of the host can be the work directory."""
    TERMINAL = "terminal"
    """A command can have a terminal of its own, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedNetwork:
    """No network at all; only loopback inside the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNetwork:
    """The host's network: for preparing environments, with neither a key nor a user's data inside; and for an agent that reaches
    its maker's servers by itself, where the operator allows that.
    """

    endpoint: str = ""
    """As a `BrokeredNetwork`'s, in reach beside all else; empty = none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokeredNetwork:
    """No network but one endpoint."""

    endpoint: str
    """Absolute path of a unix socket on the host; with Capability.REMOTE the URL of a server, the only one to be reached.

    Inside, the sandbox finds it at `Sandbox.paths.broker`.
    """
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Put on each request to the endpoint outside the sandbox, which never sees them; needs Capability.HEADER_INJECTION.

    Where a provider does that by replacing a text, the environment variable `ORION_BROKER_KEY` inside holds that text.
    """
    hosts: tuple[str, ...] = ()
    """That may be reached beside it: `name`, `name:port` or `*.name:port`, port 443 where none is said.

    With Capability.REMOTE the provider's own policy lets them through. Elsewhere commands find a proxy in their environment, at
    the loopback port `EGRESS_PORT`: whoever serves the socket `EGRESS_NAME` beside the endpoint's decides, whatever is said here.
    """


Network = ClosedNetwork | OpenNetwork | BrokeredNetwork


def endpoint_of(network: Network) -> str:
    """Returns where the network's broker is; empty = it leads to none."""
    return "" if isinstance(network, ClosedNetwork) else network.endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Bounds of one sandbox; each provider enforces what it can and names what it cannot."""

    memory_bytes: int = 4 * 1024**3
    """Per process (local) or of the sandbox (others)."""
    reserved_bytes: int = 0
    """Address space that a process may reserve beside its memory (local; others do not count it)."""
    max_processes: int = 512
    max_file_bytes: int = 2 * 1024**3
    max_open_files: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    snapshot_id: SnapshotId | None = None
    """Environment (and workspace, if saved with it) to start from; None = the provider's bare base."""
    workspace_id: SnapshotId | None = None
    """Take the workspace from this snapshot instead: a thread's files outlast the environment that they were made in."""
    work_dir: str | None = None
    """Absolute path of a directory of the host that is the work directory, with no copy and no snapshot between: what is
    done in it is done to it. Needs Capability.MOUNT."""
    network: Network = field(default_factory=ClosedNetwork)
    environment_writable: bool = False
    """True while an environment is prepared: the environment directory may be changed and is what `snapshot` saves."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to every exec's environment. Nothing of the host's environment is inherited otherwise."""
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    lifetime_s: float | None = None
    """How long it must live at least, for a provider whose sandboxes end by themselves; None = its own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPaths:
    """Where things are inside the sandbox: absolute paths as processes in it see them."""

    work: str
    """Working directory of the agent and default `cwd`."""
    home: str
    """HOME of the agent's user."""
    run: str
    """Orion's own files (request, scripts, event log); outside the work tree so that they never show as changes."""
    environment: str
    """Prepared environment: read-only unless `environment_writable`."""
    broker: str
    """Where the network's endpoint is: the path of its socket, or its URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int
    """0..255. Killed by signal n: 128 + n. Missing command: 127. Not executable: 126."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    """True when the stream was longer than the bound; the text then ends in `command.TRUNCATION_MARK`."""

    @property
    def text(self) -> str:
        """Returns stdout as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """Returns stderr as text; bytes that are not UTF-8 are replaced."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    """In characters."""

    rows: int = 24
    columns: int = 80


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutput:
    """A piece of output of a spawned process, as it arrives."""

    stream: OutputStream
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecExited:
    """Last event of a spawned process."""

    exit_code: int


ExecEvent = ExecOutput | ExecExited


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """A saved environment (and workspace), restorable by its provider."""

    id: SnapshotId
    provider: str
    name: str | None
    """Given by the caller, unique per provider; a later snapshot of the same name replaces it."""
    created_at: datetime
    size_bytes: int | None = field(default=None, compare=False)
    """What it takes beside what it stands on; told by `SandboxProvider.list_snapshots` only, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as its provider lists it."""

    id: SandboxId
    provider: str
    running: bool
    created_at: datetime
    labels: Mapping[str, str]
    exit_code: int | None = None
    """Of one that ended by itself, where its provider knows."""
    region: str = ""
    """In its provider's own word; empty = on this machine, or not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStats:
    """What a running sandbox uses at a moment, of what it may have; None = its provider does not tell."""

    cpu_s: float | None = None
    """Processor time since it was made, by processes that live."""
    memory_bytes: int | None = None
    cpus: float | None = None
    """Processors that it may use at once."""
    memory_limit_bytes: int | None = None
    ends_at: datetime | None = None
    """When its provider ends it, if nobody extends its life."""

"""Sandboxes as a library: one contract, several providers, environments made once.

async with LocalProvider(Path("state")) as provider:
    base = await provider.ensure_ready()
    async with open_sandbox(provider, SandboxSpec(snapshot_id=base.id)) as sandbox:
        result = await sandbox.exec(["python3", "-c", "print(6 * 7)"], timeout_s=10)
        print(result.text)
"""

from sandbox_runtime.agent import SYMBOLIC_PATHS, Agent, ensure_environment
from sandbox_runtime.command import TRUNCATION_MARK, BoundedBuffer
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import AttemptRecord, open_sandbox
from sandbox_runtime.provider import (
    Process,
    ProgressListener,
    Sandbox,
    SandboxProvider,
    Terminal,
)
from sandbox_runtime.registry import PROVIDERS, load_provider
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    BrokeredNetwork,
    Capability,
    ClosedNetwork,
    ExecEvent,
    ExecExited,
    ExecOutput,
    ExecResult,
    Network,
    OpenNetwork,
    OutputStream,
    SandboxId,
    SandboxInfo,
    SandboxLimits,
    SandboxPaths,
    SandboxSpec,
    SandboxStats,
    SnapshotId,
    SnapshotRef,
    TerminalSize,
)

__all__ = [
    "DEFAULT_MAX_OUTPUT_BYTES",
    "PROVIDERS",
    "SYMBOLIC_PATHS",
    "TRUNCATION_MARK",
    "Agent",
    "AttemptRecord",
    "BoundedBuffer",
    "BrokeredNetwork",
    "Capability",
    "ClosedNetwork",
    "ExecEvent",
    "ExecExited",
    "ExecOutput",
    "ExecResult",
    "Network",
    "OpenNetwork",
    "OutputStream",
    "Process",
    "ProgressListener",
    "Sandbox",
    "SandboxError",
    "SandboxErrorCode",
    "SandboxId",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxPaths",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxStats",
    "SnapshotId",
    "SnapshotRef",
    "Terminal",
    "TerminalSize",
    "ensure_environment",
    "load_provider",
    "open_sandbox",
]

"""An agent and a sandbox that cost nothing, so that what is measured is Orion: no process, no file, an answer at once."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Self
from uuid import uuid4

from typing_extensions import override

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentFile,
    AgentPaths,
    AgentSpec,
    AgentTurn,
    EnvironmentRecipe,
    ModelProtocol,
)
from agent_scripts.agents.anthropic.output import AnthropicParser
from sandbox_runtime.command import KILLED
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import (
    Process,
    ProgressListener,
    Sandbox,
    SandboxProvider,
    Terminal,
)
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Capability,
    ExecEvent,
    ExecExited,
    ExecOutput,
    ExecResult,
    OutputStream,
    SandboxId,
    SandboxInfo,
    SandboxPaths,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
    TerminalSize,
)

ANSWER = "An answer of the instant agent."
WRITING_S = 0.2
"""Between two sentences of one that writes."""
PATHS = SandboxPaths(
    work="/work", home="/home", run="/run", environment="/env", broker="/broker.sock"
)
SNAPSHOT = SnapshotRef(
    id=SnapshotId("instant"), provider="instant", name="instant-1", created_at=datetime.now(UTC)
)


class ScriptedProcess(Process):
    """A spawned process whose events a script yields; killing it ends them with exit code 137."""

    def __init__(self, events: AsyncIterator[ExecEvent]) -> None:
        self._events = events
        self._killed = False

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        async for event in self._events:
            if self._killed:
                break
            yield event
            if isinstance(event, ExecExited):
                return
        yield ExecExited(exit_code=KILLED)

    @override
    async def detach(self) -> None:
        """Nobody reads its events any more."""

    @override
    async def kill(self) -> None:
        self._killed = True


class InstantAdapter(AgentAdapter):
    """An agent whose one file is its turn."""

    spec = AgentSpec(
        name="instant",
        protocol=ModelProtocol.ANTHROPIC,
        default_model="claude-instant",
        has_sessions=False,
    )

    @override
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        del paths
        return EnvironmentRecipe(name="instant-1", files=(), commands=())

    @override
    def command(self, turn: AgentTurn) -> AgentCommand:
        texts = json.dumps([message.text for message in turn.messages])
        request = AgentFile(path=f"{turn.paths.run}/request.json", data=texts.encode())
        return AgentCommand(argv=("instant",), env={}, files=(request,))

    @override
    def parser(self) -> AnthropicParser:
        return AnthropicParser()


class InstantSandbox(Sandbox):
    """Every command is the agent's; it says one sentence, works, and says it again; or with `holds` nothing, for ever.

    With `writes` it says it again and again while it works.
    """

    def __init__(self, *, holds: bool, work_s: float, writes: bool) -> None:
        self.id = SandboxId(uuid4().hex)
        self.paths = PATHS
        self._holds = holds
        self._work_s = work_s
        self._writes = writes
        self._files: dict[str, bytes] = {}

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
        return ExecResult(exit_code=0, stdout=b"", stderr=b"")

    @override
    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Process:
        answer = _supervised_answer(
            holds=self._holds, work_s=self._work_s, pause_s=WRITING_S if self._writes else None
        )
        return ScriptedProcess(answer)

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, "nobody can work in an instant sandbox")

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        self._files[path] = data

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        self._files.update(files)

    @override
    async def read_file(self, path: str, *, max_bytes: int = 100 * 1024 * 1024) -> bytes:
        return self._files[path]

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, "instant sandboxes keep nothing")

    @override
    async def destroy(self) -> None:
        self._files.clear()


class InstantProvider(SandboxProvider):
    """Its one environment is there already."""

    def __init__(self, *, holds: bool, work_s: float = 0, writes: bool = False) -> None:
        self._holds = holds
        self._work_s = work_s
        self._writes = writes

    @property
    @override
    def name(self) -> str:
        return "instant"

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return frozenset()

    @override
    async def __aenter__(self) -> Self:
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        pass

    @override
    async def probe(self) -> str:
        return "instant: no sandbox at all, for the bench"

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        return SNAPSHOT

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        return InstantSandbox(holds=self._holds, work_s=self._work_s, writes=self._writes)

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, "instant sandboxes are gone at once")

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        return ()

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        del sandbox_id

    @override
    async def sweep(
        self, keep: Collection[SandboxId] = (), *, living: Collection[str] | None = None
    ) -> int:
        return 0

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        return SNAPSHOT

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return (SNAPSHOT,)

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        pass


async def _supervised_answer(
    *, holds: bool, work_s: float, pause_s: float | None
) -> AsyncIterator[ExecEvent]:
    """The records a supervisor writes about an agent that says one sentence, and again after each `pause_s`, if given."""
    if holds:
        await asyncio.Event().wait()
    times = max(1, int(work_s / pause_s)) if pause_s else 1
    for _ in range(times):
        yield _record("line", text=json.dumps({"type": "text", "text": f"{ANSWER} "}))
        await asyncio.sleep(work_s / times)
    yield _record("line", text=json.dumps({"type": "final", "text": ANSWER}))
    yield _record("exit", code=0, reason="exited", survivors=0)
    yield ExecExited(exit_code=0)


def _record(kind: str, **fields: object) -> ExecOutput:
    line = {"stream": "stdout", "truncated": False} if kind == "line" else {}
    record = {"kind": kind, "seq": 1, "t": time.time(), **line, **fields}
    return ExecOutput(stream=OutputStream.STDOUT, data=json.dumps(record).encode() + b"\n")

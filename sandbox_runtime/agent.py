"""An agent's environment: a snapshot plus queued changes, made real by `prepare`; named ones are prepared once."""

import asyncio
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Self
from weakref import WeakKeyDictionary

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import ProgressListener, Sandbox, SandboxProvider, ignore_progress
from sandbox_runtime.types import (
    ExecResult,
    OpenNetwork,
    SandboxPaths,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

COMMAND_TIMEOUT_S = 900.0
RETRY_BACKOFF_S = 1.0
MAX_RETRY_BACKOFF_S = 15.0
STDERR_TAIL_CHARS = 1500
MAX_PROGRAM_CHARS = 100
"""Together with the tail they fit in a line of the service's log, which is cut after 2,000 characters."""

SYMBOLIC_PATHS = SandboxPaths(
    work="/@work@",
    home="/@home@",
    run="/@run@",
    environment="/@environment@",
    broker="/@broker@",
)
"""Stand for the paths of whatever sandbox an `Agent` boots: in file paths and arguments they are replaced by its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileChange:
    path: str
    data: bytes = field(repr=False)
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommandChange:
    argv: tuple[str, ...]
    retries: int
    backoff_s: float
    timeout_s: float
    cwd: str | None
    env: Mapping[str, str] = field(repr=False)
    origin: str

    @property
    def program(self) -> str:
        return posixpath.basename(self.argv[0])[:MAX_PROGRAM_CHARS]


class Agent:
    """Queues changes to an environment; `prepare` boots a sandbox, applies them and snapshots it.

    Not tied to a sandbox: there is nothing to close. May be shared by tasks of one event loop.
    """

    def __init__(
        self, agent_type: str, *, provider: SandboxProvider, snapshot_id: SnapshotId
    ) -> None:
        self._type = agent_type
        self._provider = provider
        self._snapshot_id = snapshot_id
        self._queue: list[_FileChange | _CommandChange] = []
        self._preparing = asyncio.Lock()

    @classmethod
    async def create(
        cls,
        agent_type: str,
        *,
        provider: SandboxProvider,
        snapshot_id: str | None = None,
        progress: ProgressListener | None = None,
    ) -> Self:
        """Returns an agent on the given snapshot, or on the provider's base environment, which is made if it does not exist.

        Raises:
            ValueError: `agent_type` or `snapshot_id` is blank.
            SandboxError: what `SandboxProvider.ensure_ready` raises.
        """
        if not agent_type.strip():
            raise ValueError("agent type must not be blank")
        if snapshot_id is None:
            root = (await provider.ensure_ready(progress)).id
        else:
            root = SnapshotId(snapshot_id.strip())
            if not root:
                raise ValueError("snapshot id must not be blank")
        return cls(agent_type.strip(), provider=provider, snapshot_id=root)

    @property
    def type(self) -> str:
        return self._type

    @property
    def snapshot_id(self) -> SnapshotId:
        """Returns the environment as of the last `prepare`."""
        return self._snapshot_id

    @property
    def dirty(self) -> bool:
        """Whether changes wait for `prepare`."""
        return bool(self._queue)

    def add_files(self, files: Mapping[str, bytes], *, executable: bool = False) -> Self:
        """Queues files to write, in order; `SYMBOLIC_PATHS` may stand in the paths."""
        self._queue.extend(
            _FileChange(path=path, data=data, executable=executable) for path, data in files.items()
        )
        return self

    def run_commands(
        self,
        commands: Sequence[Sequence[str]],
        *,
        retries: int = 0,
        backoff_s: float = RETRY_BACKOFF_S,
        timeout_s: float = COMMAND_TIMEOUT_S,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        origin: str = "commands",
    ) -> Self:
        """Queues commands to run in order, in `cwd` or `paths.work`; `SYMBOLIC_PATHS` may stand in all texts.

        A command that fails is run again up to `retries` times, with pauses that grow from `backoff_s`, before it counts as
        failed: for package installs over a network. `timeout_s` bounds each run of each command. Commands are counted by `origin`,
        which says in errors whose they are.

        Raises:
            TypeError: a command is a string; it must be a list of arguments.
            ValueError: a command is empty.
        """
        for command in commands:
            if isinstance(command, str):
                raise TypeError(f"a command is a list of arguments, not a string: {command!r}")
            if not command:
                raise ValueError("a command must not be empty")
        self._queue.extend(
            _CommandChange(
                argv=tuple(command),
                retries=retries,
                backoff_s=backoff_s,
                timeout_s=timeout_s,
                cwd=cwd,
                env=dict(env or {}),
                origin=origin,
            )
            for command in commands
        )
        return self

    async def prepare(
        self, *, name: str | None = None, progress: ProgressListener | None = None
    ) -> SnapshotId:
        """Makes the queued changes real; does nothing when there are none. `name` is given to the new snapshot.

        Concurrent calls wait for each other. Changes queued meanwhile wait for the next call. If it fails, queue and
        snapshot stay as they were, and the sandbox is destroyed.

        Raises:
            SandboxError: SETUP_FAILED when a command fails, naming its origin, its index there and the end of its stderr,
                or when a file cannot be written; whatever creating or saving the sandbox raises.
        """
        async with self._preparing:
            if self._queue:
                tell = progress or ignore_progress
                try:
                    await self._apply(tuple(self._queue), name=name, tell=tell)
                except BaseException:
                    tell("error")
                    raise
                tell("done")
            return self._snapshot_id

    async def _apply(
        self,
        changes: Sequence[_FileChange | _CommandChange],
        *,
        name: str | None,
        tell: ProgressListener,
    ) -> None:
        tell("creating")
        spec = SandboxSpec(
            snapshot_id=self._snapshot_id,
            network=OpenNetwork(),
            environment_writable=True,
            labels={"agent": self._type, "purpose": "prepare"},
        )
        commands = [change for change in changes if isinstance(change, _CommandChange)]
        begun: Counter[str] = Counter()
        async with open_sandbox(self._provider, spec) as sandbox:
            try:
                tell("booting")
                for change in changes:
                    match change:
                        case _FileChange():
                            await _write(sandbox, change)
                        case _CommandChange():
                            number = begun.total() + 1
                            tell(f"installing {change.program} ({number}/{len(commands)})")
                            await _run(sandbox, change, index=begun[change.origin])
                            begun[change.origin] += 1
                tell("snapshotting")
                ref = await sandbox.snapshot(name=name)
                self._snapshot_id = ref.id
                del self._queue[: len(changes)]
            finally:
                tell("cleaning up")


def _real(text: str, paths: SandboxPaths) -> str:
    for path in fields(SandboxPaths):
        text = text.replace(getattr(SYMBOLIC_PATHS, path.name), getattr(paths, path.name))
    return text


async def _write(sandbox: Sandbox, change: _FileChange) -> None:
    path = _real(change.path, sandbox.paths)
    try:
        await sandbox.write_file(path, change.data, executable=change.executable)
    except OSError as exc:
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED, f"cannot write {path}: {exc.strerror or exc}"
        ) from exc


async def _run(sandbox: Sandbox, command: _CommandChange, *, index: int) -> None:
    paths = sandbox.paths
    argv = [_real(argument, paths) for argument in command.argv]
    cwd = None if command.cwd is None else _real(command.cwd, paths)
    env = {name: _real(value, paths) for name, value in command.env.items()}
    label = f"{command.origin}[{index}] ({command.program})"

    async def attempt() -> ExecResult:
        return await sandbox.exec(argv, timeout_s=command.timeout_s, cwd=cwd, env=env)

    retrying = AsyncRetrying(
        stop=stop_after_attempt(command.retries + 1),
        wait=wait_exponential(multiplier=command.backoff_s, max=MAX_RETRY_BACKOFF_S)
        + wait_random(0, command.backoff_s),
        retry=retry_if_result(_has_failed),
        retry_error_callback=_last_result,
    )
    try:
        result: ExecResult = await retrying(attempt)
    except SandboxError as exc:
        if exc.code is not SandboxErrorCode.EXEC_TIMEOUT:
            raise
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED,
            f"{label} ran longer than {command.timeout_s:g} s",
        ) from exc
    if result.exit_code != 0:
        tail = (result.error_text or result.text).strip()[-STDERR_TAIL_CHARS:]
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED, f"{label} exited with {result.exit_code}: {tail}"
        )


def _last_result(state: RetryCallState) -> ExecResult:
    if state.outcome is None:
        raise AssertionError("tenacity gives up after an outcome")
    result: ExecResult = state.outcome.result()
    return result


def _has_failed(result: ExecResult) -> bool:
    return result.exit_code != 0


_preparing: WeakKeyDictionary[SandboxProvider, dict[str, asyncio.Lock]] = WeakKeyDictionary()
"""One lock per provider and name, so that concurrent callers share one preparation."""


async def ensure_environment(
    provider: SandboxProvider,
    *,
    name: str,
    fill: Callable[[Agent], object],
    progress: ProgressListener | None = None,
) -> SnapshotRef:
    """Returns the environment of that name; if there is none, made from the provider's base by the changes that `fill` queues.

    Without changes it is the base itself.

    The name must change when the changes do: an existing one is taken as it is. Callers in one process wait for one
    preparation; after a failed one the next caller tries again. Steps of the base have `base: ` before them.

    Raises:
        SandboxError: SETUP_FAILED, and what `Agent.prepare` raises.
    """
    tell = progress or ignore_progress
    tell("checking")
    lock = _preparing.setdefault(provider, {}).setdefault(name, asyncio.Lock())
    async with lock:
        found = await provider.find_snapshot(name)
        if found is not None:
            tell("exists")
            return found
        base = await provider.ensure_ready(lambda step: tell(f"base: {step}"))
        agent = await Agent.create(name, provider=provider, snapshot_id=base.id)
        fill(agent)
        if not agent.dirty:
            return base
        await agent.prepare(name=name, progress=progress)
        made = await provider.find_snapshot(name)
    if made is None:
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED, f"environment {name!r} vanished after it was made"
        )
    return made

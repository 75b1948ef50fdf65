"""Workspaces in which the operator's set-up of a repository has run already: made in the background, and where new threads begin."""

import asyncio
import codecs
import hashlib
import json
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from agent_scripts.adapter import AgentCommand, AgentPaths, ExitReason
from agent_scripts.repository import RepositoryReport, RepositoryTask, find_reason
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    SupervisionLimits,
    parse_record,
    supervise,
)
from app.egress.hosts import HostEntry, HostLists
from app.log import get_logger
from app.runs.agent_tail import RecordLines
from app.runs.broker import GrantHooks, ModelBroker, ModelGrant, RepositoryGrant, git_token
from app.runs.repository.names import ThreadRepository, why_not_cloned
from app.runs.repository.tasks import RepositoryPolicy, run_repository_task
from app.runs.request import RunId
from app.runs.sandboxes import agent_paths
from app.runs.session import SessionId
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.task_group import TaskGroup, open_task_group
from sandbox_runtime.types import (
    ExecOutput,
    OutputStream,
    SandboxLimits,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

_log = get_logger(__name__)

NAME_PREFIX = "prepared-"
MAX_AGE = timedelta(days=7)
"""Then one is made anew: of what a range of versions allows, the newest has the fixes."""
RETRY_S = 600.0
"""After a failure none is made for so long."""
REST_S = 3.0
"""Until then the machine is the agent's that has just begun with one."""
SETUP_TIMEOUT_S = 1200.0
"""For all lines together. With the two below it is less than the longest life of any provider's sandbox, 1,800 s (Deno)."""
CLONE_TIMEOUT_S = 240.0
SAVING_S = 300.0
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
MAX_TOLD_CHARS = 300
LAST_LINES = 20
"""Of what a command said that failed."""
_OWN_BRANCH = "orion/prepared"
_NAME_CHARS = 40
_MARGIN_S = 15.0
"""By which what runs inside is quicker than the wait for it."""
_RECORD_FACTOR = 7
"""Of a line's bytes as JSON may escape them, and the other members of its record."""
_REASONS: Mapping[ExitReason, str] = {
    "timeout": "it took too long",
    "output_limit": "it printed too much",
    "disk_limit": "it took too much disk",
    "process_limit": "it started too many processes",
}


class PreparationError(Exception):
    """Says to people why a repository could not be prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a workspace is prepared on, by the agent that will work in it."""

    environment_id: SnapshotId | None
    broker: ModelBroker
    limits: SandboxLimits


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    until_s: float
    """On the monotonic clock."""
    is_told: bool = False


@dataclass(slots=True)
class _State:
    """What goes on in this process with the snapshot of one name, and how it failed last."""

    making: asyncio.Task[None] | None = None
    copying: asyncio.Task[None] | None = None
    failure: _Failure | None = None


class Preparations:
    """The prepared workspaces of one provider. They are snapshots by a name that says what they were made of; other processes find them, too.

    Two processes may make the same one at once: the later one stays. Never made of what a thread has done.
    """

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        policy: RepositoryPolicy,
        hosts: HostLists,
        mask: Callable[[str], str],
        rest_s: float = REST_S,
        setup_timeout_s: float = SETUP_TIMEOUT_S,
    ) -> None:
        """None is made in the background unless this is open. `setup_timeout_s`: for all lines of a set-up together."""
        self._provider = provider
        self._policy = policy
        self._hosts = hosts
        self._mask = mask
        self._rest_s = rest_s
        self._setup_timeout_s = setup_timeout_s
        self._states: dict[str, _State] = {}
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Owns what is made in the background; it is given up at the end."""
        async with open_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for state in self._states.values():
                    for task in (state.making, state.copying):
                        if task is not None:
                            task.cancel()

    def has_setup(self, repo: str) -> bool:
        """Whether there is anything to prepare in it."""
        return bool(self._policy.setup_of(repo))

    def name_of(self, repo: str, environment_id: SnapshotId | None) -> str:
        """Returns the name of the snapshot of a repository on that environment; empty = it has no set-up.

        It changes with the environment, the lines, the hosts and the operator's spelling. Whether files that say what is to be installed have changed
        since shows in the clone.
        """
        lines = self._policy.setup_of(repo)
        if not lines:
            return ""
        hosts = [str(entry) for entry in self._hosts.of("", repo)]
        spelling = self._policy.spelling_of(repo)
        made_of = [environment_id, spelling, lines, hosts]
        digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
        return f"{NAME_PREFIX}{_plain(spelling)}-{digest[:12]}"

    async def find(self, repo: str, ground: Ground) -> SnapshotRef | None:
        """Returns where a new thread in the repository begins; None = there is nothing prepared. What is missing or old is made meanwhile."""
        name = self.name_of(repo, ground.environment_id)
        if not name:
            return None
        found = await self._provider.find_snapshot(name)
        if found is None or datetime.now(UTC) - found.created_at > MAX_AGE:
            self.begin(repo, ground)
        if found is not None:
            state = self._states.setdefault(name, _State())
            state.copying = self._later(state.copying, lambda: self._keep_copy(found.id))
        return found

    def begin(self, repo: str, ground: Ground) -> None:
        """Makes it anew in the background, unless that goes on, or has failed a short while ago."""
        name = self.name_of(repo, ground.environment_id)
        state = self._states.setdefault(name, _State())
        if state.failure is None or state.failure.until_s <= time.monotonic():
            state.making = self._later(
                state.making, lambda: self._prepare_quietly(repo, ground, state)
            )

    def take_failure(self, repo: str, environment_id: SnapshotId | None) -> str:
        """Returns why it could not be made, for the first one who asks; else an empty text."""
        state = self._states.get(self.name_of(repo, environment_id))
        if state is None or state.failure is None or state.failure.is_told:
            return ""
        state.failure = replace(state.failure, is_told=True)
        return state.failure.reason

    async def prepare(
        self, repo: str, ground: Ground, *, tell: Callable[[str], object] = lambda _: None
    ) -> SnapshotRef:
        """Clones the main branch, runs the set-up and saves the workspace; `tell` hears of each step.

        The set-up has neither a key nor a token, and reaches the hosts of the repository alone.

        Raises:
            PreparationError: it has no set-up, or that failed, hung or was too large; or it cannot be cloned.
            SandboxError: there is no sandbox, or it was lost.
        """
        name = self.name_of(repo, ground.environment_id)
        if not name:
            raise PreparationError(f"{repo} has no setup in orion.toml")
        started_s = time.monotonic()
        endpoint_id = SessionId(f"prepare_{secrets.token_hex(8)}")
        endpoint = ground.broker.endpoint_for(endpoint_id)
        if not endpoint.has_broker:
            raise PreparationError(
                "repositories in cloud sandboxes need the operator's ORION_PUBLIC_URL"
            )
        spec = SandboxSpec(
            snapshot_id=ground.environment_id,
            network=endpoint.network(self._hosts.of("", repo), is_open=False),
            lifetime_s=CLONE_TIMEOUT_S + SETUP_TIMEOUT_S + SAVING_S,
            labels={"orion.managed": "true", "orion.prepares": name},
            limits=ground.limits,
        )
        try:
            async with open_sandbox(self._provider, spec) as sandbox:
                tell("cloning")
                work = _Work(
                    policy=self._policy,
                    hosts=self._hosts.of("", repo),
                    sandbox=sandbox,
                    ground=ground,
                    endpoint_id=endpoint_id,
                    repo=self._policy.spelling_of(repo),
                )
                await work.clone()
                for number, line in enumerate(self._policy.setup_of(repo), 1):
                    tell(line)
                    await work.run(line, number, until_s=started_s + self._setup_timeout_s)
                await work.seal()
                tell("saving")
                saved = await _save(sandbox, name)
        finally:
            ground.broker.close(endpoint_id)
        await self._keep_copy(saved.id)
        duration_s = round(time.monotonic() - started_s, 3)
        _log.info("repository.prepared", repo=repo, snapshot=saved.id, duration_s=duration_s)
        return saved

    async def _keep_copy(self, snapshot_id: SnapshotId) -> None:
        try:
            await self._provider.keep_copy(snapshot_id)
        except Exception as exc:  # noqa: BLE001 - the next thread makes one itself, or tells why it cannot
            _log.warning("repository.not_copied", snapshot=snapshot_id, reason=str(exc))

    async def _prepare_quietly(self, repo: str, ground: Ground, state: _State) -> None:
        try:
            await self.prepare(repo, ground)
            state.failure = None
        except (PreparationError, SandboxError, OSError) as exc:
            state.failure = self._fail(repo, str(exc))
        except Exception as exc:  # noqa: BLE001 - a bug in what is made ahead ends no service
            _log.exception("repository.failed", repo=repo)
            state.failure = self._fail(repo, type(exc).__name__)

    def _fail(self, repo: str, why: str) -> _Failure:
        reason = self._mask(why)[:MAX_TOLD_CHARS]
        _log.warning("repository.not_prepared", repo=repo, reason=reason)
        return _Failure(reason, time.monotonic() + RETRY_S)

    def _later(
        self, going: asyncio.Task[None] | None, work: Callable[[], Awaitable[object]]
    ) -> asyncio.Task[None] | None:
        """Returns the task of it: the one that is going, or a new one, while this is open."""
        if self._group is None or (going is not None and not going.done()):
            return going

        async def rest_and_work() -> None:
            await asyncio.sleep(self._rest_s)
            await work()

        return self._group.create_task(rest_and_work())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is prepared of one repository, for threads in which one agent works."""

    preparations: Preparations
    repo: str
    ground: Ground

    async def find(self) -> SnapshotId | None:
        """Returns where a new thread begins; None = nowhere yet. What is missing or old is made meanwhile."""
        found = await self.preparations.find(self.repo, self.ground)
        return found.id if found else None

    def begin(self) -> None:
        """Has it made anew in the background."""
        self.preparations.begin(self.repo, self.ground)

    def take_failure(self) -> str:
        """Returns why it could not be made, once; else an empty text."""
        return self.preparations.take_failure(self.repo, self.ground.environment_id)


@dataclass(slots=True, kw_only=True)
class _Work:
    """One preparation, in its sandbox."""

    policy: RepositoryPolicy
    hosts: Sequence[HostEntry]
    sandbox: Sandbox
    ground: Ground
    endpoint_id: SessionId
    repo: str
    found: ThreadRepository = field(init=False)
    _git_config: str = field(init=False, default="", repr=False)
    """As the clone left it."""

    def __post_init__(self) -> None:
        work = self.sandbox.paths.work
        self.found = self.policy.repository_at(
            self.repo, work, branch="", own_branches=(_OWN_BRANCH,)
        )

    async def clone(self) -> None:
        grant = self._grant(repository=RepositoryGrant(url=self.found.url, branch=""))
        async with self.ground.broker.open_grant(grant, _hooks()) as token:
            report = await self._git("clone", token)
        if report.problem is not None:
            raise PreparationError(why_not_cloned(report.problem, self.found))
        if report.is_empty:
            raise PreparationError("there is no commit in it yet")
        self._git_config = report.git_config

    async def seal(self) -> None:
        report = await self._git("seal", "")
        if report.problem is not None:
            why = find_reason(report.detail) or report.problem
            raise PreparationError(f"git does not work in it any more after its setup: {why}")

    async def run(self, line: str, number: int, *, until_s: float) -> None:
        """Runs one line as an agent would run: what it leaves in the background ends with it."""
        paths = self._paths(f"line-{number}")
        left_s = max(1.0, until_s - time.monotonic())
        command = supervise(
            AgentCommand(argv=("sh", "-c", line), env={}, files=()),
            paths=paths,
            broker=self.sandbox.paths.broker,
            limits=SupervisionLimits(
                timeout_s=left_s,
                idle_timeout_s=left_s,
                max_output_bytes=MAX_OUTPUT_BYTES,
                max_line_bytes=MAX_LINE_BYTES,
                max_disk_bytes=self.policy.max_bytes,
                max_processes=self.ground.limits.max_processes,
            ),
            cwd=self.found.directory,
        )
        await self.sandbox.write_files({file.path: file.data for file in command.files})
        hooks = _hooks()
        async with self.ground.broker.open_grant(self._grant(hosts=self.hosts), hooks):
            failure, said = await self._watch(command.argv, timeout_s=left_s + _MARGIN_S)
        if failure:
            refused = ", ".join(one.host for one in hooks.tally.refused if one.host)
            parts = (failure, refused and f"refused hosts: {refused}", " ".join(filter(None, said)))
            raise PreparationError(
                f"line {number}, `{line}`: {'; '.join(part for part in parts if part)}"
            )

    async def _watch(self, argv: Sequence[str], *, timeout_s: float) -> tuple[str, Sequence[str]]:
        """Returns why a line failed, if it did, and the last that it said."""
        said: deque[str] = deque(maxlen=LAST_LINES)
        exited: AgentExited | None = None
        lines = RecordLines(MAX_LINE_BYTES * _RECORD_FACTOR)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        process = await self.sandbox.spawn(argv)
        try:
            async with asyncio.timeout(timeout_s):
                async for event in process.events():
                    match event:
                        case ExecOutput(stream=OutputStream.STDOUT, data=data):
                            for text in lines.feed(decoder.decode(data)):
                                record = parse_record(text)
                                if isinstance(record, AgentExited):
                                    exited = record
                                elif isinstance(record, AgentLine):
                                    said.append(record.text.strip())
                        case _:
                            pass
        except TimeoutError:
            return "it took too long", said
        finally:
            await process.kill()
        if exited is None:
            return "it was lost", said
        if exited.reason != "exited":
            return _REASONS.get(exited.reason, exited.reason), said
        return f"exit code {exited.exit_code}" if exited.exit_code else "", said

    async def _git(self, action: Literal["clone", "seal"], token: str) -> RepositoryReport:
        task = RepositoryTask(
            action=action,
            broker=self.sandbox.paths.broker,
            token=git_token(token),
            url=self.found.url,
            directory=self.found.directory,
            branch="",
            own_branches=self.found.own_branches,
            name=self.policy.git_name,
            email=self.policy.git_email,
            timeout_s=CLONE_TIMEOUT_S - _MARGIN_S,
            max_bytes=self.policy.max_bytes,
            git_config=self._git_config,
        )
        return await run_repository_task(
            self.sandbox, self._paths(action), task, timeout_s=CLONE_TIMEOUT_S
        )

    def _paths(self, step: str) -> AgentPaths:
        paths = agent_paths(self.sandbox.paths)
        return replace(paths, run=f"{paths.run}/{step}")

    def _grant(
        self, *, repository: RepositoryGrant | None = None, hosts: Sequence[HostEntry] = ()
    ) -> ModelGrant:
        return ModelGrant(
            run_id=RunId(self.endpoint_id),
            models=(),
            max_calls=0,
            expires_at=datetime.now(UTC) + timedelta(seconds=CLONE_TIMEOUT_S + SETUP_TIMEOUT_S),
            session_id=self.endpoint_id,
            repository=repository,
            hosts=tuple(hosts),
        )


async def _save(sandbox: Sandbox, name: str) -> SnapshotRef:
    try:
        async with asyncio.timeout(SAVING_S):
            return await sandbox.snapshot(name=name)
    except TimeoutError as exc:
        raise PreparationError(f"it was not saved within {SAVING_S:g} s") from exc


def _hooks() -> GrantHooks:
    return GrantHooks(on_call=lambda _: None)


def _plain(repo: str) -> str:
    """Returns a repository's name as part of a snapshot's."""
    words = "-".join(repo.removesuffix(".git").split("/")[-2:])
    return re.sub(r"[^a-z0-9]+", "-", words.casefold()).strip("-")[-_NAME_CHARS:].strip("-")

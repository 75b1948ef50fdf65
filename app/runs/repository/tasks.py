"""What the operator lets be done in repositories, and how the script inside a sandbox does it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent_scripts.adapter import AgentPaths
from agent_scripts.repository import (
    RepositoryProblem,
    RepositoryReport,
    RepositoryTask,
    parse_report,
    repository_command,
)
from app.runs.attempt import Attempt
from app.runs.repository.names import (
    ThreadRepository,
    canonical_name,
    directory_name,
    repository_key,
)
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryPolicy:
    github_url: str
    """Where `owner/name` is."""
    git_name: str
    git_email: str
    pull_requests: Literal["ask", "always", "never"]
    acts_as_person: bool = False
    """Repositories are read and written in the name of whoever asks, by their own account; never by the deployment's instead."""
    max_bytes: int
    init: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands after a clone, by `owner/name` or URL."""
    setup: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands that prepare a workspace before it is a thread's, by the same."""

    def key_of(self, repo: str) -> str:
        """Returns what is equal for all spellings of one repository."""
        return repository_key(repo, self.github_url)

    def setup_of(self, repo: str) -> Sequence[str]:
        """Returns the operator's commands that prepare a repository; none where each person may see what they may read themselves, as its clone would be in a thread before that is asked."""
        return () if self.acts_as_person else self._of(self.setup, repo)

    def spelling_of(self, repo: str) -> str:
        """Returns the repository as the operator writes it whose set-up prepares it, else as it is: the directory in its copy has that name, however it is asked for."""
        named = (name for name in self.setup if self.key_of(name) == self.key_of(repo))
        return canonical_name(next(named, repo), self.github_url)

    def init_of(self, repo: str) -> Sequence[str]:
        """Returns the operator's commands after a clone."""
        return self._of(self.init, repo)

    def _of(self, commands: Mapping[str, tuple[str, ...]], repo: str) -> Sequence[str]:
        return {self.key_of(name): lines for name, lines in commands.items()}.get(
            self.key_of(repo), ()
        )

    def repository_at(
        self, repo: str, work: str, *, branch: str, own_branches: tuple[str, ...]
    ) -> ThreadRepository:
        """Returns a repository as it is in the work directory `work`."""
        name = canonical_name(repo, self.github_url)
        return ThreadRepository(
            name=name,
            url=name if "://" in name else f"{self.github_url.rstrip('/')}/{name}.git",
            directory=f"{work}/{directory_name(name)}",
            branch=branch,
            own_branches=own_branches,
        )

    def publishes(self, attempt: Attempt) -> bool:
        """Whether what it changes is pushed, and proposed, after its answer."""
        if self.pull_requests == "ask":
            return attempt.choice.wants_pull_request
        return self.pull_requests == "always"


async def run_repository_task(
    sandbox: Sandbox, paths: AgentPaths, task: RepositoryTask, *, timeout_s: float
) -> RepositoryReport:
    """Has the script inside do it; `paths` with a run directory of this task's own.

    Raises:
        SandboxError: the sandbox is lost.
    """
    command = repository_command(task, paths)
    await sandbox.write_files({file.path: file.data for file in command.files})
    try:
        result = await sandbox.exec(command.argv, timeout_s=timeout_s)
    except SandboxError as exc:
        if exc.code is not SandboxErrorCode.EXEC_TIMEOUT:
            raise
        return RepositoryReport(problem=RepositoryProblem.SLOW)
    return parse_report(result.text)

"""What an attempt does for its thread's repository: before its agent begins, and after it has ended."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent_scripts.adapter import AgentPaths
from agent_scripts.events import TurnFinished
from agent_scripts.repository import git_environment
from app.errors import ErrorCode, OrionError
from app.runs.attempt import Attempt
from app.runs.broker_ports import ModelBroker
from app.runs.git_token import git_token
from app.runs.repositories import Asking, Repositories
from app.runs.repository_names import ThreadRepository
from app.runs.waiting import UnfitSandboxError
from app.runs.workspace import Workspace
from sandbox_runtime.errors import SandboxError


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attempt works."""

    workspace: Workspace
    paths: AgentPaths
    token: str

    @property
    def asking(self) -> Asking:
        return Asking(sandbox=self.workspace.sandbox, paths=self.paths, token=self.token)


class RepositoryWork:
    """Of one attempt."""

    def __init__(self, repositories: Repositories, found: ThreadRepository) -> None:
        self._repositories = repositories
        self.found = found

    async def clone(self, attempt: Attempt, place: Place) -> None:
        """After it, `found` has the name of the thread's branch.

        Raises:
        OrionError: REPO_UNAVAILABLE.
        SandboxError: the sandbox is lost.
        UnfitSandboxError: it was kept, and is lost.
        """
        try:
            self.found = await self._repositories.prepare(
                attempt, place.workspace, self.found, place.asking
            )
        except SandboxError as exc:
            if not place.workspace.may_be_gone:
                raise
            raise UnfitSandboxError(str(exc)) from exc
        place.workspace.may_be_gone = False

    async def publish(self, attempt: Attempt, place: Place, finished: TurnFinished) -> None:
        """What a whole turn has changed, if that is wanted."""
        if finished.error is None and attempt.stop.user is None:
            await self._repositories.publish(
                attempt, self.found, place.asking, answer=finished.text
            )

    def git_environment(self, token: str) -> Mapping[str, str]:
        """For an agent that has this token."""
        policy = self._repositories.policy
        return git_environment(git_token(token), name=policy.git_name, email=policy.git_email)


def find_repository(
    repositories: Repositories | None, broker: ModelBroker, attempt: Attempt, workspace: Workspace
) -> RepositoryWork | None:
    """None = its thread works in none.

    Raises:
        OrionError: REPO_UNAVAILABLE.
    """
    session = workspace.session
    if attempt.wants_pull_request and not (attempt.repo or session.repo):
        raise OrionError(
            ErrorCode.REPO_UNAVAILABLE,
            "this thread works in no repository; begin a message with repo=owner/name",
        )
    if repositories is None or not (attempt.repo or session.repo):
        return None
    if "{relay}/broker" not in broker.endpoint_for(session.id).model_url:
        raise OrionError(
            ErrorCode.REPO_UNAVAILABLE,
            "repositories in cloud sandboxes need the operator's ORION_PUBLIC_URL",
        )
    found = repositories.find(attempt, session, workspace.sandbox.paths.work)
    return RepositoryWork(repositories, found) if found else None

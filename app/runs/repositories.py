"""The repository that a thread works in: cloned inside its sandbox before the agent, published after it when that is wanted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agent_scripts.adapter import AgentPaths
from agent_scripts.repository import (
    RepositoryProblem,
    RepositoryReport,
    RepositoryTask,
    parse_report,
    repository_command,
)
from app.errors import ErrorCode, OrionError
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.broker_ports import CodeHost, NothingToProposeError, Proposal
from app.runs.git_token import git_token
from app.runs.patience import patiently
from app.runs.repository_names import (
    ThreadRepository,
    canonical_name,
    directory_name,
    own_branches,
    repository_key,
)
from app.runs.repository_wording import (
    MAX_TOLD_CHARS,
    title_of,
    why_not_cloned,
    why_not_pushed,
)
from app.runs.session import Session, SessionChanges, SessionStore
from app.runs.workspace import Workspace
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox

CLONE_TIMEOUT_S = 300.0
INIT_TIMEOUT_S = 300.0
"""For each of the operator's commands."""
PUBLISH_TIMEOUT_S = 120.0
_MARGIN_S = 15.0
"""By which the script inside is quicker than the wait for it."""
MAX_BODY_CHARS = 4000
MAX_COMMAND_OUTPUT_BYTES = 64 * 1024

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryPolicy:
    """What the operator chose."""

    github_url: str
    """Where `owner/name` is."""
    git_name: str
    git_email: str
    pull_requests: Literal["ask", "always", "never"]
    max_bytes: int
    init: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands after a clone, by `owner/name` or URL."""


class Repositories:
    """Holds nothing of a run in between."""

    def __init__(
        self,
        *,
        policy: RepositoryPolicy,
        sessions: SessionStore,
        host: CodeHost,
        mask: Callable[[str], str],
    ) -> None:
        self.policy = policy
        self._sessions = sessions
        self._host = host
        self._mask = mask
        self._init = {
            repository_key(name, policy.github_url): commands
            for name, commands in policy.init.items()
        }

    def find(self, attempt: Attempt, session: Session, work: str) -> ThreadRepository | None:
        """The thread's repository; None = it has none.

        Raises:
            OrionError: REPO_UNAVAILABLE, the message asks for another one than its thread has, or for another branch to begin from.
        """
        wish = session.repo or attempt.repo
        if not wish:
            return None
        if session.mount_dir:
            raise _unavailable(f"agents work in a directory of the operator's here, not in {wish}")
        github_url = self.policy.github_url
        is_same = repository_key(attempt.repo, github_url) == repository_key(
            session.repo, github_url
        )
        if session.repo and attempt.is_repo_said and not is_same:
            other = f"for {attempt.repo}" if attempt.repo else "to work in none"
            raise _unavailable(f"this thread works in {session.repo}; start a new thread {other}")
        base = session.base_branch if session.repo else attempt.branch
        if base and attempt.is_branch_said and attempt.branch != base:
            raise _unavailable(
                f"this thread began from {base}; start a new thread for {attempt.branch}"
            )
        wish = canonical_name(wish, github_url)
        url = wish if "://" in wish else f"{github_url.rstrip('/')}/{wish}.git"
        return ThreadRepository(
            wish=wish,
            url=url,
            directory=f"{work}/{directory_name(wish)}",
            branch=base,
            own_branches=own_branches(session),
        )

    async def prepare(
        self, attempt: Attempt, workspace: Workspace, found: ThreadRepository, ask: "Asking"
    ) -> ThreadRepository:
        """See that the repository is there, on the thread's branch, which has its name from now on.

        Raises:
            OrionError: REPO_UNAVAILABLE, saying why.
            SandboxError: the sandbox is lost.
        """
        session = workspace.session
        if workspace.is_new or not session.repo:
            attempt.enter(f"Cloning {found.wish}")
        with attempt.trace.step("clone-repository") as step:
            report = await self._run(ask, found, "clone", timeout_s=CLONE_TIMEOUT_S)
            if report.problem is None and report.own_branch not in found.own_branches:
                # What an agent that was here before may have made of the sandbox's git is not believed.
                report = RepositoryReport(problem=RepositoryProblem.FAILED)
            if report.problem is None:
                found = replace(found, own_branches=(report.own_branch,))
            step.set(repo=found.wish, branch=found.own_branch, is_new=report.is_new)
            if report.problem is not None:
                step.fail(report.problem, self._mask(report.detail))
                _log.warning("repository.unavailable", repo=found.wish, reason=report.problem)
                raise _unavailable(why_not_cloned(report.problem, found))
        if report.is_new or not session.repo:
            begun = SessionChanges(
                repo=found.wish,
                branch=found.own_branch,
                extra=session.with_base_branch(report.base or found.branch),
            )
            updated = await patiently(lambda: self._sessions.update(session.id, **begun))
            workspace.session = updated or session  # what is written of it later keeps this
        if report.is_new:
            await self._initialise(attempt, ask.sandbox, found)
        return found

    async def _initialise(
        self, attempt: Attempt, sandbox: Sandbox, found: ThreadRepository
    ) -> None:
        """A command that fails is told with the answer; the agent works on."""
        commands = self._init.get(repository_key(found.wish, self.policy.github_url), ())
        for number, command in enumerate(commands, 1):
            attempt.enter(f"Preparing {found.wish}")
            with attempt.trace.step("initialise-repository") as step:
                step.set(number=number)
                try:
                    result = await sandbox.exec(
                        ["sh", "-c", command],
                        timeout_s=INIT_TIMEOUT_S,
                        cwd=found.directory,
                        max_output_bytes=MAX_COMMAND_OUTPUT_BYTES,
                    )
                    failure = f"exit code {result.exit_code}" if result.exit_code else ""
                except SandboxError as exc:
                    if exc.code is not SandboxErrorCode.EXEC_TIMEOUT:
                        raise
                    failure = f"longer than {INIT_TIMEOUT_S:g} s"
                if failure:
                    step.fail("init_failed", failure)
                    attempt.notes.append(
                        f"Command {number} that prepares {found.wish} failed ({failure})."
                    )
                    return

    async def publish(
        self, attempt: Attempt, found: ThreadRepository, ask: "Asking", *, answer: str
    ) -> None:
        """Push the thread's branch and open its pull request, if that is wanted; a failure is a note, not an error."""
        wanted = self.policy.pull_requests
        if not (attempt.wants_pull_request or wanted == "always"):
            return
        if wanted == "never":
            attempt.notes.append("Pull requests are turned off here.")
            return
        attempt.enter("Opening a pull request")
        with attempt.trace.step("publish-changes") as step:
            title = title_of(self._mask(attempt.run.request.options.prompt or answer))
            try:
                report = await self._run(
                    ask, found, "publish", timeout_s=PUBLISH_TIMEOUT_S, message=title
                )
                if report.problem is not None:
                    step.fail(report.problem, self._mask(report.detail))
                    why = why_not_pushed(report.problem, report.detail, found)
                    attempt.notes.append(f"The changes could not be pushed: {self._mask(why)}")
                    return
                if not attempt.wants_pull_request and not (report.commit and report.is_new):
                    return
                attempt.notes.append(await self._propose(found, report, title, answer))
                if report.left_out:
                    names = ", ".join(f"`{name}`" for name in report.left_out)[:MAX_TOLD_CHARS]
                    attempt.notes.append(
                        f"Not pushed, as a repository of its own: {self._mask(names)}"
                    )
            except (ConnectionError, SandboxError) as exc:
                reason = self._mask(str(exc))[:MAX_TOLD_CHARS]
                step.fail("publish_failed", reason)
                attempt.notes.append(f"No pull request could be opened: {reason}")

    async def _propose(
        self, found: ThreadRepository, report: RepositoryReport, title: str, answer: str
    ) -> str:
        if not report.commit:
            return "There is nothing to push."
        pushed = f"Pushed to the branch `{found.own_branch}`."
        if not report.base:
            return f"{pushed} The repository was empty, so there is nothing to merge it into."
        proposal = Proposal(
            url=found.url,
            branch=found.own_branch,
            base=report.base,
            title=title,
            body=self._mask(answer)[:MAX_BODY_CHARS],
        )
        try:
            link = await self._host.open_pull_request(proposal)
        except NothingToProposeError:
            return f"{pushed} There is nothing to propose: `{report.base}` has all of it."
        except ConnectionError as exc:
            return f"{pushed} No pull request could be opened: {self._mask(str(exc))}"
        return f"Pull request: {link}" if link else pushed

    async def _run(
        self,
        ask: "Asking",
        found: ThreadRepository,
        action: Literal["clone", "publish"],
        *,
        timeout_s: float,
        message: str = "",
    ) -> RepositoryReport:
        task = RepositoryTask(
            action=action,
            broker=ask.sandbox.paths.broker or "",
            token=git_token(ask.token),
            url=found.url,
            directory=found.directory,
            branch=found.branch,
            own_branches=found.own_branches,
            name=self.policy.git_name,
            email=self.policy.git_email,
            timeout_s=timeout_s - _MARGIN_S,
            max_bytes=self.policy.max_bytes,
            message=message,
        )
        command = repository_command(task, ask.paths)
        await ask.sandbox.write_files({file.path: file.data for file in command.files})
        try:
            result = await ask.sandbox.exec(command.argv, timeout_s=timeout_s)
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.EXEC_TIMEOUT:
                raise
            return RepositoryReport(problem=RepositoryProblem.SLOW)
        return parse_report(result.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Where git works, and by whose right."""

    sandbox: Sandbox
    paths: AgentPaths
    """With a run directory of its own."""
    token: str = field(repr=False)


def _unavailable(reason: str) -> OrionError:
    return OrionError(ErrorCode.REPO_UNAVAILABLE, reason)

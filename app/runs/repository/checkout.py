"""A repository in a thread's workspace: cloned before the agent, pushed and proposed after it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal, Protocol

from agent_scripts.adapter import AgentPaths
from agent_scripts.events import TurnFinished
from agent_scripts.repository import (
    RepositoryProblem,
    RepositoryReport,
    RepositoryTask,
    git_environment,
    with_egress,
)
from app.accounts.records import Owner
from app.aio import retry_store
from app.approvals.records import OPEN_STATES, ApprovalState
from app.approvals.rules import Deed, DeedKind
from app.errors import ErrorCode, OrionError
from app.log import get_logger
from app.pull_requests.records import PullRequest, PullRequestStore, pull_id, pull_number
from app.runs.attempt import Attempt
from app.runs.broker import NotApprovedError, git_token, slug_of
from app.runs.environment import DependenciesFact, RepositoryFact
from app.runs.repository.names import (
    MAX_TOLD_CHARS,
    ThreadRepository,
    own_branches,
    render_proposal,
    title_of,
    why_not_cloned,
    why_not_pushed,
)
from app.runs.repository.preparation import LAST_LINES, Ground, Preparation, Preparations
from app.runs.repository.tasks import RepositoryPolicy, run_repository_task
from app.runs.session import Session, SessionChanges, SessionStore
from app.runs.stop import RunStoppedError
from app.runs.warm_pool import UnhealthySandboxError
from app.runs.workspace import Workspace
from sandbox_runtime.errors import SandboxError, SandboxErrorCode

_log = get_logger(__name__)

CLONE_TIMEOUT_S = 300.0
INIT_TIMEOUT_S = 300.0
"""For each of the operator's commands."""
PUBLISH_TIMEOUT_S = 120.0
_MARGIN_S = 15.0
"""By which the script inside is quicker than the wait for it."""
PUSH_PAUSE_S = 1.0
"""Between two pushes, while somebody thinks about it."""
MAX_COMMAND_OUTPUT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    url: str
    """Of the repository, without credentials."""
    branch: str
    base: str
    acting_for: Owner | None = None
    """In whose name; None = the deployment's own."""
    title: str
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who has made a commit."""

    name: str
    email: str


class NothingToProposeError(Exception):
    """The base has all that the branch has."""


class CodeHost(Protocol):
    async def open_pull_request(self, proposal: Proposal) -> str:
        """Opens a pull request for a branch, and returns its link, or that of the one that is open already; empty when the repository is on no host that has them.

        Bounded to a minute, safe to repeat.

        Raises:
            ConnectionError: it could not be opened; the message says why and holds no secret.
            NothingToProposeError
        """
        ...

    async def admit(self, url: str, owner: Owner) -> Author | None:
        """Sees that a person may read the repository by their own account, and returns as whom its commits are made; None = it is on no host that has accounts.

        Bounded to a minute.

        Raises:
            ConnectionError: they may not, or it cannot be told now; the message says why, for the person, and holds no secret.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """Holds what work in repositories needs of others, and finds which repository a thread has."""

    policy: RepositoryPolicy
    sessions: SessionStore
    host: CodeHost
    mask: Callable[[str], str]
    preparations: Preparations | None = None
    """None = no workspaces are prepared."""
    pull_requests: PullRequestStore | None = None
    """Where those are kept that are to be looked after; None = none is."""

    def find_preparation(self, attempt: Attempt, ground: Ground) -> Preparation | None:
        """Returns what is prepared of the repository that the run would have in a new thread; None = nothing, or it has none."""
        repo = attempt.choice.repo.value
        if self.preparations is None or not self.policy.setup_of(repo):
            return None
        return Preparation(preparations=self.preparations, repo=repo, ground=ground)

    def find(self, attempt: Attempt, session: Session, work: str) -> ThreadRepository | None:
        """Returns the thread's repository; None = it has none.

        Raises:
            OrionError: REPO_UNAVAILABLE, the message asks for another one than its thread has, or for another branch to begin from.
        """
        repo = session.repo or self.policy.spelling_of(attempt.choice.repo.value)
        if not repo:
            return None
        if session.mount_dir:
            raise _unavailable(
                f"agents work in a directory of the operator's here, not in {repo}; write repo=none"
            )
        key_of = self.policy.key_of
        is_same = key_of(attempt.choice.repo.value) == key_of(session.repo)
        if session.repo and attempt.choice.repo.is_said and not is_same:
            other = (
                f"for {attempt.choice.repo.value}"
                if attempt.choice.repo.value
                else "to work in none"
            )
            raise _unavailable(f"this thread works in {session.repo}; start a new thread {other}")
        base = session.base_branch if session.repo else attempt.choice.branch.value
        if base and attempt.choice.branch.is_said and attempt.choice.branch.value != base:
            raise _unavailable(
                f"this thread began from {base}; start a new thread for {attempt.choice.branch.value}"
            )
        found = self.policy.repository_at(
            repo, work, branch=base, own_branches=own_branches(session)
        )
        if not self.policy.acts_as_person:
            return found
        request = attempt.run.request
        return replace(found, acting_for=request.owner)

    async def author_of(self, found: ThreadRepository) -> Author:
        """Returns who makes the commits of what is done in a repository now. Raises: OrionError: REPO_UNAVAILABLE, whoever asks may not read the repository."""
        if found.acting_for is None:
            return self.own_author
        try:
            author = await self.host.admit(found.url, found.acting_for)
        except ConnectionError as exc:
            raise _unavailable(str(exc)) from exc
        return author or self.own_author

    @property
    def own_author(self) -> Author:
        """Returns who makes the commits of the deployment."""
        return Author(name=self.policy.git_name, email=self.policy.git_email)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitContext:
    """Where an attempt's git works, and by whose right."""

    workspace: Workspace
    paths: AgentPaths
    """With a run directory of its own."""
    token: str = field(repr=False)


def _unavailable(reason: str) -> OrionError:
    return OrionError(ErrorCode.REPO_UNAVAILABLE, reason)


class Checkout:
    """The repository of one attempt, in its workspace."""

    def __init__(
        self,
        repositories: Repositories,
        found: ThreadRepository,
        preparation: Preparation | None = None,
    ) -> None:
        """`preparation`: of new threads; None = there is none of this repository."""
        self._repositories = repositories
        self._preparation = preparation
        self.found = found
        self.is_new = False
        """It was cloned in this attempt."""
        self._dependencies = DependenciesFact.UNKNOWN
        self._author = repositories.own_author

    async def clone(self, attempt: Attempt, context: GitContext) -> None:
        """Sees that the repository is there, on the thread's branch, which has its name in `found` from now on.

        Raises:
            OrionError: REPO_UNAVAILABLE, saying why.
            SandboxError: the sandbox is lost.
            UnhealthySandboxError: it was an idle one, and is lost.
        """
        workspace = context.workspace
        try:
            self.found = await self._clone(attempt, context)
        except SandboxError as exc:
            if not workspace.may_be_gone:
                raise
            raise UnhealthySandboxError(str(exc)) from exc
        workspace.may_be_gone = False

    async def _clone(self, attempt: Attempt, context: GitContext) -> ThreadRepository:
        found, workspace = self.found, context.workspace
        session = workspace.session
        self._author = await self._repositories.author_of(found)
        if workspace.is_new or not session.repo:
            attempt.enter(f"Cloning {found.name}")
        with attempt.trace.step("clone-repository") as step:
            report = await self._run(context, found, "clone", timeout_s=CLONE_TIMEOUT_S)
            if report.problem is None and report.own_branch not in found.own_branches:
                # What an agent that was here before may have made of the sandbox's git is not believed.
                report = RepositoryReport(problem=RepositoryProblem.FAILED)
            if report.problem is None:
                found = replace(found, own_branches=(report.own_branch,))
            step.set(
                repo=found.name,
                branch=found.own_branch,
                is_new=report.is_new,
                is_prepared=report.is_prepared,
                is_outdated=report.is_outdated,
            )
            if report.problem is not None:
                step.fail(report.problem, self._repositories.mask(report.detail))
                _log.warning("repository.unavailable", repo=found.name, reason=report.problem)
                raise _unavailable(why_not_cloned(report.problem, found))
        if report.is_new or not session.repo:
            begun = SessionChanges(
                repo=found.name,
                branch=found.own_branch,
                base_branch=report.base or found.branch,
            )
            updated = await retry_store(
                lambda: self._repositories.sessions.update(session.id, **begun)
            )
            workspace.session = updated or session  # what is written of it later keeps this
        self.is_new = report.is_new
        if report.is_new:
            self._prepare_next(attempt, report)
            await self._initialise(attempt, context, found)
        return found

    def _prepare_next(self, attempt: Attempt, report: RepositoryReport) -> None:
        """Sees to what new threads will find, and notes what this one has found."""
        preparation = self._preparation
        if preparation is None:
            return
        self._dependencies = DependenciesFact.MISSING
        if report.is_prepared:
            self._dependencies = DependenciesFact.INSTALLED
        if report.is_outdated:
            self._dependencies = DependenciesFact.OUTDATED
            preparation.begin()
        if failure := preparation.take_failure():
            attempt.notes.append(f"{self.found.name} could not be prepared: {failure}")

    async def _initialise(
        self, attempt: Attempt, context: GitContext, found: ThreadRepository
    ) -> None:
        """Runs the operator's commands, with the network of the agent; one that fails is told with the answer, and the agent works on. The files that they leave are no change of its."""
        commands = self._repositories.policy.init_of(found.name)
        if commands:
            await self._run_commands(commands, attempt, context, found)
            await self._run(context, found, "ignore", timeout_s=CLONE_TIMEOUT_S)

    async def _run_commands(
        self,
        commands: Sequence[str],
        attempt: Attempt,
        context: GitContext,
        found: ThreadRepository,
    ) -> None:
        """Runs them, up to the first that fails."""
        for number, command in enumerate(commands, 1):
            attempt.enter(f"Preparing {found.name}")
            with attempt.trace.step("initialise-repository") as step:
                step.set(number=number)
                failure, said = await self._run_command(command, context, found)
                if failure:
                    step.fail("init_failed", failure)
                    why = "; ".join(filter(None, (failure, said)))
                    told = self._repositories.mask(f"line {number}, `{command}`: {why}")
                    attempt.notes.append(
                        f"The init of {found.name} failed: {told[:MAX_TOLD_CHARS]}"
                    )
                    return

    async def _run_command(
        self, command: str, context: GitContext, found: ThreadRepository
    ) -> tuple[str, str]:
        """Returns why it failed, if it did, and the last that it said."""
        sandbox = context.workspace.sandbox
        try:
            result = await sandbox.exec(
                with_egress(["sh", "-c", command], context.paths, sandbox.paths.broker),
                timeout_s=INIT_TIMEOUT_S,
                cwd=found.directory,
                max_output_bytes=MAX_COMMAND_OUTPUT_BYTES,
            )
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.EXEC_TIMEOUT:
                raise
            return f"longer than {INIT_TIMEOUT_S:g} s", ""
        if not result.exit_code:
            return "", ""
        lines = f"{result.text}\n{result.error_text}".split("\n")
        said = [line.strip() for line in lines if line.strip()][-LAST_LINES:]
        return f"exit code {result.exit_code}", " ".join(said)

    async def publish(self, attempt: Attempt, context: GitContext, finished: TurnFinished) -> None:
        """Pushes what a whole turn has changed and opens the pull request, if that is wanted; a failure is a note, not an error."""
        if finished.error is not None or attempt.stop.user is not None:
            return
        if not self._repositories.policy.publishes(attempt):
            if attempt.choice.wants_pull_request:
                attempt.notes.append("Pull requests are turned off here.")
            return
        attempt.enter("Opening a pull request")
        with attempt.trace.step("publish-changes") as step:
            title = title_of(
                self._repositories.mask(attempt.run.request.options.prompt or finished.text)
            )
            try:
                report = await self._push(attempt, context, title)
                if report.problem is not None:
                    step.fail(report.problem, self._repositories.mask(report.detail))
                    why = why_not_pushed(report.problem, report.detail, self.found)
                    attempt.notes.append(
                        f"The changes could not be pushed: {self._repositories.mask(why)}"
                    )
                    return
                if not attempt.choice.wants_pull_request and not (report.commit and report.is_new):
                    return
                body = render_proposal(
                    self._repositories.mask(finished.text),
                    name=self._repositories.mask(attempt.asker.name),
                    user=attempt.run.request.user,
                )
                attempt.notes.append(await self._propose(attempt, report, title, body))
                if report.left_out:
                    names = ", ".join(f"`{name}`" for name in report.left_out)[:MAX_TOLD_CHARS]
                    attempt.notes.append(
                        f"Not pushed, as a repository of its own: {self._repositories.mask(names)}"
                    )
            except RunStoppedError:
                attempt.notes.append("Stopped while it was asked whether this may be published.")
            except (ConnectionError, SandboxError) as exc:
                reason = self._repositories.mask(str(exc))[:MAX_TOLD_CHARS]
                step.fail("publish_failed", reason)
                attempt.notes.append(f"No pull request could be opened: {reason}")

    async def _push(self, attempt: Attempt, context: GitContext, title: str) -> RepositoryReport:
        """Pushes what was changed; as often as it takes while people are asked whether that may be. Raises: RunStoppedError: meanwhile."""
        message = title
        if self.found.acting_for is not None:
            orion = self._repositories.own_author
            message += f"\n\nCo-authored-by: {orion.name} <{orion.email}>"
        run = partial(
            self._run, context, self.found, "publish", timeout_s=PUBLISH_TIMEOUT_S, message=message
        )
        if attempt.approvals is None:
            return await run()
        state_of = partial(attempt.approvals.state_of, DeedKind.PUSH)
        tries_with_yes = 2
        async with attempt.stop.interrupt_on_stop():
            while True:
                with attempt.time.standing_still():
                    report = await run()
                state = None if report.problem is None else await retry_store(state_of)
                # A yes may have come when the push had given up, just before this look.
                tries_with_yes -= state is ApprovalState.ALLOWED
                if state not in OPEN_STATES or not tries_with_yes:
                    return report
                await asyncio.sleep(PUSH_PAUSE_S)

    async def _propose(
        self, attempt: Attempt, report: RepositoryReport, title: str, body: str
    ) -> str:
        found = self.found
        if not report.commit:
            return "There is nothing to push."
        pushed = f"Pushed to the branch `{found.own_branch}`."
        if not report.base:
            return f"{pushed} The repository was empty, so there is nothing to merge it into."
        proposal = Proposal(
            url=found.url,
            branch=found.own_branch,
            base=report.base,
            acting_for=found.acting_for,
            title=title,
            body=body,
        )
        arguments = {"branch": proposal.branch, "base": proposal.base, "title": title, "body": body}
        try:
            await attempt.until_approved(
                Deed(kind=DeedKind.PULL_REQUEST, target=slug_of(found.url), arguments=arguments)
            )
            link = await self._repositories.host.open_pull_request(proposal)
        except NotApprovedError as exc:
            return f"{pushed} No pull request was opened: {self._repositories.mask(str(exc))}."
        except NothingToProposeError:
            return f"{pushed} There is nothing to propose: `{report.base}` has all of it."
        except ConnectionError as exc:
            return f"{pushed} No pull request could be opened: {self._repositories.mask(str(exc))}"
        await self._keep(attempt, proposal, link)
        return f"Pull request: {link}" if link else pushed

    async def _keep(self, attempt: Attempt, proposal: Proposal, link: str) -> None:
        """Has the pull request looked after, where there is a link that has a number."""
        number, store = pull_number(link), self._repositories.pull_requests
        if number is None or store is None:
            return
        run, now = attempt.run, datetime.now(UTC)
        pull = PullRequest(
            id=pull_id(link),
            link=link,
            name=slug_of(proposal.url).partition("/")[2],
            number=number,
            base=proposal.base,
            run_id=run.id,
            team=run.request.team,
            channel=run.request.channel,
            thread_ts=run.request.thread_ts,
            asker=run.request.user,
            is_external=run.request.is_external,
            is_bot=run.request.is_bot,
            acting_for=proposal.acting_for.person if proposal.acting_for else "",
            pushed_at=now,
            next_at=now,
        )
        try:
            await retry_store(partial(store.open, pull))
        except OSError as exc:
            _log.warning("pull_request.unwatched", link=link, reason=str(exc))

    async def _run(
        self,
        context: GitContext,
        found: ThreadRepository,
        action: Literal["clone", "publish", "ignore"],
        *,
        timeout_s: float,
        message: str = "",
    ) -> RepositoryReport:
        policy, sandbox = self._repositories.policy, context.workspace.sandbox
        task = RepositoryTask(
            action=action,
            broker=sandbox.paths.broker or "",
            token=git_token(context.token),
            url=found.url,
            directory=found.directory,
            branch=found.branch,
            own_branches=found.own_branches,
            name=self._author.name,
            email=self._author.email,
            timeout_s=timeout_s - _MARGIN_S,
            max_bytes=policy.max_bytes,
            message=message,
        )
        return await run_repository_task(sandbox, context.paths, task, timeout_s=timeout_s)

    def fact(self, attempt: Attempt) -> RepositoryFact:
        return RepositoryFact(
            name=self.found.name,
            branch=self.found.own_branch,
            is_published=self._repositories.policy.publishes(attempt),
            dependencies=self._dependencies,
            setup=self._repositories.policy.setup_of(self.found.name),
        )

    def git_environment(self, token: str) -> Mapping[str, str]:
        author = self._author
        return git_environment(
            git_token(token), url=self.found.url, name=author.name, email=author.email
        )


def find_checkout(
    repositories: Repositories | None, attempt: Attempt, workspace: Workspace, ground: Ground
) -> Checkout | None:
    """Returns where the run's thread works; None = in no repository.

    Raises:
        OrionError: REPO_UNAVAILABLE.
    """
    session = workspace.session
    if attempt.choice.wants_pull_request and not (attempt.choice.repo.value or session.repo):
        raise OrionError(
            ErrorCode.REPO_UNAVAILABLE,
            "this thread works in no repository; begin a message with repo=owner/name",
        )
    if repositories is None or not (attempt.choice.repo.value or session.repo):
        return None
    if not ground.broker.endpoint_for(session.id).has_broker:
        raise OrionError(
            ErrorCode.REPO_UNAVAILABLE,
            "repositories in cloud sandboxes need the operator's ORION_PUBLIC_URL",
        )
    found = repositories.find(attempt, session, workspace.sandbox.paths.work)
    if found is None:
        return None
    return Checkout(repositories, found, repositories.find_preparation(attempt, ground))

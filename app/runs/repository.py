"""The repository that a thread works in: its names, its clone before the agent, its branch and pull request after it, and the sentences about them."""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from agent_scripts.adapter import AgentPaths
from agent_scripts.events import TurnFinished
from agent_scripts.repository import (
    RepositoryProblem,
    RepositoryReport,
    RepositoryTask,
    find_reason,
    git_environment,
    parse_report,
    repository_command,
    with_egress,
)
from app.aio import retry_store
from app.errors import ErrorCode, OrionError
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.broker import ModelBroker, RepositoryGrant
from app.runs.environment import RepositoryFact
from app.runs.session import Session, SessionChanges, SessionStore
from app.runs.warm_pool import UnhealthySandboxError
from app.runs.workspace import Workspace
from sandbox_runtime.errors import SandboxError, SandboxErrorCode

_log = get_logger(__name__)

RUN_PREFIX = "sk-ant-orion-"
"""Shaped like the key it stands for: some SDKs look at the shape, and maskers know it."""
GIT_PREFIX = f"{RUN_PREFIX}git-"
MAC_BYTES = 32
_PURPOSE = b"git"


def git_token(run_token: str) -> str:
    """Returns the token for git of a run: whoever has it cannot make the run token of it, and asks no model. Text of another form stays as it is."""
    try:
        raw = decode(run_token.removeprefix(RUN_PREFIX))
    except ValueError:
        return run_token
    return GIT_PREFIX + encode(git_mac(raw[:MAC_BYTES]) + raw[MAC_BYTES:])


def git_mac(run_mac: bytes) -> bytes:
    """Returns the code of the token for git, made of the run token's one way."""
    return hmac.new(run_mac, _PURPOSE, hashlib.sha256).digest()


def encode(raw: bytes) -> str:
    """Returns text that fits in a header."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """Raises: ValueError."""
    encoded = text.encode("ascii")
    return base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))


_OWNER_AND_NAME = 2
_ID_CHARS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRepository:
    name: str
    """As people write it."""
    url: str
    directory: str
    branch: str
    """From which it begins; empty = its own."""
    own_branches: tuple[str, ...]
    """Names that its branch may get, the nicest first; a single one is its name."""

    @property
    def own_branch(self) -> str:
        return self.own_branches[0]

    @property
    def grant(self) -> RepositoryGrant:
        """Nothing may be written before its branch has its name: the first one may be another thread's."""
        is_named = len(self.own_branches) == 1
        return RepositoryGrant(url=self.url, branch=self.own_branch if is_named else "")


def canonical_name(repo: str, github_url: str) -> str:
    """Returns `owner/name` for what is at `github_url`, another https URL without a slash at its end."""
    if "://" not in repo:
        return _bare(repo)
    scheme, _, rest = repo.partition("://")
    host, _, path = rest.partition("/")
    url = f"{scheme.lower()}://{host.lower()}/{path}".rstrip("/")
    own = f"{github_url.rstrip('/')}/"
    if url.casefold().startswith(own.casefold()):
        name = _bare(url[len(own) :])
        if len(name.split("/")) == _OWNER_AND_NAME:
            return name
    return url  # with its `.git`, which not every server does without


def repository_key(repo: str, github_url: str) -> str:
    """Returns what is equal for all spellings of one repository: hosts of code do not tell upper from lower case."""
    return _bare(canonical_name(repo, github_url)).casefold()


def directory_name(repo: str) -> str:
    """Returns the last word of a repository's name, as git would take it; never one that means something else."""
    name = _bare(repo).rpartition("/")[2]
    return "repository" if name in ("", ".", "..") or name.startswith(("-", ".")) else name


def own_branches(session: Session) -> tuple[str, ...]:
    """Returns the branch that a session has; those that it may get, the nicest first, when it has none yet.

    The next ones are for a repository where that is another thread's, or in which a branch `orion` leaves none below it.
    """
    if session.repo and session.branch:
        return (session.branch,)
    name, tail = session.name, session.id[-_ID_CHARS:]
    return (f"orion/{name}", f"orion/{name}-{tail}", f"orion-{name}", f"orion-{name}-{tail}")


def _bare(name: str) -> str:
    return name.rstrip("/").removesuffix(".git")


MAX_TOLD_CHARS = 300
MAX_TITLE_CHARS = 72
MAX_BODY_CHARS = 4000
MAX_NAME_CHARS = 80
_BLANKS = re.compile(r"[ \x00-\x1f\x7f-\x9f\ud800-\udfff]+")
"""Spaces, and what no program can be handed: control characters, halves of characters."""

_SENTENCES: Mapping[RepositoryProblem, str] = {
    RepositoryProblem.MISSING: "there is no repository {repo}, or I may not see it",
    RepositoryProblem.REFUSED: "the repository {repo} does not let me in; on the operator's own code host I may be given access, elsewhere it must be public",
    RepositoryProblem.UNREACHABLE: "the server of {repo} does not answer now",
    RepositoryProblem.UNKNOWN_BRANCH: "the repository {repo} has no branch {branch}",
    RepositoryProblem.NO_DEFAULT_BRANCH: "the repository {repo} does not say which of its branches is the main one; write branch=… to choose one",
    RepositoryProblem.NO_FREE_BRANCH: "each branch that I could make for this thread in {repo} is there already; start a new one",
    RepositoryProblem.OVERTAKEN: "the branch `{own}` has commits there that are not here: somebody else pushed to it, or what was pushed before was rewritten here; write pr=yes and ask me to merge `{own}` of origin first",
    RepositoryProblem.HUGE: "the repository {repo} is larger than my workspace",
    RepositoryProblem.SLOW: "the server of {repo} took too long",
    RepositoryProblem.NO_GIT: "there is no git in this sandbox for {repo}",
    RepositoryProblem.IN_THE_WAY: "something else is already where {repo} should go in this thread; start a new one",
    RepositoryProblem.DAMAGED: "what this thread has of {repo} is damaged; start a new one",
    RepositoryProblem.FAILED: "the repository {repo} could not be cloned",
}


def why_not_cloned(problem: RepositoryProblem, found: ThreadRepository) -> str:
    """Returns the sentence for the person who asked."""
    sentence = _SENTENCES[problem]
    return sentence.format(repo=found.name, branch=found.branch, own=found.own_branch)


def why_not_pushed(problem: RepositoryProblem, detail: str, found: ThreadRepository) -> str:
    """Returns for the person who asked Orion's own sentence where the problem has one, else what the server or git says."""
    reason = find_reason(detail)[:MAX_TOLD_CHARS]
    if problem is RepositoryProblem.FAILED:
        return reason or "git failed"
    if problem is RepositoryProblem.REFUSED and reason:
        return reason
    return why_not_cloned(problem, found)


def title_of(text: str) -> str:
    """Returns the title of a commit and a pull request: the first line of what was asked, or answered."""
    line = _BLANKS.sub(" ", text.strip().partition("\n")[0]).strip("#* ")
    return line[:MAX_TITLE_CHARS] or "Changes by Orion"


CLONE_TIMEOUT_S = 300.0
INIT_TIMEOUT_S = 300.0
"""For each of the operator's commands."""
PUBLISH_TIMEOUT_S = 120.0
_MARGIN_S = 15.0
"""By which the script inside is quicker than the wait for it."""
MAX_COMMAND_OUTPUT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    url: str
    """Of the repository, without credentials."""
    branch: str
    base: str
    title: str
    body: str = field(repr=False)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryPolicy:
    github_url: str
    """Where `owner/name` is."""
    git_name: str
    git_email: str
    pull_requests: Literal["ask", "always", "never"]
    max_bytes: int
    init: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands after a clone, by `owner/name` or URL."""

    def publishes(self, attempt: Attempt) -> bool:
        """Whether what it changes is pushed, and proposed, after its answer."""
        if self.pull_requests == "ask":
            return attempt.choice.wants_pull_request
        return self.pull_requests == "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """Holds what work in repositories needs of others, and finds which repository a thread has."""

    policy: RepositoryPolicy
    sessions: SessionStore
    host: CodeHost
    mask: Callable[[str], str]

    def find(self, attempt: Attempt, session: Session, work: str) -> ThreadRepository | None:
        """Returns the thread's repository; None = it has none.

        Raises:
            OrionError: REPO_UNAVAILABLE, the message asks for another one than its thread has, or for another branch to begin from.
        """
        repo = session.repo or attempt.choice.repo.value
        if not repo:
            return None
        if session.mount_dir:
            raise _unavailable(f"agents work in a directory of the operator's here, not in {repo}")
        github_url = self.policy.github_url
        is_same = repository_key(attempt.choice.repo.value, github_url) == repository_key(
            session.repo, github_url
        )
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
        repo = canonical_name(repo, github_url)
        url = repo if "://" in repo else f"{github_url.rstrip('/')}/{repo}.git"
        return ThreadRepository(
            name=repo,
            url=url,
            directory=f"{work}/{directory_name(repo)}",
            branch=base,
            own_branches=own_branches(session),
        )

    def commands_after_clone(self, name: str) -> Sequence[str]:
        """Returns the operator's commands for a repository, in whatever spelling either names it."""
        url, init = self.policy.github_url, self.policy.init
        known = {repository_key(repo, url): commands for repo, commands in init.items()}
        return known.get(repository_key(name, url), ())


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

    def __init__(self, repositories: Repositories, found: ThreadRepository) -> None:
        self._repositories = repositories
        self.found = found

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
        if workspace.is_new or not session.repo:
            attempt.enter(f"Cloning {found.name}")
        with attempt.trace.step("clone-repository") as step:
            report = await self._run(context, found, "clone", timeout_s=CLONE_TIMEOUT_S)
            if report.problem is None and report.own_branch not in found.own_branches:
                # What an agent that was here before may have made of the sandbox's git is not believed.
                report = RepositoryReport(problem=RepositoryProblem.FAILED)
            if report.problem is None:
                found = replace(found, own_branches=(report.own_branch,))
            step.set(repo=found.name, branch=found.own_branch, is_new=report.is_new)
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
        if report.is_new:
            await self._initialise(attempt, context, found)
        return found

    async def _initialise(
        self, attempt: Attempt, context: GitContext, found: ThreadRepository
    ) -> None:
        """Runs the operator's commands, with the network of the agent; one that fails is told with the answer, and the agent works on."""
        sandbox = context.workspace.sandbox
        commands = self._repositories.commands_after_clone(found.name)
        for number, command in enumerate(commands, 1):
            attempt.enter(f"Preparing {found.name}")
            with attempt.trace.step("initialise-repository") as step:
                step.set(number=number)
                try:
                    result = await sandbox.exec(
                        with_egress(["sh", "-c", command], context.paths, sandbox.paths.broker),
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
                        f"Command {number} that prepares {found.name} failed ({failure})."
                    )
                    return

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
                report = await self._run(
                    context, self.found, "publish", timeout_s=PUBLISH_TIMEOUT_S, message=title
                )
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
                attempt.notes.append(await self._propose(self.found, report, title, body))
                if report.left_out:
                    names = ", ".join(f"`{name}`" for name in report.left_out)[:MAX_TOLD_CHARS]
                    attempt.notes.append(
                        f"Not pushed, as a repository of its own: {self._repositories.mask(names)}"
                    )
            except (ConnectionError, SandboxError) as exc:
                reason = self._repositories.mask(str(exc))[:MAX_TOLD_CHARS]
                step.fail("publish_failed", reason)
                attempt.notes.append(f"No pull request could be opened: {reason}")

    async def _propose(
        self, found: ThreadRepository, report: RepositoryReport, title: str, body: str
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
            body=body,
        )
        try:
            link = await self._repositories.host.open_pull_request(proposal)
        except NothingToProposeError:
            return f"{pushed} There is nothing to propose: `{report.base}` has all of it."
        except ConnectionError as exc:
            return f"{pushed} No pull request could be opened: {self._repositories.mask(str(exc))}"
        return f"Pull request: {link}" if link else pushed

    async def _run(
        self,
        context: GitContext,
        found: ThreadRepository,
        action: Literal["clone", "publish"],
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
            name=policy.git_name,
            email=policy.git_email,
            timeout_s=timeout_s - _MARGIN_S,
            max_bytes=policy.max_bytes,
            message=message,
        )
        command = repository_command(task, context.paths)
        await sandbox.write_files({file.path: file.data for file in command.files})
        try:
            result = await sandbox.exec(command.argv, timeout_s=timeout_s)
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.EXEC_TIMEOUT:
                raise
            return RepositoryReport(problem=RepositoryProblem.SLOW)
        return parse_report(result.text)

    def fact(self, attempt: Attempt) -> RepositoryFact:
        return RepositoryFact(
            name=self.found.name,
            branch=self.found.own_branch,
            is_published=self._repositories.policy.publishes(attempt),
        )

    def git_environment(self, token: str) -> Mapping[str, str]:
        policy = self._repositories.policy
        return git_environment(
            git_token(token), url=self.found.url, name=policy.git_name, email=policy.git_email
        )


def find_checkout(
    repositories: Repositories | None, broker: ModelBroker, attempt: Attempt, workspace: Workspace
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
    if not broker.endpoint_for(session.id).has_broker:
        raise OrionError(
            ErrorCode.REPO_UNAVAILABLE,
            "repositories in cloud sandboxes need the operator's ORION_PUBLIC_URL",
        )
    found = repositories.find(attempt, session, workspace.sandbox.paths.work)
    return Checkout(repositories, found) if found else None


def render_proposal(answer: str, *, name: str, user: str) -> str:
    """Returns the text of a pull request: the answer, and below it who asked for it in Slack.

    The name stands as code: people choose it, and `@somebody` in it would notify somebody at the code host.
    """
    shown = _BLANKS.sub(" ", name).replace("`", "'").strip()[:MAX_NAME_CHARS]
    asker = f"`{shown}` (`{user}`)" if shown and shown != user else f"`{user}`"
    return f"{answer[:MAX_BODY_CHARS]}\n\n---\nAsked for in Slack by {asker}.".lstrip()

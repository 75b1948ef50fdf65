"""What repositories, their branches and what goes wrong with them are called: for git, and for people."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent_scripts.repository import RepositoryProblem, find_reason
from app.accounts.records import Owner
from app.runs.broker import RepositoryGrant
from app.runs.session import Session

_OWNER_AND_NAME = 2
_SIGNS = re.compile(r"!(?=\[)|<(?=[A-Za-z/!])|(?<![\w.])@(?=\w)|(?<=[\w.-])#(?=\d)")
_JOINER = "\u2060"
"""Nothing that is seen: WORD JOINER."""
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
    acting_for: Owner | None = None
    """In whose name it is read and written; None = the deployment's own."""

    @property
    def own_branch(self) -> str:
        return self.own_branches[0]

    @property
    def grant(self) -> RepositoryGrant:
        """Nothing may be written before its branch has its name: the first one may be another thread's."""
        is_named = len(self.own_branches) == 1
        branch = self.own_branch if is_named else ""
        return RepositoryGrant(url=self.url, branch=branch, acting_for=self.acting_for)


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
    RepositoryProblem.MISSING: "there is no repository {repo}, or I may not see it; write repo=owner/name for another, or repo=none",
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


def render_proposal(answer: str, *, name: str, user: str) -> str:
    """Returns the text of a pull request: the answer, and below it who asked for it in Slack.

    The name stands as code: people choose it, and `@somebody` in it would notify somebody at the code host. So would the answer, which
    moreover could have pictures that browsers fetch: none of that is one any more, in code neither, as what is code there is the host's to say.
    """
    answer = _without_effect(answer)
    shown = _BLANKS.sub(" ", name).replace("`", "'").strip()[:MAX_NAME_CHARS]
    asker = f"`{shown}` (`{user}`)" if shown and shown != user else f"`{user}`"
    return f"{answer[:MAX_BODY_CHARS]}\n\n---\nAsked for in Slack by {asker}.".lstrip()


def _without_effect(text: str) -> str:
    """Returns Markdown that reads the same, without pictures, HTML, mentions of people and references to other repositories."""
    return _SIGNS.sub(lambda sign: sign[0] + _JOINER, text)

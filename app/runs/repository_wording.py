"""What people read of a thread's repository: why it cannot be had or written (lower case, no full stop), titles; pure."""

import re
from collections.abc import Mapping

from agent_scripts.repository import RepositoryProblem, find_reason
from app.runs.repository_names import ThreadRepository

MAX_TOLD_CHARS = 300
MAX_TITLE_CHARS = 72
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
    """For the person who asked."""
    sentence = _SENTENCES[problem]
    return sentence.format(repo=found.wish, branch=found.branch, own=found.own_branch)


def why_not_pushed(problem: RepositoryProblem, detail: str, found: ThreadRepository) -> str:
    """For the person who asked: Orion's own sentence where the problem has one, else what the server or git says."""
    reason = find_reason(detail)[:MAX_TOLD_CHARS]
    if problem is RepositoryProblem.FAILED:
        return reason or "git failed"
    if problem is RepositoryProblem.REFUSED and reason:
        return reason
    return why_not_cloned(problem, found)


def title_of(text: str) -> str:
    """Of a commit and a pull request: the first line of what was asked, or answered."""
    line = _BLANKS.sub(" ", text.strip().partition("\n")[0]).strip("#* ")
    return line[:MAX_TITLE_CHARS] or "Changes by Orion"

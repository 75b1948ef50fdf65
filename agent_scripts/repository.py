"""The commands by which Orion clones and publishes a thread's repository inside its sandbox, and what they report. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Literal

from agent_scripts.adapter import AgentCommand, AgentFile, AgentPaths
from agent_scripts.supervision import script_files, script_path

_CONFIG = "repository.json"
_INSIDE_FILES = ("inside/repository.py", "inside/git.py", "inside/relay.py")


class RepositoryProblem(StrEnum):
    """Why it cannot be done."""

    MISSING = "missing"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    UNKNOWN_BRANCH = "unknown_branch"
    NO_DEFAULT_BRANCH = "no_default_branch"
    NO_FREE_BRANCH = "no_free_branch"
    OVERTAKEN = "overtaken"
    """Its branch has commits at the remote that it does not have here."""
    HUGE = "huge"
    SLOW = "slow"
    NO_GIT = "no_git"
    IN_THE_WAY = "in_the_way"
    DAMAGED = "damaged"
    FAILED = "failed"


_SAID = (
    (re.compile(r"^fatal: repository '.*' not found$", re.MULTILINE), RepositoryProblem.MISSING),
    (re.compile(r"The requested URL returned error: 40[13]"), RepositoryProblem.REFUSED),
    (re.compile(r"^fatal: Authentication failed", re.MULTILINE), RepositoryProblem.REFUSED),
    (re.compile(r"^fatal: could not read Username", re.MULTILINE), RepositoryProblem.REFUSED),
    (re.compile(r"The requested URL returned error: 5\d\d"), RepositoryProblem.UNREACHABLE),
    (
        re.compile(r"! \[rejected\].*\((?:fetch first|non-fast-forward)\)"),
        RepositoryProblem.OVERTAKEN,
    ),
    (re.compile(r"! \[(?:remote )?rejected\]"), RepositoryProblem.REFUSED),
)
"""Source: git 2.39, recorded with LC_ALL=C against servers that answer so; tests/e2e/test_repositories.py sees each again."""
_REASONS = (
    re.compile(r"remote: +(?:error|fatal): +(.+)"),
    re.compile(r"remote: +(?!.*\d%)(.*[A-Za-z].*)"),
    re.compile(r"! \[(?:remote )?rejected\] .*\((.+)\)"),
    re.compile(r"(?:fatal|error): +(.+)"),
)
"""Where git's output says why, the best first: hints and the rest of it say how to use git."""
_BY_BROKER = re.compile(r"https?://[^\s'\"]*?/broker/git/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryTask:
    """Tells the script inside the sandbox what to do in a repository."""

    action: Literal["clone", "publish", "seal", "ignore"]
    broker: str
    """A unix socket's path, or a URL."""
    token: str = field(repr=False)
    url: str
    directory: str
    branch: str
    """To begin from, and to merge into; empty = the repository's own."""
    own_branches: tuple[str, ...]
    """Names for the thread's own branch, of which the first free one is taken; a single one is the thread's already."""
    name: str
    email: str
    timeout_s: float
    max_bytes: int
    message: str = field(default="", repr=False)
    git_config: str = field(default="", repr=False)
    """To seal with: as the clone's report has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryReport:
    """Tells what the script inside the sandbox did in a repository."""

    problem: RepositoryProblem | None = None
    detail: str = field(default="", repr=False)
    """Git's own words, without the broker's address."""
    is_new: bool = False
    """Cloned by this; or not published before."""
    is_empty: bool = False
    base: str = ""
    commit: str = ""
    """What is at the remote's branch of the thread now; empty = there was nothing to push."""
    own_branch: str = ""
    """The name that was taken."""
    is_prepared: bool = False
    """It was there, with what the operator's set-up had installed."""
    is_outdated: bool = False
    """Files that say what is to be installed have changed since."""
    git_config: str = field(default="", repr=False)
    """Of a clone that was just made: its configuration, as a file's text."""
    left_out: tuple[str, ...] = ()
    """Paths of repositories inside the repository, which were not pushed."""


def repository_command(task: RepositoryTask, paths: AgentPaths) -> AgentCommand:
    """Returns how to start the script with its task. `paths.run` belongs to this one start; the token's file is removed once read."""
    config_path = f"{paths.run}/{task.action}-{_CONFIG}"
    config = json.dumps({**asdict(task), "scratch": paths.run}).encode()
    return AgentCommand(
        argv=("python3", "-I", script_path(paths, "inside/repository.py"), config_path),
        env={},
        files=(
            *script_files(paths, _INSIDE_FILES),
            AgentFile(path=config_path, data=config),
        ),
    )


def with_egress(argv: Sequence[str], paths: AgentPaths, broker: str) -> Sequence[str]:
    """Returns a command that finds the proxy of its sandbox, where `repository_command` has put its files; `broker` as its task's."""
    return ("python3", "-I", script_path(paths, "inside/relay.py"), broker, *argv)


def parse_report(text: str) -> RepositoryReport:
    """Returns what the script reported; what cannot be read is a failure."""
    try:
        match json.loads(text):
            case {"problem": str(word), "detail": str(detail)}:
                said = _BY_BROKER.sub("https://", detail)
                return RepositoryReport(problem=_classify(word, said), detail=said)
            case dict() as report:
                return RepositoryReport(
                    is_new=report.get("is_new") is True,
                    is_empty=report.get("is_empty") is True,
                    base=str(report.get("base", "")),
                    commit=str(report.get("commit", "")),
                    own_branch=str(report.get("own_branch", "")),
                    is_prepared=report.get("is_prepared") is True,
                    is_outdated=report.get("is_outdated") is True,
                    git_config=str(report.get("git_config", "")),
                    left_out=tuple(map(str, report.get("left_out") or ())),
                )
            case _:
                pass
    except ValueError:
        pass
    return RepositoryReport(problem=RepositoryProblem.FAILED, detail=text[-500:])


def _classify(word: str, detail: str) -> RepositoryProblem:
    if word in set(RepositoryProblem) - {RepositoryProblem.FAILED}:
        return RepositoryProblem(word)
    found = (problem for pattern, problem in _SAID if pattern.search(detail))
    return next(found, RepositoryProblem.FAILED)


def find_reason(detail: str) -> str:
    """Returns why git did not do it, in one line of its own or of the server; empty = it does not say."""
    lines = [line.strip() for line in detail.splitlines()]
    found = (match[1] for one in _REASONS for line in lines if (match := one.match(line)))
    return next(found, "")


def git_environment(token: str, *, url: str, name: str, email: str) -> Mapping[str, str]:
    """Returns what lets the agent's own git reach its repository through the broker, at the relay of the supervisor.

    Git goes to all others as other programs do; but where the address has no `.git` at its end, also to those whose addresses begin with
    it, which the broker refuses.
    """
    relay, place = "{relay}", url.partition("://")[2]
    # What begins with it is led there: `owner/name` alone would lead `owner/name-2` there, too.
    places = [place, f"{place.removesuffix('.git')}/"] if place.endswith(".git") else [place]
    values = (
        *(
            (f"url.{relay}/broker/git/{one}.insteadOf", f"{scheme}://{one}")
            for one in places
            for scheme in ("https", "http")
        ),
        (f"http.{relay}/.extraHeader", f"Authorization: Bearer {token}"),
        (f"http.{relay}/.proxy", ""),
        ("user.name", name),
        ("user.email", email),
    )
    env = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": str(len(values))}
    for number, (key, value) in enumerate(values):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env

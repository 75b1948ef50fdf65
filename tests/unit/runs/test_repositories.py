"""Which repository a thread has, how its branch gets its name, and what is said of what was pushed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from typing_extensions import override

from agent_scripts.adapter import AgentPaths
from agent_scripts.events import TurnFinished
from agent_scripts.repository import RepositoryProblem, find_reason, parse_report
from app.accounts.records import Owner
from app.approvals.rules import Deed
from app.errors import OrionError
from app.pull_requests.records import PullRequest, pull_id
from app.runs.testing import (
    Asker,
    Author,
    Checkout,
    Choice,
    Chosen,
    GitContext,
    NothingToProposeError,
    Proposal,
    Repositories,
    RepositoryPolicy,
    Session,
    SessionId,
    Source,
    Thread,
    ThreadRepository,
    canonical_name,
    render_proposal,
    repository_key,
    title_of,
    why_not_pushed,
)
from app.store.pull_requests import MemoryPullRequestStore
from app.tracing.null import NullRunTrace
from sandbox_runtime.types import ExecResult
from tests.building import make_request, make_run

GITHUB = "https://github.com"
_NOW = datetime.now(UTC)
_SESSION = Session(
    id=SessionId("ses_00000000000a4711"),
    name="happy-fox",
    thread=Thread(team="T1", channel="C1", thread_ts="1.0"),
    provider="local",
    created_at=_NOW,
    used_at=_NOW,
)
_PATHS = AgentPaths(work="/work", home="/home", run="/run", environment="/env")


@dataclass
class _Sandbox:
    """Whose script reports this, whatever it is asked."""

    report: Mapping[str, object]
    ran: list[Sequence[str]] = field(default_factory=list)
    tasks: list[dict[str, object]] = field(default_factory=list)
    paths: Any = field(default_factory=lambda: SimpleNamespace(broker="/door", work="/work"))

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        self.tasks += [json.loads(data) for path, data in files.items() if path.endswith(".json")]

    async def exec(self, argv: Sequence[str], **_: object) -> ExecResult:
        self.ran.append(argv)
        return ExecResult(exit_code=0, stdout=json.dumps(self.report).encode(), stderr=b"")


class _FailingSandbox(_Sandbox):
    """Whose `make deps` fails, with much to say."""

    @override
    async def exec(self, argv: Sequence[str], **options: object) -> ExecResult:
        if argv[-1] == "make deps":
            return ExecResult(exit_code=2, stdout=b"x\n" * 999, stderr=b"no hunter2\n" * 99)
        return await super().exec(argv, **options)


@dataclass
class _Host:
    """Opens pull requests, or says this."""

    error: Exception | None = None
    proposals: list[Proposal] = field(default_factory=list)
    admitted: list[tuple[str, Owner]] = field(default_factory=list)

    async def admit(self, url: str, owner: Owner) -> Author | None:
        self.admitted.append((url, owner))
        if self.error:
            raise self.error
        return Author(name="ann", email="7+ann@users.noreply.github.com")

    async def open_pull_request(self, proposal: Proposal) -> str:
        self.proposals.append(proposal)
        if self.error:
            raise self.error
        return "https://github.com/acme/api/pull/1"


@dataclass
class _Sessions:
    changes: list[Mapping[str, object]] = field(default_factory=list)

    async def update(self, _id: SessionId, **changes: object) -> None:
        self.changes.append(changes)


def _repositories(
    host: _Host | None = None,
    *,
    pull_requests: Literal["ask", "always", "never"] = "ask",
    **policy: Any,
) -> tuple[Repositories, _Sessions]:
    sessions: Any = _Sessions()
    made = RepositoryPolicy(
        github_url=GITHUB,
        git_name="Orion",
        git_email="orion@example.com",
        pull_requests=pull_requests,
        max_bytes=1,
        **policy,
    )
    repositories = Repositories(
        policy=made, sessions=sessions, host=host or _Host(), mask=lambda text: text
    )
    return repositories, sessions


async def _unasked(_deed: Deed) -> None:
    """Implements Attempt.until_approved where there are no rules."""


def _attempt(repo: str = "acme/api", *, is_said: bool = True, wants: bool = False) -> Any:
    return SimpleNamespace(
        choice=Choice(
            repo=Chosen(value=repo, source=Source.MESSAGE if is_said else Source.THREAD),
            wants_pull_request=wants,
        ),
        notes=[],
        approvals=None,
        until_approved=_unasked,
        enter=lambda _phase: None,
        trace=NullRunTrace(),
        asker=Asker(name="Ada `@admin`"),
        run=make_run(make_request(text="change it")),
        stop=SimpleNamespace(user=None),
    )


def _found(repositories: Repositories, session: Session = _SESSION) -> ThreadRepository:
    found = repositories.find(_attempt(), session, "/work")
    assert found is not None
    return found


def _checkout(repositories: Repositories) -> Checkout:
    return Checkout(repositories, _found(repositories))


def _context(sandbox: Any) -> GitContext:
    workspace: Any = SimpleNamespace(
        session=_SESSION, sandbox=sandbox, is_new=True, may_be_gone=False
    )
    return GitContext(workspace=workspace, paths=_PATHS, token="t")


@pytest.mark.parametrize(
    ("repo", "name"),
    [
        ("acme/api", "acme/api"),
        ("acme/api.git/", "acme/api"),
        ("https://github.com/acme/api", "acme/api"),
        ("HTTPS://GitHub.com/acme/api.git/", "acme/api"),
        ("https://github.com.evil.test/acme/api", "https://github.com.evil.test/acme/api"),
        ("https://Git.Example/Acme/API.git/", "https://git.example/Acme/API.git"),
    ],
)
def test_one_name_for_each_repository(repo: str, name: str) -> None:
    """What is on the operator's host is `owner/name`; case does not make another one."""
    assert canonical_name(repo, GITHUB) == name
    assert repository_key(repo.upper().replace(".GIT", ".git"), GITHUB) == repository_key(
        repo, GITHUB
    )


def test_a_thread_knows_its_repository_in_any_spelling() -> None:
    """It stays where it is; only another one is refused."""
    repositories, _ = _repositories()
    has = replace(_SESSION, repo="acme/api", branch="orion/happy-fox")
    for repo in ("Acme/API", "acme/api.git/", "https://github.com/acme/api"):
        found = repositories.find(_attempt(repo), has, "/work")
        assert found is not None
        assert (found.name, found.url) == ("acme/api", "https://github.com/acme/api.git")
        assert found.directory == "/work/api"
    with pytest.raises(OrionError, match="works in acme/api"):
        repositories.find(_attempt("acme/other"), has, "/work")


def test_a_prepared_repository_is_spelt_as_the_operator_does() -> None:
    """In a new thread, whose directory is that of the copy; an older one goes on in its own."""
    repositories, _ = _repositories(setup={"Acme/Api": ("make",)})
    asked = _attempt("acme/API.git")
    new = repositories.find(asked, _SESSION, "/work")
    assert new is not None
    assert (new.name, new.directory) == ("Acme/Api", "/work/Api")
    old = repositories.find(asked, replace(_SESSION, repo="acme/API"), "/work")
    assert old is not None
    assert old.directory == "/work/API"


async def test_the_branch_gets_its_name_with_the_clone() -> None:
    """Before, nothing may be written; then only what the clone took, which the session remembers."""
    repositories, sessions = _repositories()
    checkout = _checkout(repositories)
    found = checkout.found
    assert found.own_branches[:2] == ("orion/happy-fox", "orion/happy-fox-4711")
    assert found.grant.branch == ""
    sandbox = _Sandbox({"is_new": True, "own_branch": "orion-happy-fox"})
    await checkout.clone(_attempt(), _context(sandbox))
    named = checkout.found
    assert named.grant.branch == named.own_branch == "orion-happy-fox"
    (changes,) = sessions.changes
    assert (changes["repo"], changes["branch"]) == ("acme/api", "orion-happy-fox")
    known = replace(_SESSION, repo="acme/api", branch="orion-happy-fox")
    assert _found(repositories, known).grant.branch == "orion-happy-fox"


async def test_a_name_that_was_not_offered_is_not_believed() -> None:
    """A sandbox whose git was changed by an agent cannot choose what may be pushed."""
    repositories, sessions = _repositories()
    sandbox = _Sandbox({"is_new": True, "own_branch": "main"})
    with pytest.raises(OrionError, match="could not be cloned"):
        await _checkout(repositories).clone(_attempt(), _context(sandbox))
    assert sessions.changes == []


async def test_commands_of_the_operator_hold_for_all_spellings() -> None:
    """As `orion.toml` writes the repository, and as a message does."""
    repositories, _ = _repositories(init={"https://github.com/Acme/API.git": ("make deps",)})
    sandbox = _Sandbox({"is_new": True, "own_branch": "orion/happy-fox"})
    await _checkout(repositories).clone(_attempt(), _context(sandbox))
    assert list(sandbox.ran[-2])[-3:] == ["sh", "-c", "make deps"]
    assert sandbox.ran[-1][-1].endswith("repository.json")


async def test_a_command_that_fails_is_told_with_what_it_said() -> None:
    """Its line and its last words: masked, and shortened."""
    repositories, _ = _repositories(init={"acme/api": ("make deps",)})
    repositories = replace(repositories, mask=lambda text: text.replace("hunter2", "***"))
    attempt = _attempt()
    sandbox = _FailingSandbox({"is_new": True, "own_branch": "orion/happy-fox"})
    await _checkout(repositories).clone(attempt, _context(sandbox))
    (note,) = attempt.notes
    assert note.startswith(
        "The init of acme/api failed: line 1, `make deps`: exit code 2; no *** no ***"
    )
    assert "hunter2" not in note
    assert len(note) < 350


@pytest.mark.parametrize(
    ("report", "wants", "notes"),
    [
        ({"base": "main", "commit": ""}, False, []),
        ({"base": "main", "commit": ""}, True, ["There is nothing to push."]),
        ({"base": "main", "commit": "1"}, False, []),
        (
            {"base": "main", "commit": "1"},
            True,
            ["Pull request: https://github.com/acme/api/pull/1"],
        ),
        (
            {"base": "main", "commit": "1", "is_new": True, "left_out": ["vendor"]},
            False,
            [
                "Pull request: https://github.com/acme/api/pull/1",
                "Not pushed, as a repository of its own: `vendor`",
            ],
        ),
    ],
)
async def test_what_is_told_of_a_push(
    report: Mapping[str, object], notes: Sequence[str], *, wants: bool
) -> None:
    """Where all answers publish, one that changed nothing says nothing; who asks for a pull request gets an answer."""
    repositories, _ = _repositories(pull_requests="always")
    attempt = _attempt(wants=wants)
    checkout = _checkout(repositories)
    await checkout.publish(attempt, _context(_Sandbox(report)), TurnFinished(text="done"))
    assert attempt.notes == list(notes)


async def test_a_pull_request_names_who_asked() -> None:
    """Below the answer, by name and Slack id, as code: nobody at the code host is notified by a name."""
    host = _Host()
    repositories, _ = _repositories(host)
    sandbox = _Sandbox({"base": "main", "commit": "1", "is_new": True})
    answered = TurnFinished(text="x" * 9_000)
    await _checkout(repositories).publish(_attempt(wants=True), _context(sandbox), answered)
    (proposal,) = host.proposals
    answer, _, asker = proposal.body.partition("\n\n---\n")
    assert len(answer) == 4_000
    assert asker == "Asked for in Slack by `Ada '@admin'` (`U1`)."


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("![x](https://e.example/?d=1)", "!~[x](https://e.example/?d=1)"),
        ("<img src='https://e.example'>", "<~img src='https://e.example'>"),
        ("@someone, a@b.example", "@~someone, a@b.example"),
        ("fixes #12, see evil/repo#1", "fixes #12, see evil/repo#~1"),
        ("[a link](https://e.example)", "[a link](https://e.example)"),
        # What is code is not guessed: each of these is none at the host.
        ("`![x](https://e.example)", "`!~[x](https://e.example)"),
        ("``![x](https://e.example)`", "``!~[x](https://e.example)`"),
        ("\\`![x](https://e.example)`", "\\`!~[x](https://e.example)`"),
        ("`````\n```\n`````\n![x](y)\n```\n", "`````\n```\n`````\n!~[x](y)\n```\n"),
    ],
)
def test_what_an_answer_would_do_at_the_code_host(answer: str, shown: str) -> None:
    """Nothing of it is fetched, nobody notified and no other repository referred to; to the eye it stays as it is."""
    body = render_proposal(answer, name="Ada", user="U1")
    assert body.replace("\u2060", "~").startswith(f"{shown}\n\n---")
    assert body.replace("\u2060", "").startswith(answer)


class _Flaky(MemoryPullRequestStore):
    """Is locked once."""

    is_locked = True

    @override
    async def open(self, pull: PullRequest) -> None:
        if self.is_locked:
            self.is_locked = False
            raise OSError("locked")
        await super().open(pull)


async def test_what_is_proposed_is_looked_after() -> None:
    """From the thread of its run, for whoever asked, in whose name it was pushed; a database that is locked for a moment loses it not."""
    store = _Flaky()
    repositories, _ = _repositories(acts_as_person=True)
    repositories = replace(repositories, pull_requests=store)
    attempt = _attempt(wants=True)
    attempt.run = make_run()
    sandbox = _Sandbox({"base": "main", "commit": "1", "is_new": True})
    await _checkout(repositories).publish(attempt, _context(sandbox), TurnFinished(text="done"))
    kept = await store.get(pull_id("https://github.com/acme/api/pull/1"))
    assert kept is not None
    request = attempt.run.request
    assert (kept.name, kept.number, kept.base) == ("acme/api", 1, "main")
    assert (kept.thread_ts, kept.asker) == (request.thread_ts, request.user)
    assert (kept.acting_for, kept.next_at) == (request.user, kept.pushed_at)


async def test_nothing_to_propose_is_no_failure() -> None:
    """GitHub says so of a branch whose commits its base has."""
    repositories, _ = _repositories(_Host(NothingToProposeError()))
    attempt = _attempt(wants=True)
    sandbox = _Sandbox({"base": "main", "commit": "1", "is_new": True})
    await _checkout(repositories).publish(attempt, _context(sandbox), TurnFinished(text="done"))
    (note,) = attempt.notes
    assert "nothing to propose: `main` has all of it" in note


async def test_what_is_done_for_a_person_is_theirs() -> None:
    """They may read it at each turn anew; clone, push and pull request are in their name, Orion is the co-author."""
    host = _Host()
    repositories, _ = _repositories(host, acts_as_person=True)
    checkout, ann = _checkout(repositories), Owner(team="T1", person="U1")
    sandbox = _Sandbox({"is_new": True, "own_branch": "orion/happy-fox"})
    await checkout.clone(_attempt(), _context(sandbox))
    assert host.admitted == [("https://github.com/acme/api.git", ann)]
    assert checkout.found.grant.acting_for == ann
    sandbox.report = {"base": "main", "commit": "1", "is_new": True}
    await checkout.publish(_attempt(wants=True), _context(sandbox), TurnFinished(text="done"))
    task = sandbox.tasks[-1]
    assert (task["name"], task["email"]) == ("ann", "7+ann@users.noreply.github.com")
    assert str(task["message"]).endswith("\n\nCo-authored-by: Orion <orion@example.com>")
    assert host.proposals[0].acting_for == ann


def test_nothing_is_prepared_where_each_acts_for_themselves() -> None:
    """A thread has its copy before it is asked who may read it, and keeps it for whoever writes next."""
    for acts_as_person in (False, True):
        repositories, _ = _repositories(
            setup={"acme/api": ("make",)}, acts_as_person=acts_as_person
        )
        assert bool(repositories.policy.setup_of("acme/api")) is not acts_as_person


async def test_who_may_not_read_it_gets_no_turn_in_it() -> None:
    """A clone that another person's message has made is not theirs either."""
    repositories, _ = _repositories(
        _Host(ConnectionError("your GitHub account is not linked")), acts_as_person=True
    )
    sandbox = _Sandbox({"is_new": False, "own_branch": "orion/happy-fox"})
    with pytest.raises(OrionError, match="account is not linked"):
        await _checkout(repositories).clone(_attempt(), _context(sandbox))
    assert sandbox.ran == []


_HINTS = "error: failed to push some refs to 'http://127.0.0.1:4711/broker/git/github.com/acme/api.git'\nhint: Updates were rejected\n"


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        (f" ! [rejected] 1 -> orion/x (fetch first)\n{_HINTS}", "somebody else pushed"),
        (f" ! [rejected] 1 -> orion/x (non-fast-forward)\n{_HINTS}", "somebody else pushed"),
        (
            f"remote: error: GH013: Repository rule violations\n ! [remote rejected] 1 -> x (hook declined)\n{_HINTS}",
            "GH013: Repository rule violations",
        ),
        (
            f"remote: GitLab: You are not allowed\n ! [remote rejected] 1 -> x (hook declined)\n{_HINTS}",
            "GitLab: You are not allowed",
        ),
        (
            f" ! [remote rejected] 1 -> x (only the branch y may be pushed from here)\n{_HINTS}",
            "only the branch y may be pushed from here",
        ),
        (
            "fatal: unable to access 'http://127.0.0.1:4711/broker/git/github.com/acme/api.git/': Failed to connect",
            "unable to access 'https://github.com/acme/api.git/': Failed to connect",
        ),
    ],
)
def test_why_something_was_not_pushed(detail: str, told: str) -> None:
    """One sentence, of Orion's own or the server's; never git's hints, never the broker's address."""
    report = parse_report(json.dumps({"problem": "failed", "detail": detail}))
    assert report.problem is not None
    said = why_not_pushed(report.problem, report.detail, _found(_repositories()[0]))
    assert told in said
    assert "hint" not in said
    assert "broker" not in report.detail


@pytest.mark.parametrize("problem", RepositoryProblem)
def test_each_problem_has_a_sentence(problem: RepositoryProblem) -> None:
    """Also when git says nothing."""
    assert find_reason("") == ""
    assert why_not_pushed(problem, "", _found(_repositories()[0]))


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n## Fix it \r\nmore", "Fix it"),
        ("Fix\0\0it \x1b[1mnow\x85", "Fix it [1mnow"),
        ("Fix \ud83d it", "Fix it"),
        ("**\0**\nmore", "Changes by Orion"),
    ],
)
def test_a_title_is_one_line_that_git_takes(text: str, title: str) -> None:
    """Whatever an agent writes: no control characters, no halves of characters."""
    assert title_of(text) == title

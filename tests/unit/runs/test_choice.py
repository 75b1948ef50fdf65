"""Which agent and model a run gets, and from whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.errors import ErrorCode
from app.runs.testing import (
    Catalog,
    CatalogAgent,
    Chosen,
    Defaults,
    Outcome,
    Run,
    RunOptions,
    RunState,
    SelectionContext,
    Session,
    Source,
    choose,
    find_problem,
    session_id_for,
)
from tests.building import T0, make_request, make_run

CATALOG = Catalog(
    agents={
        "anthropic": CatalogAgent(model="a-1"),
        "claude": CatalogAgent(
            model="c-1",
            source=Source.SETTING,
            models=("opus", "c-2"),
        ),
    },
    agent="anthropic",
    sandboxes={"local": "local", "docker": "docker"},
    provider="local",
)


def _ran(text: str, agent: str, error_code: ErrorCode | None = None) -> Run:
    return replace(
        make_run(),
        request=make_request(text=text),
        agent=agent,
        attempt=1,
        outcome=Outcome(state=RunState.FAILED, error_code=error_code) if error_code else None,
    )


def _session(**fields: Any) -> Session:
    defaults = {"repo": "", **fields}
    thread = make_request().thread
    return Session(
        id=session_id_for(thread),
        name="happy-fox",
        thread=thread,
        created_at=T0,
        used_at=T0,
        **{"provider": "docker", "agent": "claude", **defaults},
    )


@pytest.mark.parametrize(
    ("said", "context", "agent", "model"),
    [
        (RunOptions(), {}, ("anthropic", "default"), ("a-1", "default")),
        (RunOptions(agent="claude"), {}, ("claude", "message"), ("c-1", "setting")),
        (RunOptions(), {"file": RunOptions(agent="claude", model="c-2")}, ("claude", "orion.toml"), ("c-2", "orion.toml")),
        (
            RunOptions(),
            {"file": RunOptions(agent="anthropic"), "channel": Defaults(agent="claude")},
            ("claude", "channel"),
            ("c-1", "setting"),
        ),
        (
            RunOptions(),
            {"channel": Defaults(agent="claude", model="c-2", model_agent="claude"), "person": Defaults(agent="anthropic")},
            ("anthropic", "you"),
            ("a-1", "default"),
        ),
        (
            RunOptions(),
            {"person": Defaults(agent="anthropic"), "earlier": [_ran("use claude model=c-2 hi", "claude"), _ran("hi", "claude")]},
            ("claude", "thread"),
            ("c-2", "thread"),
        ),
        (
            RunOptions(agent="anthropic"),
            {"earlier": [_ran("use claude model=c-2 hi", "claude")]},
            ("anthropic", "message"),
            ("a-1", "default"),
        ),
        (RunOptions(), {"person": Defaults(agent="gone")}, ("anthropic", "default"), ("a-1", "default")),
        (
            RunOptions(agent="claude"),
            {"person": Defaults(model="c-9", model_agent="claude")},
            ("claude", "message"),
            ("c-1", "setting"),
        ),
    ],
)  # fmt: skip
def test_the_nearest_wish_counts(
    said: RunOptions, context: dict[str, object], agent: tuple[str, str], model: tuple[str, str]
) -> None:
    """A model is dropped with its agent; what is not offered (any more) does not count."""
    choice = choose(said, SelectionContext(**context), CATALOG)  # type: ignore[arg-type]  # fields by name
    assert (choice.agent.value, str(choice.agent.source)) == agent
    assert (choice.model.value, str(choice.model.source)) == model


def test_a_branch_belongs_to_its_repository() -> None:
    """Another repository drops it; a branch alone is of the thread's repository."""
    context = SelectionContext(person=Defaults(repo="acme/api", branch="dev"))
    assert choose(RunOptions(), context, CATALOG).branch.value == "dev"
    assert choose(RunOptions(repo="acme/web"), context, CATALOG).branch.value == ""
    branch = choose(RunOptions(branch="fix"), context, CATALOG)
    assert (branch.repo.value, branch.branch.value) == ("acme/api", "fix")


@pytest.mark.parametrize(
    "person", [Defaults(), Defaults(sandbox="local", repo="bob/web", branch="release")]
)
def test_a_thread_stays_where_its_files_are(person: Defaults) -> None:
    """Whoever asks next, and whatever that person has for a default: provider, repository and its branch are the thread's."""
    session = _session(repo="acme/api", base_branch="dev")
    context = SelectionContext(earlier=[_ran("look", "claude")], session=session, person=person)
    choice = choose(RunOptions(), context, CATALOG)
    found = (choice.sandbox, choice.repo, choice.branch)
    assert [one.value for one in found] == ["docker", "acme/api", "dev"]
    assert {one.source for one in found} == {Source.THREAD}
    assert choose(RunOptions(sandbox="local"), context, CATALOG).sandbox.value == "local"


def test_a_chosen_model_stays_with_its_thread_and_agent() -> None:
    """One that a person or channel chose; the operator's own may be changed under a thread."""
    context = SelectionContext(earlier=[_ran("hi", "claude")], session=_session(chosen_model="c-2"))
    choice = choose(RunOptions(), context, CATALOG)
    assert (choice.model.value, choice.chosen_model) == ("c-2", "c-2")
    assert choose(RunOptions(agent="anthropic"), context, CATALOG).model.value == "a-1"
    assert choose(RunOptions(agent="claude"), SelectionContext(), CATALOG).chosen_model == ""
    file = SelectionContext(file=RunOptions(agent="claude", model="c-2"))
    assert choose(RunOptions(), file, CATALOG).chosen_model == ""


def test_a_repository_that_could_not_be_had_is_kept() -> None:
    """With its branch: the next message tries it again, unless it says another; what the thread has a clone of stays that."""
    failed = _ran("repo=acme/api branch=dev fix", "claude", ErrorCode.REPO_UNAVAILABLE)
    context = SelectionContext(earlier=[failed])
    choice = choose(RunOptions(), context, CATALOG)
    assert (choice.agent.value, choice.repo.value, choice.branch.value) == (
        "claude",
        "acme/api",
        "dev",
    )
    assert {choice.repo.source, choice.branch.source} == {Source.THREAD}
    other = choose(RunOptions(repo="acme/web"), context, CATALOG)
    assert (other.repo.value, other.branch.value) == ("acme/web", "")
    assert choose(RunOptions(repo="none"), context, CATALOG).repo.value == ""
    cloned = choose(RunOptions(), replace(context, session=_session(repo="acme/web")), CATALOG)
    assert (cloned.repo.value, cloned.branch.value) == ("acme/web", "")


def test_none_is_no_repository() -> None:
    """Said, or by default: it hides a repository that is further away, and its branch."""
    person = Defaults(repo="acme/api", branch="dev")
    choice = choose(RunOptions(repo="none"), SelectionContext(person=person), CATALOG)
    assert (choice.repo, choice.branch.value) == (Chosen(value="", source=Source.MESSAGE), "")
    context = SelectionContext(person=Defaults(repo="none"), channel=person)
    assert choose(RunOptions(), context, CATALOG).repo == Chosen(value="", source=Source.PERSON)


@pytest.mark.parametrize(
    ("said", "agent", "problem"),
    [
        (RunOptions(agent="claude", model="opus"), "", ""),
        (RunOptions(model="anything"), "", ""),
        (RunOptions(model="anything"), "claude", "there is no model 'anything'"),
        (
            RunOptions(agent="claude", model="ops"),
            "",
            "did you mean opus? There are: c-1, c-2, opus",
        ),
        (RunOptions(agent="codex"), "", "there is no agent 'codex' here"),
    ],
)
def test_what_is_not_offered_is_told(said: RunOptions, agent: str, problem: str) -> None:
    """With the nearest, and with what there is."""
    found = find_problem(said, CATALOG.agents, agent)
    assert problem in found
    assert bool(found) == bool(problem)

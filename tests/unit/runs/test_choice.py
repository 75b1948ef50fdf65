"""Which agent and model a run gets, and from whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.errors import ErrorCode
from app.runs.choice import (
    AgentOffer,
    Chosen,
    Circumstances,
    Offers,
    Source,
    choose,
    find_problem,
)
from app.runs.defaults import Defaults
from app.runs.model import Run
from app.runs.options import Wishes
from app.runs.session import Session, session_id_for
from tests.building import T0, make_request, make_run

OFFERS = Offers(
    agents={
        "anthropic": AgentOffer(model="a-1"),
        "claude": AgentOffer(
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
        error_code=error_code,
    )


def _session(**fields: Any) -> Session:
    defaults = {"repo": "", "extra": {}, **fields}
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
    ("said", "around", "agent", "model"),
    [
        (Wishes(), {}, ("anthropic", "default"), ("a-1", "default")),
        (Wishes(agent="claude"), {}, ("claude", "message"), ("c-1", "setting")),
        (Wishes(), {"file": Wishes(agent="claude", model="c-2")}, ("claude", "orion.toml"), ("c-2", "orion.toml")),
        (
            Wishes(),
            {"file": Wishes(agent="anthropic"), "channel": Defaults(agent="claude")},
            ("claude", "channel"),
            ("c-1", "setting"),
        ),
        (
            Wishes(),
            {"channel": Defaults(agent="claude", model="c-2", model_agent="claude"), "person": Defaults(agent="anthropic")},
            ("anthropic", "you"),
            ("a-1", "default"),
        ),
        (
            Wishes(),
            {"person": Defaults(agent="anthropic"), "earlier": [_ran("use claude model=c-2 hi", "claude"), _ran("hi", "claude")]},
            ("claude", "thread"),
            ("c-2", "thread"),
        ),
        (
            Wishes(agent="anthropic"),
            {"earlier": [_ran("use claude model=c-2 hi", "claude")]},
            ("anthropic", "message"),
            ("a-1", "default"),
        ),
        (Wishes(), {"person": Defaults(agent="gone")}, ("anthropic", "default"), ("a-1", "default")),
        (
            Wishes(agent="claude"),
            {"person": Defaults(model="c-9", model_agent="claude")},
            ("claude", "message"),
            ("c-1", "setting"),
        ),
    ],
)  # fmt: skip
def test_the_nearest_wish_counts(
    said: Wishes, around: dict[str, object], agent: tuple[str, str], model: tuple[str, str]
) -> None:
    """A model is dropped with its agent; what is not offered (any more) does not count."""
    choice = choose(said, Circumstances(**around), OFFERS)  # type: ignore[arg-type]  # fields by name
    assert (choice.agent.value, str(choice.agent.source)) == agent
    assert (choice.model.value, str(choice.model.source)) == model


def test_a_branch_belongs_to_its_repository() -> None:
    """Another repository drops it; a branch alone is of the thread's repository."""
    around = Circumstances(person=Defaults(repo="acme/api", branch="dev"))
    assert choose(Wishes(), around, OFFERS).branch.value == "dev"
    assert choose(Wishes(repo="acme/web"), around, OFFERS).branch.value == ""
    branch = choose(Wishes(branch="fix"), around, OFFERS)
    assert (branch.repo.value, branch.branch.value) == ("acme/api", "fix")


@pytest.mark.parametrize(
    "person", [Defaults(), Defaults(sandbox="local", repo="bob/web", branch="release")]
)
def test_a_thread_stays_where_its_files_are(person: Defaults) -> None:
    """Whoever asks next, and whatever that person has for a default: provider, repository and its branch are the thread's."""
    session = _session(repo="acme/api", extra={"base_branch": "dev"})
    around = Circumstances(earlier=[_ran("look", "claude")], session=session, person=person)
    choice = choose(Wishes(), around, OFFERS)
    found = (choice.sandbox, choice.repo, choice.branch)
    assert [one.value for one in found] == ["docker", "acme/api", "dev"]
    assert {one.source for one in found} == {Source.THREAD}
    assert choose(Wishes(sandbox="local"), around, OFFERS).sandbox.value == "local"


def test_a_chosen_model_stays_with_its_thread_and_agent() -> None:
    """One that a person or channel chose; the operator's own may be changed under a thread."""
    around = Circumstances(
        earlier=[_ran("hi", "claude")], session=_session(extra={"chosen_model": "c-2"})
    )
    choice = choose(Wishes(), around, OFFERS)
    assert (choice.model.value, choice.chosen_model) == ("c-2", "c-2")
    assert choose(Wishes(agent="anthropic"), around, OFFERS).model.value == "a-1"
    assert choose(Wishes(agent="claude"), Circumstances(), OFFERS).chosen_model == ""
    file = Circumstances(file=Wishes(agent="claude", model="c-2"))
    assert choose(Wishes(), file, OFFERS).chosen_model == ""


def test_a_repository_that_could_not_be_had_is_not_kept() -> None:
    """Neither the repository of a first message nor its branch; who answered is."""
    failed = _ran("repo=acme/wrong branch=nope fix", "claude", ErrorCode.REPO_UNAVAILABLE)
    choice = choose(Wishes(), Circumstances(earlier=[failed]), OFFERS)
    assert (choice.agent.value, choice.repo.value, choice.branch.value) == ("claude", "", "")


def test_none_is_no_repository() -> None:
    """Said, or by default: it hides a repository that is further away, and its branch."""
    person = Defaults(repo="acme/api", branch="dev")
    choice = choose(Wishes(repo="none"), Circumstances(person=person), OFFERS)
    assert (choice.repo, choice.branch.value) == (Chosen(value="", source=Source.MESSAGE), "")
    around = Circumstances(person=Defaults(repo="none"), channel=person)
    assert choose(Wishes(), around, OFFERS).repo == Chosen(value="", source=Source.PERSON)


@pytest.mark.parametrize(
    ("said", "agent", "problem"),
    [
        (Wishes(agent="claude", model="opus"), "", ""),
        (Wishes(model="anything"), "", ""),
        (Wishes(model="anything"), "claude", "there is no model 'anything'"),
        (Wishes(agent="claude", model="ops"), "", "did you mean opus? There are: c-1, c-2, opus"),
        (Wishes(agent="codex"), "", "there is no agent 'codex' here"),
    ],
)
def test_what_is_not_offered_is_told(said: Wishes, agent: str, problem: str) -> None:
    """With the nearest, and with what there is."""
    found = find_problem(said, OFFERS.agents, agent)
    assert problem in found
    assert bool(found) == bool(problem)

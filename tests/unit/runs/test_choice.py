"""Which agent and model a run gets, and from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.runs.choice import AgentOffer, Circumstances, Offers, Source, choose, find_problem
from app.runs.defaults import Defaults
from app.runs.model import Run
from app.runs.options import Wishes
from tests.building import make_request, make_run

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


def _ran(text: str, agent: str) -> Run:
    return replace(make_run(), request=make_request(text=text), agent=agent, attempt=1)


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
    ("said", "agent", "problem"),
    [
        (Wishes(agent="claude", model="opus"), "", ""),
        (Wishes(model="anything"), "", ""),
        (Wishes(model="anything"), "claude", "there is no model 'anything'"),
        (Wishes(agent="claude", model="ops"), "", "did you mean opus?"),
        (Wishes(agent="codex"), "", "there is no agent 'codex' here"),
    ],
)
def test_what_is_not_offered_is_told(said: Wishes, agent: str, problem: str) -> None:
    """With the nearest, and with what there is."""
    found = find_problem(said, OFFERS.agents, agent)
    assert problem in found
    assert bool(found) == bool(problem)

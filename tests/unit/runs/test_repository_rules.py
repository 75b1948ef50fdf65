"""Which repository a message means: never a wrong one; where it is open, the person is asked."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.runs.testing import (
    Catalog,
    CatalogAgent,
    Choice,
    Defaults,
    RepositoryRule,
    RunOptions,
    SelectionContext,
    Source,
    choose,
)
from tests.building import make_request, make_run

QUESTIONS = tomllib.loads(Path("tests/data/repository_questions.toml").read_text())
CATALOG = Catalog(
    agents={"claude": CatalogAgent(model="opus")}, agent="claude", sandboxes={}, provider="local"
)
RULES = (RepositoryRule(words=("invoice", "tax rate"), repo="acme/billing"),)
CONTEXT = SelectionContext(rules=RULES, text="fix the invoice")


def rules_of(tables: list[Mapping[str, Any]]) -> tuple[RepositoryRule, ...]:
    return tuple(RepositoryRule(words=tuple(one["words"]), repo=one["repo"]) for one in tables)


def labelled() -> Iterator[tuple[str, str, str]]:
    for name, place in QUESTIONS["places"].items():
        for question, label in place["questions"]:
            yield name, question, label


def chosen(context: SelectionContext, said: RunOptions | None = None) -> Choice:
    return choose(said or RunOptions(), context, CATALOG)


def answered(name: str, question: str) -> str:
    """In the words of a label."""
    place = QUESTIONS["places"][name]
    context = SelectionContext(
        rules=(*rules_of(place.get("rules", [])), *rules_of(QUESTIONS["rules"])),
        text=question,
        file=RunOptions(repo=place.get("default", "")),
        person=Defaults(repo=place.get("own", "")),
    )
    choice = chosen(context)
    assert not (choice.candidates and choice.repo.value)
    return "ask" if choice.candidates else choice.repo.value or "none"


@pytest.mark.parametrize(("name", "question", "label"), list(labelled()))
def test_a_labelled_question_gets_its_repository(name: str, question: str, label: str) -> None:
    """The one that a person would say; or the person is asked."""
    assert answered(name, question) == label


def test_there_are_a_hundred_and_all_kinds_of_labels() -> None:
    """No rule is there for nothing."""
    labels = [label for _, _, label in labelled()]
    assert len(labels) == 100
    assert {"ask", "none", "acme/shop", "acme/billing", "acme/infra", "acme/site"} <= set(labels)


def test_what_a_message_or_its_thread_has_comes_first() -> None:
    """Also that it has none; the person is asked nothing then."""
    for said in ("acme/api", "none"):
        choice = chosen(CONTEXT, RunOptions(repo=said))
        assert (choice.repo.source, choice.candidates) == (Source.MESSAGE, ())
    earlier = make_run(make_request(text="repo=acme/api hello"))
    kept = chosen(replace(CONTEXT, earlier=[earlier]))
    assert (kept.repo.value, kept.repo.source) == ("acme/api", Source.THREAD)


def test_a_rule_comes_before_the_channels_defaults_and_brings_no_branch_of_another() -> None:
    """A branch that the message itself says is of whichever it is."""
    context = replace(CONTEXT, channel=Defaults(repo="acme/shop", branch="develop"))
    choice = chosen(context)
    assert (choice.repo.value, choice.repo.source) == ("acme/billing", Source.RULE)
    assert choice.branch.value == ""
    assert chosen(context, RunOptions(branch="next")).branch.value == "next"
    default = chosen(replace(context, text="hello"))
    assert (default.repo.value, default.branch.value) == ("acme/shop", "develop")


def test_a_command_and_a_place_without_rules_are_as_they_were() -> None:
    """Nothing is looked for."""
    for context in (replace(CONTEXT, text=""), replace(CONTEXT, rules=(), text="open a PR")):
        assert chosen(context) == chosen(SelectionContext())


def test_a_long_message_is_looked_through_quickly() -> None:
    """In a time that grows with its length alone, whatever is in it."""
    for text in ("invoice " * 5_000, "not " * 10_000, "acme/" * 8_000, "a" * 40_000, "x " * 20_000):
        chosen(replace(CONTEXT, text=text))


def test_of_very_many_nine_are_shown() -> None:
    """More buttons than people read, and than a message takes."""
    rules = tuple(RepositoryRule(words=("all",), repo=f"acme/r{n:03}") for n in range(40))
    assert len(chosen(replace(CONTEXT, rules=rules, text="fix all")).candidates) == 9

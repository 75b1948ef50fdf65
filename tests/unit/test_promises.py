"""What `make test` promises to prove is in it."""

from pathlib import Path

import pytest

from agent_scripts.registry import agent_names
from sandbox_runtime.registry import PROVIDERS
from tests.promises import COLLECTED, PROMISES, render

INVARIANTS = 12


def test_everything_is_promised() -> None:
    """Each invariant by its number, each provider and each agent by its name."""
    wanted = {f"provider {name}" for name in PROVIDERS if name != "fake"} | {
        f"agent {n}" for n in agent_names()
    }
    assert {promise for promise in PROMISES if not promise[0].isdigit()} == wanted
    numbers = [int(promise.partition(".")[0]) for promise in PROMISES if promise[0].isdigit()]
    assert numbers == list(range(1, INVARIANTS + 1))


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_has_tests_that_are_not_long(
    promise: str, pytestconfig: pytest.Config
) -> None:
    """They exist; of files that this session did not collect, nothing can be said."""
    is_long = pytestconfig.stash[COLLECTED]
    files = {test.partition("::")[0] for test in is_long}
    there = [test for test in PROMISES[promise] if test.partition("::")[0] in files]
    assert {test: is_long.get(test, "is not there") for test in there} == dict.fromkeys(
        there, False
    )
    assert PROMISES[promise]


def test_the_document_has_the_table() -> None:
    """`python -m tests.promises` prints it."""
    assert render() in Path("docs/testing.md").read_text()

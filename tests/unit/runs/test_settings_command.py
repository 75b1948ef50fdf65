"""The change of defaults by `settings`."""

import pytest

from app.runs.testing import (
    Catalog,
    CatalogAgent,
    Defaults,
    RunOptions,
    SelectionContext,
    carry_out,
    find_command_problem,
    parse_options,
)
from app.store.memory import MemoryDefaultStore
from tests.building import make_request

CATALOG = Catalog(
    agents={"anthropic": CatalogAgent(model="a-1")},
    agent="anthropic",
    sandboxes={"local": "local"},
    provider="local",
)


async def _after(*commands: str) -> Defaults:
    store = MemoryDefaultStore()
    request = make_request()
    for text in commands:
        command = parse_options(text).command
        assert command is not None
        person = await store.get(request.team, request.user)
        context = SelectionContext(person=person)
        assert find_command_problem(command, context, CATALOG) == ""
        await carry_out(command, request, store, context, CATALOG)
    return await store.get(request.team, request.user)


@pytest.mark.parametrize(
    ("commands", "repo", "branch"),
    [
        (("settings repo=acme/api branch=dev",), "acme/api", "dev"),
        (("settings repo=acme/api branch=dev", "settings repo=acme/web"), "acme/web", ""),
        (("settings repo=acme/api", "settings branch=dev"), "acme/api", "dev"),
        (("settings repo=acme/api branch=dev", "settings repo=none"), "none", ""),
        (("settings repo=acme/api", "settings reset"), "", ""),
    ],
)
async def test_a_default_branch_goes_with_its_repository(
    commands: tuple[str, ...], repo: str, branch: str
) -> None:
    """Another repository, or none, forgets it."""
    found = await _after(*commands)
    assert (found.repo, found.branch) == (repo, branch)


@pytest.mark.parametrize(
    ("text", "person"),
    [
        ("settings branch=dev", Defaults()),
        ("settings repo=none branch=dev", Defaults(repo="acme/api")),
        ("settings channel branch=dev", Defaults(repo="acme/api")),
    ],
)
def test_a_default_branch_needs_its_repository(text: str, person: Defaults) -> None:
    """Of the same owner."""
    command = parse_options(text).command
    assert command is not None
    context = SelectionContext(person=person, file=RunOptions(repo="acme/other"))
    assert "needs its repository" in find_command_problem(command, context, CATALOG)

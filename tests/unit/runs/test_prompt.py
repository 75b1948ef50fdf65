"""What an agent is told of its run: each fact is a value, and its sentence follows it."""

from dataclasses import replace

import pytest

from agent_scripts.adapter import AgentPaths, AgentTurn, TurnMessage
from agent_scripts.registry import agent_names, create_adapter
from app.runs.testing import (
    FilesFact,
    NetworkFact,
    RepositoryFact,
    RunFacts,
    base_prompt,
    render_prompt,
)

FACTS = RunFacts(
    files=FilesFact.FRESH,
    network=NetworkFact.BROKERED,
    time_s=598.7,
    disk_bytes=10 * 1024**3,
    memory_bytes=4 * 1024**3,
)
REPOSITORY = RepositoryFact(name="acme/shop", branch="orion/calm-otter", is_published=False)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (FilesFact.FRESH, "Your working directory starts empty. Its files are kept for the next"),
        (FilesFact.KEPT, "Your working directory holds what earlier messages of this thread left"),
        (FilesFact.COPY, "Your working directory holds a copy of a directory of the operator's"),
        (FilesFact.MOUNTED, "is a directory of the operator's machine itself: what you change"),
    ],
)
def test_the_files_that_are_there(files: FilesFact, said: str) -> None:
    """None, those of the thread, a copy of the operator's, or the operator's own."""
    prompt = render_prompt(replace(FACTS, files=files))
    assert said in prompt
    assert ("starts empty" in prompt) is (files is FilesFact.FRESH)
    assert "gone after the answer" not in prompt


def test_files_that_nobody_saves() -> None:
    """Only there does the agent hear that they are gone."""
    prompt = render_prompt(replace(FACTS, are_files_saved=False))
    assert "It is gone after the answer." in prompt
    assert "kept for the next" not in prompt


@pytest.mark.parametrize("files", [FilesFact.FRESH, FilesFact.KEPT])
def test_a_repository_and_what_may_be_pushed(files: FilesFact) -> None:
    """Its name and the one branch; with a pull request that Orion pushes, and not the agent."""
    facts = replace(FACTS, files=files, repository=REPOSITORY)
    prompt = render_prompt(facts)
    assert "is a git clone of acme/shop, on this thread's branch orion/calm-otter." in prompt
    assert "the only one that can be pushed; push it when you are asked to" in prompt
    assert "starts empty" not in prompt
    published = render_prompt(replace(facts, repository=replace(REPOSITORY, is_published=True)))
    assert "the branch is pushed, and a pull request is opened: do neither yourself" in published
    assert "push it when you are asked" not in published
    assert "clone" not in render_prompt(FACTS)


@pytest.mark.parametrize("has_repository", [True, False])
@pytest.mark.parametrize("network", list(NetworkFact))
def test_the_network(network: NetworkFact, has_repository: bool) -> None:
    """None; none but git to the thread's repository; or the internet."""
    repository = REPOSITORY if has_repository else None
    prompt = render_prompt(replace(FACTS, network=network, repository=repository))
    assert ("reach the internet" in prompt) is (network is NetworkFact.OPEN)
    assert ("has no network" in prompt) is (network is not NetworkFact.OPEN)
    is_git = network is NetworkFact.BROKERED and has_repository
    assert ("git reaches acme/shop and nothing else" in prompt) is is_git


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time_s": 598.7}, "You have 10 minutes for the whole answer"),
        ({"time_s": 19.8}, "You have 20 seconds for the whole answer"),
        ({"memory_bytes": 512 * 1024**2}, "512 MiB of memory"),
        ({"memory_bytes": 1536 * 1024**2}, "1.5 GiB of memory"),
        ({"disk_bytes": 10 * 1024**3}, "and 10 GiB for files"),
    ],
)
def test_the_limits(changes: dict[str, float], said: str) -> None:
    """Time, memory and disk, as this run has them."""
    assert said in render_prompt(replace(FACTS, **changes))  # type: ignore[arg-type]  # each its own field's


def test_the_tools() -> None:
    """By the names of the servers that this agent can use; without any there is no word of them."""
    prompt = render_prompt(replace(FACTS, mcp_servers=("wiki", "tickets")))
    assert "tools of these MCP servers: wiki, tickets." in prompt
    assert "MCP" not in render_prompt(FACTS)


@pytest.mark.parametrize("agent", agent_names())
def test_every_agent_gets_it(agent: str) -> None:
    """In a file or an argument of its command, whole."""
    prompt = render_prompt(replace(FACTS, files=FilesFact.KEPT, mcp_servers=("wiki",)))
    turn = AgentTurn(
        messages=[TurnMessage(role="user", text="hello")],
        system_prompt=prompt,
        model="m-1",
        max_output_tokens=8192,
        max_turns=40,
        run_token="t" * 32,
        vendor_key="k" * 20,
        paths=AgentPaths(work="/work", home="/home/agent", run="/orion/r1", environment="/env"),
    )
    command = create_adapter(agent).command(turn)
    texts = [*command.argv, *(file.data.decode() for file in command.files)]
    for sentence in ("holds what earlier messages of this thread left", "MCP servers: wiki"):
        assert any(sentence in text for text in texts)


def test_what_all_runs_have_in_common() -> None:
    """The text around the facts; of the operator's, all of it."""
    before, place, after = base_prompt().partition("{{facts}}")
    assert place
    for facts in (FACTS, replace(FACTS, files=FilesFact.KEPT, mcp_servers=("wiki",))):
        prompt = render_prompt(facts, channel="Be kind.")
        assert prompt.startswith(before)
        assert f"{after}\n\nBe kind." in prompt
    assert base_prompt("Be brief.") == render_prompt(FACTS, own="Be brief.") == "Be brief."

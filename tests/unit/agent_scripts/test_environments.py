"""What every environment from npm must be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentFile, AgentPaths
from agent_scripts.cli_agent import npm_recipe, pinned_recipe

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/run", environment="/env")
_AGENTS = sorted(
    path.parts[-3] for path in Path("agent_scripts/agents").glob("*/environment/install.json")
)


@pytest.mark.parametrize("agent", _AGENTS)
def test_recipe_is_pinned_by_hashes(agent: str) -> None:
    """Node for the installation and each package come by hash; the plan names a dependency with an exact version."""
    files = {file.path.removeprefix("/env/"): file.data for file in npm_recipe(agent, _PATHS).files}
    assert b"--hash=sha256:" in files["requirements.lock"]
    plan = json.loads(files["install.json"])
    pinned = json.loads(files["package.json"])["dependencies"][plan["package"]]
    lock = json.loads(files["package-lock.json"])["packages"]
    assert lock[f"node_modules/{plan['package']}"]["version"] == pinned
    assert all(package["integrity"].startswith("sha512-") for name, package in lock.items() if name)


@pytest.mark.parametrize("agent", _AGENTS)
def test_no_index_is_named(agent: str) -> None:
    """No package index is named in what is installed inside sandboxes."""
    for file in npm_recipe(agent, _PATHS).files:
        if file.path.endswith(("lock", "json")):
            assert b"://" not in file.data, file.path
            assert b"resolved" not in file.data, file.path


@pytest.mark.parametrize("agent", _AGENTS)
def test_the_name_is_of_the_content(agent: str) -> None:
    """Agent and digest, which changes with the paths."""
    recipe = npm_recipe(agent, _PATHS)
    prefix, _, digest = recipe.name.rpartition("-")
    assert (prefix, len(digest)) == (agent, 12)
    assert npm_recipe(agent, replace(_PATHS, environment="/elsewhere")).name != recipe.name
    assert any("--require-hashes" in command for command in recipe.commands)


def test_a_name_is_the_same_in_every_version_of_orion() -> None:
    """Prepared environments are found by it: made from the commands and what is in the files, in their order."""
    files = [AgentFile(path="/env/a", data=b"one"), AgentFile(path="/env/b", data=b"two")]
    recipe = pinned_recipe("x", files=files, commands=(("python3", "-V"), ("true",)))
    assert recipe.name == "x-bfcbec3c1867"
    order = [file.path.rpartition("/")[2] for file in npm_recipe("codex", _PATHS).files]
    shared = ["install.py", "requirements.lock"]
    assert order == [*shared, "install.json", "package.json", "package-lock.json"]

"""Each import contract is seen to fail: a copy of the source in which each of them is broken once."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VIOLATIONS = {
    "The service stands on two packages that do not know each other": (
        ("sandbox_runtime/planted_up.py", "import app.errors"),
        "sandbox_runtime.planted_up -> app.errors",
    ),
    "Packages of the service": (
        ("app/runs/planted_up.py", "import app.slack.api"),
        "app.runs.planted_up -> app.slack.api",
    ),
    "A package is entered where its __init__ says": (
        ("app/compose/planted_in.py", "import app.web.planted_private"),
        "app.compose.planted_in imports app.web.planted_private",
    ),
    "No circles": (
        ("app/store/planted_circle.py", "import app.store.planted_private"),
        ".planted_private -> .planted_circle",
    ),
    "Only the Slack package speaks Slack": (
        ("app/runs/planted_slack.py", "import slack_sdk.errors"),
        "app.runs.planted_slack -> slack_sdk",
    ),
    "Only tracing speaks Langfuse": (
        ("app/web/planted_langfuse.py", "import langfuse"),
        "app.web.planted_langfuse -> langfuse",
    ),
    "Only migrations speak alembic": (
        ("app/store/planted_alembic.py", "import alembic"),
        "app.store.planted_alembic -> alembic",
    ),
    "FastAPI stays where HTTP is": (
        ("app/store/planted_fastapi.py", "import fastapi"),
        "app.store.planted_fastapi -> fastapi",
    ),
    "Sandboxes and agents are for the core and for what composes the service": (
        ("app/slack/planted_sandbox.py", "import sandbox_runtime.errors"),
        "app.slack.planted_sandbox -> sandbox_runtime.errors",
    ),
    "Nothing that runs outside a sandbox imports the agent's SDK": (
        ("app/planted_anthropic.py", "import anthropic"),
        "app.planted_anthropic -> anthropic",
    ),
    "Each provider's SDK is spoken in its folder only": (
        ("sandbox_runtime/planted_docker.py", "import aiodocker"),
        "sandbox_runtime.planted_docker -> aiodocker",
    ),
    "Sandbox providers do not know each other, and what they share knows none of them": (
        (
            "sandbox_runtime/providers/local/planted_sibling.py",
            "import sandbox_runtime.providers.docker",
        ),
        "sandbox_runtime.providers.local.planted_sibling -> sandbox_runtime.providers.docker",
    ),
}
"""By the contract's name: what is planted, a file with its only line, and what is said of it."""
BESIDE = {
    "app/web/planted_private.py": "",
    "app/store/planted_private.py": "import app.store.planted_circle",
}


def test_each_contract_has_its_violation() -> None:
    """A new contract is not taken on trust."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert {contract["name"] for contract in linter["contracts"]} == set(VIOLATIONS)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    copy = tmp_path_factory.mktemp("planted")
    for package in ("app", "sandbox_runtime", "agent_scripts", "tests/architecture"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    planted = BESIDE | dict(plant for plant, _ in VIOLATIONS.values())
    for path, line in planted.items():
        (copy / path).write_text(f"{line}\n")
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [linter, "--no-cache"], cwd=copy, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_planted_violation_is_told(contract: str, report: str) -> None:
    """Under the contract that it breaks, by the module's name."""
    assert re.search(rf"^{re.escape(contract)}\s*BROKEN", report, re.MULTILINE), report
    (_, told) = VIOLATIONS[contract]
    chapters = dict(
        re.findall(r"^([^\n]+)\n-+\n(.*?)(?=^[^\n]+\n-{5,}\n|\Z)", report, re.DOTALL | re.MULTILINE)
    )
    assert told in " ".join(chapters[contract].split())

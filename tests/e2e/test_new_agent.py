"""An agent that is added as CONTRIBUTING says, in a copy of the package: nothing else has to be changed."""

from pathlib import Path

import pytest

from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.forking import REPOSITORY
from tests.templates import AGENT, copy_with, lint_folder, run_python

pytestmark = pytest.mark.timeout(240)

_NAME = "parrot"
_SUITE = (
    "tests/unit/agent_scripts/test_conformance.py",
    "tests/unit/agent_scripts/test_odd_lines.py",
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package and the new agent in it."""
    root = tmp_path_factory.mktemp("copy")
    copy_with(AGENT, name=_NAME, target=root)
    return root


def test_it_passes_the_linter(copied: Path) -> None:
    """All of its folder."""
    lint_folder(copied, f"agent_scripts/agents/{_NAME}", files=4)


@pytest.mark.long
def test_the_conformance_suite_holds_for_it(copied: Path) -> None:
    """The same tests as for all others, which find it in the registry."""
    paths = f"{copied} {REPOSITORY}"
    options = ("-q", "-n", "0", "-p", "no:randomly", "-k", _NAME, "-o", f"pythonpath={paths}")
    run_python("-m", "pytest", *options, *_SUITE, says=" passed")


def test_it_has_settings_and_a_name(copied: Path) -> None:
    """Without a line about it anywhere else."""
    program = (
        "from app.settings.settings import load_settings\n"
        "settings = load_settings(env_file=None)\n"
        "print(settings.agents.default, settings.model_of('parrot'), settings.models_of('parrot'))\n"
    )
    env = {"ORION_AGENT": _NAME, "ORION_MODEL_PARROT": "m-1", "ORION_MODELS_PARROT": "m-1, m-2"}
    path = f"{copied}:{REPOSITORY}"
    run_python(
        "-P", "-c", program, says="parrot m-1 ('m-1', 'm-2')", env={**env, "PYTHONPATH": path}
    )


@pytest.mark.long
@pytest.mark.bubblewrap
def test_verify_holds_for_it(copied: Path, tmp_path: Path) -> None:
    """It uses its shell in a sandbox and answers, without Slack."""
    env = {
        "PYTHONPATH": f"{copied}:{REPOSITORY}",
        "ORION_STATE_DIR": str(new_state_dir(tmp_path)),
        "ORION_SANDBOX": "local",
        "ORION_AGENT": _NAME,
    }
    run_python("-P", "-m", "app.cli", "verify", says="ok   the agent used its shell", env=env)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.bubblewrap
async def test_it_answers_in_slack(copied: Path, tmp_path: Path) -> None:
    """Prepared, started in a sandbox, with a model behind the broker; asked for by its name."""
    prepared = tmp_path / "nothing"
    for folder in ("environments", "snapshots", "names"):
        (prepared / folder).mkdir(parents=True)
    path = f"{copied}:{REPOSITORY}"
    state_dir = new_state_dir(tmp_path)
    async with (
        open_world() as world,
        open_orion(world, state_dir, prepared, PYTHONPATH=path) as stage,
    ):
        ts = await stage.client.say(f"@Orion use {_NAME}: good morning, number 4711")
        answer = await stage.answer(ts, timeout_s=120)
        assert "number 4711" in text_of(answer)
        record = await stage.record(ts)
        assert (record.state, record.agent, record.result.usage.model_calls) == (
            "succeeded",
            _NAME,
            1,
        )

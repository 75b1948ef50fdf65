"""A sandbox provider that is added as CONTRIBUTING says, in a copy of the packages: nothing else has to be changed."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.forking import REPOSITORY
from tests.templates import AGENT, PROVIDER, copy_with, lint_folder, run_python

pytestmark = [pytest.mark.timeout(400), pytest.mark.e2e]

_NAME = "loft"
_AGENT = "parrot"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages, the new provider in one of them and the new agent in the other."""
    root = tmp_path_factory.mktemp("copy")
    copy_with(PROVIDER, name=_NAME, target=root)
    copy_with(AGENT, name=_AGENT, target=root)
    return root


@pytest.mark.long
def test_the_contracts_facts_hold_for_it(copied: Path, tmp_path: Path) -> None:
    """The command that asks of it what is asked of all finds it in the registry; it passes the linter, too."""
    conformance = ("-P", "-m", "app.cli", "sandboxes", "conformance", "--provider", _NAME)
    state_dir = new_state_dir(tmp_path)
    env = {"PYTHONPATH": f"{copied}:{REPOSITORY}", "ORION_STATE_DIR": str(state_dir)}
    run_python(*conformance, says=" 0 broken", env=env)
    lint_folder(copied, f"sandbox_runtime/providers/{_NAME}", files=5)


@pytest.mark.parametrize("sandbox", ["local", _NAME])
def test_it_isolates_nothing_so_the_operator_must_choose_it(copied: Path, sandbox: str) -> None:
    """Whoever asks in Slack gets no sandbox without isolation, unless it is the one that is set."""
    code = f"from app.settings.settings import load_settings; from app.compose.providers import usable_words; print({_NAME!r} in usable_words(load_settings()))"
    env = {"PYTHONPATH": f"{copied}:{REPOSITORY}", "ORION_SANDBOX": sandbox}
    run_python("-P", "-c", code, says=str(sandbox == _NAME), env=env)


def test_one_name_in_the_registry_another_in_the_class(copied: Path, tmp_path: Path) -> None:
    """Its sandboxes would be saved under a name that nobody finds again: who starts Orion is told which line to mend."""
    shutil.copytree(copied / "sandbox_runtime", tmp_path / "sandbox_runtime")
    path = tmp_path / f"sandbox_runtime/providers/{_NAME}/provider.py"
    path.write_text(path.read_text().replace(f'name = "{_NAME}"', 'name = "attic"'))
    code = f"from app.settings.settings import load_settings; from app.compose.providers import create_named; create_named(load_settings(), {_NAME!r})"
    env = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "ORION_STATE_DIR": str(tmp_path / "state")}
    with pytest.raises(
        AssertionError,
        match="sandbox provider 'loft' calls itself 'attic': set `name` of LoftProvider",
    ):
        run_python("-P", "-c", code, says="", env=env)


async def test_an_agent_answers_from_it(copied: Path, tmp_path: Path) -> None:
    """Its environment prepared there, started there, with a model behind the broker; asked for by the provider's word."""
    prepared = tmp_path / "nothing"
    for folder in ("environments", "snapshots", "names"):
        (prepared / folder).mkdir(parents=True)
    env = {"PYTHONPATH": f"{copied}:{REPOSITORY}", "ORION_AGENT": _AGENT, "ORION_SANDBOX": _NAME}
    state_dir = new_state_dir(tmp_path)
    async with open_world() as world, open_orion(world, state_dir, prepared, **env) as stage:
        ts = await stage.client.say(f"@Orion /{_NAME} good morning, number 4711")
        answer = await stage.answer(ts, timeout_s=180)
        assert "number 4711" in text_of(answer)
        record = await stage.record(ts)
        assert (record.state, record.provider, record.agent) == ("succeeded", _NAME, _AGENT)

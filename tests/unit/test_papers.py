"""What the papers say is so."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from app import __version__
from app.settings.settings import all_fields

LIBRARY = Path("docs/library.md").read_text()


@pytest.mark.bubblewrap
async def test_the_library_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of docs/library.md prints what it should."""
    source = re.findall(r"```python\n(.*?)```", LIBRARY, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102 - our own page
    main = names["main"]
    assert callable(main)
    await main()
    assert capsys.readouterr().out == "42\n\n"


def test_the_readme_is_for_a_newcomer() -> None:
    """It is short, and how to use and how to prove Orion stand on its first screen."""
    lines = Path("README.md").read_text().splitlines()
    assert len(lines) <= 120
    first_screen = "\n".join(lines[:24])
    assert "make playground" in first_screen
    assert "make test" in first_screen


def test_settings_named_in_papers_exist() -> None:
    """No paper speaks of a setting that is not there."""
    known = {name for _, _, names in all_fields() for name in names}
    for path in [
        Path("README.md"),
        Path("SECURITY.md"),
        Path("CONTRIBUTING.md"),
        *Path("docs").rglob("*.md"),
    ]:
        named = set(
            re.findall(r"\b(?:ORION|SLACK|LANGFUSE|ANTHROPIC)_[A-Z_]+[A-Z]\b", path.read_text())
        )
        assert named <= known, path


def test_links_and_paths_in_papers_exist() -> None:
    """Files that the papers point at are there."""
    for path in [
        Path("README.md"),
        Path("CONTRIBUTING.md"),
        Path("SECURITY.md"),
        *Path("docs").rglob("*.md"),
    ]:
        text = path.read_text()
        targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
        targets += re.findall(r"`((?:app|tests|docs|sandbox_runtime|agent_scripts)/[\w./]+)`", text)
        for target in (name for name in targets if "NAME" not in name):
            assert (path.parent / target).exists() or Path(target).exists(), (path, target)


def test_each_decision_stands_in_the_index_once() -> None:
    """In the order of their numbers."""
    records = sorted(path.name for path in Path("docs/decisions").glob("0*.md"))
    index = Path("docs/decisions/README.md").read_text()
    assert re.findall(r"^\| \[\d+\]\((\S+)\)", index, re.MULTILINE) == records


def test_vercel_json_names_the_app() -> None:
    """The function of vercel.json is the entry point of pyproject.toml and has an `app`."""
    config = json.loads(Path("vercel.json").read_text())
    (function,) = config["functions"]
    entrypoint = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["vercel"]["entrypoint"]
    module, _, attribute = entrypoint.partition(":")
    assert Path(function) == Path(*module.split(".")).with_suffix(".py")
    assert re.search(rf"(?m)^{attribute} = ", Path(function).read_text())


def test_there_is_one_version() -> None:
    """The code's own is the package's."""
    assert tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"] == __version__


def test_no_paper_or_code_names_a_package_registry_or_this_machine() -> None:
    """Lock files pin hashes, not hosts."""
    for path in [
        Path("requirements.lock"),
        Path("container/requirements.lock"),
        Path("agent_scripts/agents/anthropic/environment/requirements.lock"),
    ]:
        text = path.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text


def test_the_image_has_what_is_tested() -> None:
    """Its lock names the versions and hashes of the developers' lock, and nothing of what only they need."""
    developed, served = (
        set(Path(path).read_text().splitlines())
        for path in ("requirements.lock", "container/requirements.lock")
    )
    assert served < developed
    only_for_developers = r"(?m)^(?:anthropic|hypothesis|mypy|playwright|pytest|ruff)=="
    assert re.search(only_for_developers, "\n".join(developed))
    assert not re.search(only_for_developers, "\n".join(served))


def test_the_paper_of_providers_is_the_tests_own_table() -> None:
    """`make clouds` renders it."""
    from tests.contract.sandbox_runtime.papers import render  # noqa: PLC0415 - reads all providers

    assert Path("docs/clouds.md").read_text() == render()

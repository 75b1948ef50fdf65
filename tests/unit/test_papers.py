"""What the papers say is so."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from app.config import Settings

README = Path("README.md").read_text()


@pytest.mark.bubblewrap
async def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library example of the README prints what it should."""
    source = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102 - our own README
    main = names["main"]
    assert callable(main)
    await main()
    assert capsys.readouterr().out == "42\n\n"


def test_settings_named_in_papers_exist() -> None:
    """No paper speaks of a setting that is not there."""
    known = {name.upper() for name in Settings.model_fields}
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


def test_vercel_json_names_the_app() -> None:
    """The function of vercel.json is the entry point of pyproject.toml and has an `app`."""
    config = json.loads(Path("vercel.json").read_text())
    (function,) = config["functions"]
    entrypoint = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["vercel"]["entrypoint"]
    module, _, attribute = entrypoint.partition(":")
    assert Path(function) == Path(*module.split(".")).with_suffix(".py")
    assert re.search(rf"(?m)^{attribute} = ", Path(function).read_text())


def test_no_paper_or_code_names_a_package_registry_or_this_machine() -> None:
    """Lock files pin hashes, not hosts."""
    for path in [Path("requirements.lock"), Path("agent_scripts/environments/anthropic.lock")]:
        text = path.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text


def test_the_paper_of_providers_is_the_tests_own_table() -> None:
    """`make clouds` renders it."""
    from tests.contract.sandbox_runtime.papers import render  # noqa: PLC0415 - reads all providers

    assert Path("docs/clouds.md").read_text() == render()

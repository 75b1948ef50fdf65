"""Bad settings that came from the command line."""

from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli.commands.runs import UnsaidRunError
from app.cli.output import USAGE, read_settings, show_failures


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"orion_agent": "codx"}, "--agent: Input should be 'anthropic', "),
        ({"orion_agent": "codx"}, "(is 'codx'); did you mean codex?\n"),
        ({"orion_sandbox": "dcoker"}, "(is 'dcoker'); did you mean docker?\n"),
        ({"orion_sandbox": "bogus"}, "--provider: Input should be 'auto', "),
        ({"orion_mount_dir": "/nope"}, "--mount: there is no directory /nope\n"),
        ({"orion_mount_overlay": "true"}, "--overlay: set --mount, too\n"),
        (
            {"orion_sandbox": "docker", "orion_mount_dir": "."},
            "--mount: docker sandboxes cannot work in it; set --overlay, or --provider=local\n",
        ),
    ],
)
def test_an_option_is_called_by_its_own_name(
    given: dict[str, Any],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody who wrote `--agent` knows which setting it stands for."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as ended:
        read_settings(for_serving=False, **given)
    assert ended.value.exit_code == USAGE
    shown = capsys.readouterr().err
    assert shown.startswith("--")
    assert told in shown
    assert "ORION_" not in shown


@pytest.mark.parametrize(
    ("failure", "code"),
    [(OSError("no Orion has run"), 1), (UnsaidRunError("say which run"), USAGE)],
)
def test_what_goes_wrong_outside_is_a_line(
    failure: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, show_failures():
        raise failure
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == f"{failure}\n"


def test_a_bug_and_an_end_are_none() -> None:
    """A bug shows where it is."""
    with pytest.raises(ZeroDivisionError), show_failures():
        raise ZeroDivisionError
    with pytest.raises(typer.Exit) as ended, show_failures():
        raise typer.Exit(7)
    assert ended.value.exit_code == 7


def test_a_setting_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also beside an option."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORION_SANDBOX", "dcoker")
    with pytest.raises(typer.Exit):
        read_settings(orion_agent="codx")
    heading, *lines = capsys.readouterr().err.splitlines()
    assert heading == "bad settings:"
    assert [line.partition(":")[0] for line in lines] == ["--agent", "ORION_SANDBOX"]

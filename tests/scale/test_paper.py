"""What `python -m tests.scale` prints, and that `docs/scale.md` shows it."""

from pathlib import Path

import pytest

from tests.scale.__main__ import main, tables
from tests.scale.figures import read_figures

PAPER = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tables_are_its_output() -> None:
    """Both, as `make scale` prints them."""
    text = PAPER.read_text()
    for table in tables(read_figures(), seed=1):
        assert table in text


def test_one_workspace_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the size that was asked for."""
    assert main(["--people", "80", "--slots", "7", "--processes", "2"]) == 0
    heading, _, row = capsys.readouterr().out.splitlines()
    assert heading.startswith("| people |")
    assert row.startswith("| 80 |")
    assert "| 2 x 7 |" in row


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--people", "0"], "--people: must be 1 or more, is 0"),
        (["--people", "5", "--questions-a-day", "-1"], "must be above 0, is -1"),
        (["--figures", "missing.json"], "missing.json has no rows of the bench"),
    ],
)
def test_what_cannot_be_is_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the value, and exit code 2."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err

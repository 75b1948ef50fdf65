"""What bad settings are told: words that fit where they stand."""

from pathlib import Path

import pytest

from app.settings.group import SettingsError, existing_file
from app.settings.orion_toml import load_orion_toml


def test_a_directory_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """It is there, and is no file."""
    with pytest.raises(ValueError, match=r"^a directory, not a file: "):
        existing_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[repositories."acme"]\ninit = ["make"]\n',
            "is no repository: write owner/name or https://…",
        ),
        ('[prices."claude-*"]\ninput = 3\n', ".output: is missing"),
    ],
)
def test_a_mistake_in_the_file(tmp_path: Path, text: str, told: str) -> None:
    """Neither in the words of a message in Slack, nor with a value that is not there."""
    path = tmp_path / "orion.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_orion_toml(path)
    (line,) = [one for one in str(refused.value).splitlines() if told in one]
    assert "repo=" not in line
    assert "is missing (is" not in line

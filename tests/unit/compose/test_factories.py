"""What settings say of the parts that are made from them."""

from pathlib import Path

import pytest

from app.compose.factories import channel_options, pool_size
from app.compose.policy import run_policy
from app.settings.group import SettingsError
from app.settings.settings import load_settings


@pytest.mark.parametrize(
    ("size", "here", "in_a_cloud"), [(None, 1, 0), (0, 0, 0), (1, 1, 1), (7, 7, 7)]
)
def test_pool_size(size: int | None, here: int, in_a_cloud: int) -> None:
    """By default one where it costs no money; what the operator names holds everywhere."""
    settings = load_settings(env_file=None, given={"orion_warm_pool_size": size})
    assert pool_size(settings, is_billed=False) == here
    assert pool_size(settings, is_billed=True) == in_a_cloud


def test_no_pool_over_a_mounted_directory(tmp_path: Path) -> None:
    """It may change while a sandbox waits."""
    settings = load_settings(
        env_file=None, given={"orion_warm_pool_size": 3, "orion_mount_dir": tmp_path}
    )
    assert pool_size(settings, is_billed=False) == 0


@pytest.mark.parametrize(
    "text",
    [
        '[channels.C012345]\nrepo = "acme/shop"',
        '[[rules]]\nwords = ["website"]\nrepo = "acme/site"',
    ],
)
def test_no_repositories_over_a_mounted_directory(tmp_path: Path, text: str) -> None:
    """They cannot be had there, so that a rule would end each question: told at the start, not then."""
    toml, work = tmp_path / "orion.toml", tmp_path / "work"
    work.mkdir()
    toml.write_text(text)
    here = load_settings(env_file=None, toml=toml)
    assert channel_options(here, run_policy(here)) == here.toml.channels
    mounted = load_settings(env_file=None, given={"orion_mount_dir": work}, toml=toml)
    with pytest.raises(SettingsError, match="no repository can be had"):
        channel_options(mounted, run_policy(mounted))

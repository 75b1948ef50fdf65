"""What settings say of the parts that are made from them."""

from pathlib import Path

import pytest

from app.compose.factories import pool_size
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

"""What `/readyz` finds out by itself."""

from pathlib import Path

import pytest

from app.web.health import require_space


def test_room_for_the_database(tmp_path: Path) -> None:
    """What cannot be written is told with the directory and the reason; a try leaves nothing."""
    require_space(tmp_path)
    with pytest.raises(OSError, match=rf"{tmp_path} cannot be written to: "):
        require_space(tmp_path, 2**62)
    with pytest.raises(OSError, match="gone cannot be written to: No such file"):
        require_space(tmp_path / "gone")
    assert list(tmp_path.iterdir()) == []

"""Each vendor's command line has its day."""

import pytest

from tests.rotation import A_DAY, VENDORS, chosen_vendors


def test_each_has_its_turn() -> None:
    """Within two days all of them, two a day."""
    days = [chosen_vendors("", day=day) for day in range(10, 12)]
    assert sorted(name for day in days for name in day) == sorted(VENDORS)
    assert {len(day) for day in days} == {A_DAY}


def test_some_may_be_asked_for() -> None:
    """By name; a misspelt one is told."""
    assert chosen_vendors("all", day=3) == VENDORS
    assert chosen_vendors("gemini,codex", day=3) == ["gemini", "codex"]
    with pytest.raises(ValueError, match="not 'codx'"):
        chosen_vendors("codx", day=3)

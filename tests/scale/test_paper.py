"""`docs/scale.md` shows what the simulation says."""

from pathlib import Path

import pytest

from tests.scale.__main__ import tables
from tests.scale.figures import read_figures

PAPER = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tables_are_its_output() -> None:
    """Both, as `make scale` prints them."""
    text = PAPER.read_text()
    for table in tables(read_figures(), seed=1):
        assert table in text

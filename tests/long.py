"""Of many rows of one test, those that each change is tested with; the others are `long`, for `make test-all`."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def long_but(rows: Collection[Any], is_kept: Callable[[Any], bool]) -> Sequence[ParameterSet]:
    """The rows, in their order; those that `is_kept` does not choose are marked. A tuple is several arguments."""
    made = []
    for row in rows:
        values = row if isinstance(row, tuple) else (row,)
        marks = () if is_kept(row) else (pytest.mark.long,)
        made.append(pytest.param(*values, marks=marks))
    return made


def one_of_each(rows: Collection[Any], key: Callable[[Any], Hashable]) -> Sequence[ParameterSet]:
    """The first row of each key is kept, the others are long."""
    first = {key(row): number for number, row in reversed(list(enumerate(rows)))}
    numbers = iter(range(len(rows)))
    return long_but(rows, lambda _row: next(numbers) in first.values())

"""The table of faults is whole: each row has its test, and the document is the table."""

import ast
from pathlib import Path

import pytest

from tests.e2e.fault_table import FAULTS, Fault, render


def test_the_document_is_the_table() -> None:
    """`make faults` renders it."""
    assert Path("docs/faults.md").read_text() == render()


def test_keys_are_unique() -> None:
    """A key names one row."""
    assert len({row.key for row in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.key)
def test_each_row_has_a_test_that_holds_it_against_the_record(row: Fault) -> None:
    """The function exists, and its file asks for this very row."""
    path, _, function = row.test.partition("::")
    tree = ast.parse(Path(path).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    assert function in functions
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert row.key in texts
    assert "assert_holds" in {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }

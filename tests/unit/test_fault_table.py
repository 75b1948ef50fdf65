"""The table of faults is whole: each row has its test, and the document is the table."""

import ast
from pathlib import Path

import pytest

from tests.e2e.fault_table import FAULTS, ON_VERCEL, Fault, on_vercel, render


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


def test_what_is_said_of_vercel_is_of_rows() -> None:
    assert set(ON_VERCEL) <= {row.key for row in FAULTS}


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.key)
def test_each_row_is_met_on_vercel_or_says_why_not(row: Fault) -> None:
    """The function exists; where it is the table's own, its file asks for this very row."""
    said = on_vercel(row)
    if said.startswith("no: "):
        return
    file, _, function = said.partition(": ")
    tree = ast.parse((Path("tests/vercel") / file).read_text())
    assert function in {n.name for n in tree.body if isinstance(n, ast.AsyncFunctionDef)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert row.key in texts or file != "test_faults.py"

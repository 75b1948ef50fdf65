"""The table of agents is whole: each proof is a test, each is used, and the document is the table."""

import ast
import re
from pathlib import Path

import pytest

from agent_scripts.registry import agent_names
from tests.agent_table import AGENTS, PROOFS, ROWS, render


def test_the_document_is_the_table() -> None:
    """`make agents` renders it."""
    assert Path("docs/agents.md").read_text() == render()


def test_it_has_every_agent() -> None:
    """A column each, in every row."""
    assert set(AGENTS) == set(agent_names())
    assert {len(cells) for cells in ROWS.values()} == {len(AGENTS)}


@pytest.mark.parametrize("letter", PROOFS)
def test_each_proof_is_a_test(letter: str) -> None:
    """Of that name in that file, and some cell stands on it."""
    path, _, function = PROOFS[letter].partition("::")
    found = ast.walk(ast.parse(Path(path).read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert function in {node.name for node in found if isinstance(node, kinds)}
    cells = [cell for row in ROWS.values() for cell in row]
    assert any(re.search(rf"\b{letter}\b", cell.rpartition(":")[2]) for cell in cells)


def test_no_cell_names_a_proof_that_is_none() -> None:
    """Single letters are proofs."""
    named = {
        word for row in ROWS.values() for cell in row for word in re.findall(r"\b[a-z]\b", cell)
    }
    assert named == set(PROOFS)

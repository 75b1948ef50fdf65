"""The table of agents is whole: each proof is a test, each is used, and the document is the table."""

import ast
import re
from pathlib import Path

import pytest

from agent_scripts.registry import agent_names
from tests.agent_table import AGENTS, PROOFS, ROWS, render


def test_the_document_is_the_table() -> None:
    """`make agents` renders it."""
    assert Path("docs/agents-proven.md").read_text() == render()


def test_it_has_no_other_agents() -> None:
    """A column each; what is said of one is said of one that there is."""
    assert agent_names() == AGENTS
    assert {agent for cells in ROWS.values() for agent in cells} <= set(AGENTS)


@pytest.mark.parametrize("letter", PROOFS)
def test_each_proof_is_a_test(letter: str) -> None:
    """Of that name in that file, and some cell stands on it."""
    path, _, function = PROOFS[letter].partition("::")
    found = ast.walk(ast.parse(Path(path).read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert function in {node.name for node in found if isinstance(node, kinds)}
    cells = [cell for row in ROWS.values() for cell in row.values()]
    assert any(re.search(rf"\b{letter}\b", cell.rpartition(":")[2]) for cell in cells)


def test_no_cell_names_a_proof_that_is_none() -> None:
    """Single letters are proofs."""
    named = {
        word
        for row in ROWS.values()
        for cell in row.values()
        for word in re.findall(r"\b[a-zA-Z]\b", cell)
    }
    assert named == set(PROOFS)

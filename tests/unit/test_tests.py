"""What tests may do to the product: pass values in, and change the surroundings of the process. Nothing of it is patched."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PATCHERS = frozenset({"setattr", "delattr", "setitem", "delitem"})
"""Of pytest's `monkeypatch`, and Python's own. Its `setenv`, `delenv`, `chdir` and `syspath_prepend` are fine."""
MOCKS = frozenset({"unittest.mock", "mock", "pytest_mock"})
PRODUCT = ("app", "sandbox_runtime", "agent_scripts")


def find_patches(source: str) -> Iterator[str]:
    """Lines that change something of the product behind its back."""
    tree = ast.parse(source)
    imported = {name for node in ast.walk(tree) for name in _names_of_product(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in PATCHERS:
                yield f"{node.lineno}: {name}"
            case ast.Call(func=ast.Name(id=name), args=[patched, *_]) if (
                name in PATCHERS and ast.unparse(patched) != "report"  # that is pytest's
            ):
                yield f"{node.lineno}: {name}"
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()) if name in imported:
                yield f"{node.lineno}: {name}.{node.attr} ="
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if (
                name.startswith("_")
                and not name.endswith("__")
                and ast.unparse(value) not in ("self", "item")  # the latter is pytest's
            ):
                yield f"{node.lineno}: {ast.unparse(value)}.{name} ="
            case ast.Import(names=names) if MOCKS & {alias.name for alias in names}:
                yield f"{node.lineno}: a mock"
            case ast.ImportFrom(module=str(module)) if module in MOCKS:
                yield f"{node.lineno}: a mock"
            case _:
                pass


def _names_of_product(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in PRODUCT:
            yield from (alias.asname or alias.name for alias in names)
        case ast.Import(names=names):
            for alias in names:
                if alias.name.split(".")[0] in PRODUCT:
                    yield alias.asname or alias.name
        case _:
            pass


def test_nothing_of_the_product_is_patched() -> None:
    """Timings, bounds, stores and providers are passed in: a test holds for what people run."""
    found = {
        str(path): patches
        for path in sorted(Path("tests").rglob("*.py"))
        if (patches := list(find_patches(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        'monkeypatch.setattr(policy, "X", 1)',
        'with pytest.MonkeyPatch.context() as one:\n    one.setattr("app.x.Y", 1)',
        "setattr(store, 'update', sick)",
        "from app.runs import policy\npolicy.MAX_ATTEMPTS = 1",
        "from app.store.memory import MemoryRunStore\nMemoryRunStore.update = sick",
        "core.service._clock = clock",
        "from unittest.mock import patch",
    ],
)
def test_a_patch_is_found(planted: str) -> None:
    """Whichever way it takes."""
    assert list(find_patches(planted))

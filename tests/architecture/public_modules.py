"""An import contract: from outside of a package, only what its `__init__` names in `__all__` may be imported."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from grimp import ImportGraph
from importlinter.application import output
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck
from importlinter.domain.helpers import module_expressions_to_modules
from typing_extensions import override


class PublicModulesContract(Contract):
    """Each of `packages` says in `__init__` what it is for, and in `__all__` which of its modules others may import."""

    type_name = "public_modules"

    packages = fields.SetField(subfield=fields.ModuleExpressionField())

    @override
    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        expressions = self.packages  # the base class has put the parsed option there
        problems: list[str] = []
        for module in module_expressions_to_modules(graph, expressions):  # type: ignore[arg-type] # typed as a Field
            if graph.find_children(module.name):
                problems += find_problems(graph, module.name)
        return ContractCheck(kept=not problems, metadata={"problems": sorted(problems)})

    @override
    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(f"- {problem}", bold=False)
        output.new_line()


def find_problems(graph: ImportGraph, package: str) -> Iterator[str]:
    """Yields what `package` does not say about itself, and each import of what it does not give away."""
    init = _read_init(package)
    public = _public_names(init)
    if not ast.get_docstring(init) or public is None:
        yield f"{package} needs a docstring and the names of its public modules in __all__"
        return
    modules = {child.rpartition(".")[2] for child in graph.find_children(package)}
    for name in sorted(public - modules - _imported_names(init)):
        yield f"{package} names {name} in __all__, which it does not have"
    for name in sorted(modules - public):
        for module in (f"{package}.{name}", *graph.find_descendants(f"{package}.{name}")):
            for importer in graph.find_modules_that_directly_import(module):
                if not f"{importer}.".startswith(f"{package}."):
                    yield f"{importer} imports {module}, which {package} does not name in __all__"


def _read_init(package: str) -> ast.Module:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"{package} has no __init__.py")
    return ast.parse(Path(found.origin).read_bytes())


def _public_names(init: ast.Module) -> set[str] | None:
    for statement in init.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return set(ast.literal_eval(statement.value))
    return None


def _imported_names(init: ast.Module) -> set[str]:
    imports = [statement for statement in init.body if isinstance(statement, ast.ImportFrom)]
    return {alias.asname or alias.name for statement in imports for alias in statement.names}

"""The SDK, of which only what is used gets loaded: a third of its 3,000 modules, in half of the time.

Its packages import all of their modules to pass on their names. Here a package whose `__init__` does nothing else imports a
module when one of its names is first asked for. The SDK's own `__init__` does more, which is left out: it sets up logging
and loads clients of other clouds. Source: anthropic 2.12.0, read 2026-11.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_SDK = "anthropic"


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _SDK:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if (
            spec is not None
            and spec.submodule_search_locations is not None
            and isinstance(spec.loader, SourceFileLoader)
        ):
            loader: Any = _PackageLoader(spec.loader)
            spec.loader = loader
        return spec


class _PackageLoader:
    def __init__(self, loader: SourceFileLoader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        source = self._loader.get_source(module.__name__) or ""
        origins, does_more = _passed_on(source)
        if does_more and module.__name__ != _SDK:
            self._loader.exec_module(module)
            return

        def load(name: str) -> object:
            if name not in origins:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            origin, original = origins[name]
            if origin.strip("."):
                value = getattr(import_module(origin, module.__name__), original)
            else:
                value = import_module(origin + original, module.__name__)
            setattr(module, name, value)
            return value

        vars(module).update(__getattr__=load, __all__=list(origins))


def _passed_on(source: str) -> tuple[dict[str, tuple[str, str]], bool]:
    """Returns by each name that a package passes on its module and its name there, and whether the package does anything else."""
    origins: dict[str, tuple[str, str]] = {}
    does_more = False
    for statement in ast.parse(source).body:
        match statement:
            case ast.ImportFrom(module="__future__") | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                pass
            case ast.ImportFrom(module=module, names=names, level=level) if level:
                for alias in names:
                    does_more = does_more or alias.name == "*"
                    origin = "." * level + (module or "")
                    origins[alias.asname or alias.name] = origin, alias.name
            case _:
                does_more = True
    return origins, does_more


sys.meta_path.insert(0, _Finder())

import anthropic  # noqa: E402 - the finder comes first

__all__ = ["anthropic"]

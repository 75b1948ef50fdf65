"""The figures of the code itself, and the picture of its packages: `make house`.

`python -m tests.architecture.house` prints the figures as a table; `--draw FILE` renews the picture in a Markdown file,
between the two lines that mark it.
"""

import argparse
import ast
import asyncio
import logging
import statistics
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grimp
import structlog
from typing_extensions import override

from sandbox_runtime.testing.fake import FakeCall, FakeProvider, Script
from tests.faults.building import POLICY, ended, open_core, request_of
from tests.faults.plan_agent import ANSWER

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "sandbox_runtime", "agent_scripts")
MAX_MODULE_LINES = 560
MAX_PARAMETERS = 7
BEGIN, END = "<!-- picture: begin -->", "<!-- picture: end -->"


def main() -> None:
    """Prints the figures, or draws."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.house", description=__doc__)
    parser.add_argument("--draw", type=Path, metavar="FILE", help="renew the picture in this file")
    drawn: Path | None = parser.parse_args().draw
    if drawn is not None:
        drawn.write_text(with_picture(drawn.read_text(), picture(build_graph())))
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print("| what | figure |\n| --- | --- |")  # noqa: T201 - its output
    for name, figure in figures().items():
        print(f"| {name} | {figure} |")  # noqa: T201 - its output


def figures() -> Mapping[str, str]:
    """Returns each figure by what it counts."""
    sources = {path: path.read_text() for path in product_files()}
    lines = {path: text.count("\n") for path, text in sources.items()}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    functions = [
        (path, node)
        for path, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    wide = [
        f"{path.relative_to(ROOT)}:{node.lineno} ({count})"
        for path, node in functions
        if node.name == "__init__" and (count := _parameters(node)) > MAX_PARAMETERS
    ]
    long = [
        f"{path.relative_to(ROOT)} ({count})"
        for path, count in lines.items()
        if count > MAX_MODULE_LINES
    ]
    graph = build_graph()
    chain = asyncio.run(calls_to_the_agent())
    per_package = {
        name: sum(count for path, count in lines.items() if path.is_relative_to(ROOT / name))
        for name in PACKAGES
    }
    return {
        "product lines": str(sum(lines.values())),
        **{f"lines of `{name}`": str(count) for name, count in per_package.items()},
        "product files": str(len(sources)),
        "median lines of a file": f"{statistics.median(lines.values()):g}",
        "files under 60 lines": str(sum(count < 60 for count in lines.values())),
        "functions": str(len(functions)),
        "classes": str(sum(isinstance(node, ast.ClassDef) for _, node in nodes)),
        "docstring lines": str(sum(_docstring_lines(node) for _, node in nodes)),
        "modules of `app/runs`": str(len(list(modules_of("app/runs")))),
        "modules loose in `app`": str(len(list(modules_of("app")))),
        "import circles between packages": ", ".join(circles(graph)) or "none",
        f"constructors over {MAX_PARAMETERS} parameters": ", ".join(wide) or "none",
        f"modules over {MAX_MODULE_LINES} lines": ", ".join(long) or "none",
        "calls from the dispatcher to the agent's process": f"{len(chain)}: {' → '.join(chain)}",
    }


def product_files() -> Sequence[Path]:
    """Returns the Python files that are installed."""
    return sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def modules_of(package: str) -> Iterator[Path]:
    """Yields the modules of one package, without its `__init__` and those of packages in it."""
    return (path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py")


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return len(node.args.args) + len(node.args.kwonlyargs) - 1


def _docstring_lines(node: ast.AST) -> int:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, documented):
        return 0
    return (ast.get_docstring(node) or "").count("\n") + 1 if ast.get_docstring(node) else 0


class _WatchedProvider(FakeProvider):
    """Keeps the calls that led to the start of the first agent."""

    calls_to_spawn: Sequence[str] = ()

    @override
    def find_script(self, call: FakeCall) -> Script | None:
        if call.operation == "spawn" and not self.calls_to_spawn:
            frames = traceback.extract_stack()
            own = [
                frame.name for frame in frames if Path(frame.filename).is_relative_to(ROOT / "app")
            ]
            self.calls_to_spawn = own[own.index("advance") :]
        return super().find_script(call)


async def calls_to_the_agent() -> Sequence[str]:
    """Returns the service's functions on the stack when an agent's process is started, from `advance` on."""
    provider = _WatchedProvider()
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            core = await stack.enter_async_context(
                open_core(POLICY, socket=f"{directory}/broker.sock", sandboxes=provider)
            )
            request = request_of(ANSWER)
            await core.intake.accept(request)
            await ended(core, request.run_id)
    return provider.calls_to_spawn


def build_graph() -> grimp.ImportGraph:
    """Returns who imports whom in the product."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def _packages(graph: grimp.ImportGraph) -> Sequence[str]:
    return [*sorted(graph.find_children("app")), "sandbox_runtime", "agent_scripts"]


def _arrows(graph: grimp.ImportGraph) -> Sequence[tuple[str, str]]:
    packages = _packages(graph)

    def package_of(module: str) -> str | None:
        return next(
            (package for package in packages if f"{module}.".startswith(f"{package}.")), None
        )

    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = (package_of(module), package_of(imported))
            if None not in pair and pair[0] != pair[1]:
                found.add(pair)
    return sorted(found)  # type: ignore[arg-type] # no None is left in it


def circles(graph: grimp.ImportGraph) -> Sequence[str]:
    """Returns the packages of the service that import each other, over whatever way."""
    below: dict[str, set[str]] = {package: set() for package in _packages(graph)}
    for above, under in _arrows(graph):
        below[above].add(under)
    for _ in below:
        for known in below.values():
            known |= {deeper for under in list(known) for deeper in below[under]}
    return [package for package, under in below.items() if package in under]


def picture(graph: grimp.ImportGraph) -> str:
    """Returns the packages and their imports as a Mermaid chart, without what follows from other arrows."""
    arrows = set(_arrows(graph))
    below: dict[str, set[str]] = {package: set() for package in _packages(graph)}
    for above, under in arrows:
        below[above].add(under)

    def reaches(start: str, end: str) -> bool:
        return any(under == end or reaches(under, end) for under in below[start])

    shown = [
        (above, under)
        for above, under in sorted(arrows)
        if not any(reaches(between, under) for between in below[above] - {under})
    ]
    names = sorted({name for pair in shown for name in pair})
    boxes = [f'    {_id(name)}["{name.removeprefix("app.")}"]' for name in names]
    lines = [f"    {_id(above)} --> {_id(under)}" for above, under in shown]
    return "\n".join(["```mermaid", "graph TD", *boxes, *lines, "```"])


def _id(name: str) -> str:
    return name.replace(".", "_")


def with_picture(text: str, drawn: str) -> str:
    """Returns a Markdown text with its picture renewed.

    Raises:
        ValueError: the two lines that mark it are not there.
    """
    before, middle, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not middle or not end:
        raise ValueError(f"{BEGIN} and {END} must mark where the picture is")
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


if __name__ == "__main__":
    main()

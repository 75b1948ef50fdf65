"""What CONTRIBUTING says to copy for a new provider or agent, made for a name: what it says to do is what a test does."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.orion_process import scrubbed_environment
from tests.forking import REPOSITORY


@dataclass(frozen=True)
class Template:
    source: str
    """The folder that is copied."""
    package: str
    folder: str
    """Where its copy goes, in the package."""
    registry: str
    after: str
    """The line of the registry behind which the new one goes."""


PROVIDER = Template(
    source="docs/templates/provider",
    package="sandbox_runtime",
    folder="providers",
    registry="sandbox_runtime/registry.py",
    after='    "deno": "sandbox_runtime.providers.deno:SPEC",\n',
)
AGENT = Template(
    source="docs/templates/agent",
    package="agent_scripts",
    folder="agents",
    registry="agent_scripts/registry.py",
    after='    "opencode": "agent_scripts.agents.opencode:SPEC",\n',
)


def copy_with(template: Template, *, name: str, target: Path) -> Path:
    """Copies the package of this checkout to `target` and does in the copy what CONTRIBUTING says; the new folder."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / template.package, target / template.package, ignore=ignore)
    folder = target / template.package / template.folder / name
    shutil.copytree(REPOSITORY / template.source, folder, ignore=ignore)
    for path in folder.rglob("*.py"):
        path.write_text(_named(path.read_text(), name))
    registry = target / template.registry
    text = registry.read_text()
    assert text.count(template.after) == 1, template.after
    line = _named(_line_of_contributing(template), name)
    registry.write_text(text.replace(template.after, template.after + line))
    return folder


def lint_folder(copied: Path, folder: str, *, files: int) -> None:
    """Runs linter and type checker over a new folder of so many files as `make lint` does."""
    shutil.copy(REPOSITORY / "pyproject.toml", copied)
    run_python("-m", "ruff", "check", folder, says="All checks passed!", cwd=copied)
    run_python(
        "-m",
        "ruff",
        "format",
        "--check",
        folder,
        says=f"{files} files already formatted",
        cwd=copied,
    )
    modules = folder.replace("/", ".")
    cache = str(REPOSITORY / ".mypy_cache")
    run_python("-m", "mypy", "--cache-dir", cache, "-p", modules, says="Success", cwd=copied)


def run_python(
    *arguments: str, says: str, cwd: Path = REPOSITORY, env: Mapping[str, str] | None = None
) -> None:
    """Runs it to its end, which must be a good one and say this."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**scrubbed_environment(), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout, done.stdout


def _line_of_contributing(template: Template) -> str:
    """The page names the folder to copy, and gives the line of the registry."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    assert f"cp -r {template.source} {template.package}/{template.folder}/$name" in text
    (line,) = re.findall(rf"`{template.registry}`:\n\n```python\n(.*\n)```", text)
    return str(line)


def _named(text: str, name: str) -> str:
    return text.replace("NAME", name).replace("Name", name.capitalize())

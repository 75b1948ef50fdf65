"""A deployment as Vercel would make it: built by the real `vercel build`, unpacked as its functions find it. Nothing is sent anywhere."""

import fcntl
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forking import REPOSITORY

CLI = {
    "private": True,
    "dependencies": {"vercel": "64.0.2"},
    "overrides": {"sandbox": "4.5.0"},  # the version that 64.0.2 names is not published
}
PYTHON = "3.12"
"""What the builder chooses for `requires-python`."""
INSTALL_TIMEOUT_S, BUILD_TIMEOUT_S = 300.0, 300.0
PROJECT = {"projectId": "prj_test", "orgId": "team_test", "settings": {"framework": "fastapi"}}


class CannotBuildError(Exception):
    """Says what is not on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One of the build's."""

    config: Mapping[str, Any]
    """Of the platform, without its files."""
    directory: Path
    """Its `.func` directory."""
    files: Mapping[str, Path]
    """Where they are, by where the function has them."""

    @property
    def size_mb(self) -> float:
        """Of its files, in 10^6 bytes."""
        return sum(path.stat().st_size for path in self.files.values()) / 1e6

    def unpack(self, directory: Path) -> Path:
        """Lays its files out; returns the root."""
        for name, source in self.files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
        for own in self.directory.glob("*.py"):
            shutil.copy(own, directory)
        return directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    root: Path
    config: Mapping[str, Any]
    """Routes and crons."""
    functions: Mapping[str, Function]
    """By their paths, without `.func`."""
    python: Path


def check_tools() -> None:
    """Raises: CannotBuildError: as `build` does."""
    _find_python()
    _install_cli()


def build(directory: Path) -> Deployment:
    """Builds this checkout in a directory that is empty, offline but for package registries.

    Raises:
        CannotBuildError: node, npm or a Python of the right version is missing, or the client cannot be installed.
    """
    python, cli = _find_python(), _install_cli()
    _copy_tree(directory)
    (directory / ".vercel").mkdir()
    (directory / ".vercel" / "project.json").write_text(json.dumps(PROJECT))
    home = directory.with_name(f"{directory.name}-home")
    home.mkdir()
    programs = [cli / "node_modules" / ".bin", REPOSITORY / ".venv" / "bin", python.parent]
    # As the platform does with what `vercel.json` says of builds.
    said = json.loads((directory / "vercel.json").read_text())["build"]["env"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_")},  # noqa: TID251
        "HOME": str(home),
        "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),  # noqa: TID251
        "VERCEL_TELEMETRY_DISABLED": "1",
        **said,
    }
    _run(["vercel", "build", "--yes", "--token", "none"], BUILD_TIMEOUT_S, directory, environment)
    output = directory / ".vercel" / "output"
    functions = {}
    for path in (output / "functions").rglob(".vc-config.json"):
        config = json.loads(path.read_text())
        files = {name: directory / where for name, where in config.pop("filePathMap").items()}
        name = str(path.parent.relative_to(output / "functions")).removesuffix(".func")
        functions[name] = Function(config=config, directory=path.parent, files=files)
    return Deployment(
        root=directory,
        config=json.loads((output / "config.json").read_text()),
        functions=functions,
        python=python,
    )


def _copy_tree(directory: Path) -> None:
    """What a clone would have, and what is not committed yet."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=REPOSITORY, check=True, capture_output=True, timeout=30)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (REPOSITORY / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target)


@functools.cache
def _find_python() -> Path:
    """A Python that really starts: pyenv puts one of each name in the PATH, whether it is chosen or not."""
    found = [Path(path) for path in [shutil.which(f"python{PYTHON}")] if path]
    found += Path.home().glob(f".pyenv/versions/{PYTHON}.*/bin/python{PYTHON}")
    for path in found:
        answer = subprocess.run([path, "-c", ""], capture_output=True, check=False, timeout=30)
        if answer.returncode == 0:
            return path
    raise CannotBuildError(f"there is no Python {PYTHON}")


@functools.cache
def _install_cli() -> Path:
    """Installs the client once for all test processes of this machine, beside other versions."""
    if shutil.which("npm") is None:
        raise CannotBuildError("there is no npm")
    version = CLI["dependencies"]["vercel"]  # type: ignore[index] # a table
    directory = Path(tempfile.gettempdir(), f"orion-vercel-cli-{os.getuid()}-{version}")
    directory.mkdir(mode=0o700, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            (directory / "package.json").write_text(json.dumps(CLI))
            argv = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                _run([*argv, "--loglevel=error"], INSTALL_TIMEOUT_S, directory)
            except (AssertionError, subprocess.TimeoutExpired) as exc:
                raise CannotBuildError(f"the client cannot be installed: {exc}") from exc
            (directory / "done").touch()
    return directory


def _run(
    argv: Sequence[str], timeout_s: float, directory: Path, env: Mapping[str, str] | None = None
) -> None:
    """Raises: AssertionError: it failed, with all that it said."""
    # Its program is looked for in the PATH that it is given.
    path = shutil.which(argv[0], path=(env or os.environ)["PATH"])  # noqa: TID251
    assert path is not None, argv[0]
    answer = subprocess.run(
        [path, *argv[1:]],
        cwd=directory,
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert answer.returncode == 0, answer.stdout

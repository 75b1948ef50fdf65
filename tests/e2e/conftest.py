"""One prepared environment for all, one running Orion for every test that needs no settings of its own."""

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from agent_scripts.adapter import AgentPaths
from agent_scripts.registry import create_adapter
from tests.e2e.harness import Stage, World, open_orion, open_world
from tests.e2e.orion_process import new_state_dir, run_cli, scrubbed_environment

OpenOrion = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def prepared() -> Path:
    """A state directory whose agent environment is ready; made once per recipe and kept in the user's cache."""
    cache = Path(os.path.expandvars("$XDG_CACHE_HOME"))
    root = (cache if cache.is_absolute() else Path.home() / ".cache") / "orion-tests"
    root.mkdir(parents=True, exist_ok=True)
    paths = AgentPaths(work="/work", home="/home", run="/run", environment="/env")
    host = hashlib.sha256(f"{sys.base_prefix} {sys.version} {root}".encode()).hexdigest()[:8]
    ready = root / f"{create_adapter('anthropic').environment(paths).name}-{host}"
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _prepare(ready, root / f"new-{secrets.token_hex(4)}")
    return ready


def _prepare(ready: Path, state_dir: Path) -> None:
    """`orion verify` prepares the environment and proves that it works."""
    environment = scrubbed_environment() | {"ORION_STATE_DIR": str(state_dir)}
    try:
        code, output = asyncio.run(run_cli("verify", environment=environment))
        assert code == 0, output
        state_dir.rename(ready)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


@pytest.fixture
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_state_dir(tmp_path_factory.mktemp("orion"))


@pytest.fixture
def start_orion(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> OpenOrion:
    """Opens an Orion of the test's own: `async with start_orion(world, ORION_…="…") as stage`."""

    def start(world: World, **settings: str) -> AbstractAsyncContextManager[Stage]:
        return open_orion(
            world, new_state_dir(tmp_path_factory.mktemp("orion")), prepared, **settings
        )

    return start


@pytest.fixture(scope="session")
async def shared(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory, prepared: Path
) -> AsyncIterator[Stage]:
    """An Orion with default settings that runs through the whole session; tests keep to their own threads."""
    del anyio_backend
    directory = new_state_dir(tmp_path_factory.mktemp("shared"))
    async with open_world() as world, open_orion(world, directory, prepared) as stage:
        yield stage


@pytest.fixture
async def world(anyio_backend: str) -> AsyncIterator[World]:
    """A world of the test's own."""
    del anyio_backend
    async with open_world() as world:
        yield world


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that tests measured, with `record_property`."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for report in reports:
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")

"""One prepared environment for all, one running Orion for every test that needs no settings of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.e2e.harness import Stage, World, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

OpenOrion = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def prepared() -> Path:
    """A state directory whose agent environment is ready; made once per recipe and kept in the user's cache."""
    return prepared_state_dir()


@pytest.fixture
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_state_dir(tmp_path_factory.mktemp("orion"))


@pytest.fixture
def start_orion(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> OpenOrion:
    """Opens an Orion of the test's own: `async with start_orion(world, ORION_…="…") as stage`."""

    def start(world: World, **settings: str) -> AbstractAsyncContextManager[Stage]:
        directory = new_state_dir(tmp_path_factory.mktemp("orion"))
        return open_orion(world, directory, prepared, **settings)

    return start


@pytest.fixture(scope="module")
async def shared(
    anyio_backend: str,
    tmp_path_factory: pytest.TempPathFactory,
    prepared: Path,
) -> AsyncIterator[Stage]:
    """An Orion that runs through the whole file; tests keep to their own threads. An idle one is not free."""
    del anyio_backend
    directory = new_state_dir(tmp_path_factory.mktemp("shared"))
    async with (
        open_world() as world,
        open_orion(world, directory, prepared) as stage,
    ):
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

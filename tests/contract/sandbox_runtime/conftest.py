"""One image and one namespace on the engine, one emulated cloud; at the end nothing of it is left."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from secrets import token_hex

import pytest

from app.settings.settings import host_environment
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from tests.contract.sandbox_runtime.vercel_service import VercelService, run_service
from tests.docker_image import ensure_image


@pytest.fixture(scope="session")
def docker_settings() -> Iterator[DockerSettings]:
    name = f"test-{token_hex(4)}"
    host = host_environment().get("DOCKER_HOST", DockerSettings().docker_host)
    yield DockerSettings(name=name, image=ensure_image(), docker_host=host)
    mine = ("--filter", f"label=orion.name={name}")
    containers = _docker("ps", "--all", "--quiet", *mine).split()
    volumes = _docker("volume", "ls", "--quiet", *mine).split()
    if containers:
        _docker("rm", "--force", "--volumes", *containers)
    images = _docker("images", *mine, "--format", "{{.Repository}}:{{.Tag}}").split()
    named = [image for image in images if "<none>" not in image]
    if named:
        _docker("rmi", "--force", *named)
    _docker("image", "prune", "--force", *mine)
    assert (containers, volumes) == ([], [])
    assert _docker("images", "--all", "--quiet", *mine) == ""


@pytest.fixture
async def provider(docker_settings: DockerSettings) -> AsyncIterator[DockerProvider]:
    """Modules for several providers have one of their own."""
    async with DockerProvider(docker_settings) as provider:
        yield provider


@pytest.fixture(scope="module")
def vercel_service() -> Iterator[VercelService]:
    with run_service() as service:
        yield service


@pytest.fixture
def vercel(vercel_service: VercelService) -> Iterator[VercelService]:
    """With no fault set and nothing seen yet; at the end nothing runs there."""
    vercel_service.emulator.reset()
    yield vercel_service
    vercel_service.emulator.reset()
    assert vercel_service.emulator.running() == []


def _docker(*arguments: str) -> str:
    argv = ["docker", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

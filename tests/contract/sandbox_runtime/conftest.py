"""One image and one namespace on the engine for all tests; at the end nothing of it is left."""

import subprocess
from collections.abc import Iterator
from secrets import token_hex

import pytest

from sandbox_runtime.providers.docker import DockerSettings
from tests.docker_image import ensure_image


@pytest.fixture(scope="session")
def docker_settings() -> Iterator[DockerSettings]:
    name = f"test-{token_hex(4)}"
    yield DockerSettings(name=name, image=ensure_image())
    filters = ("--filter", f"label=orion.name={name}", "--quiet")
    for kind, remove in (
        (("ps", "--all"), ("rm", "--force")),
        (("volume", "ls"), ("volume", "rm")),
        (("images",), ("rmi", "--force")),
    ):
        found = _docker(*kind, *filters).split()
        if found:
            _docker(*remove, *sorted(set(found)))
        if kind != ("images",):
            assert not found, f"left behind: {kind} {found}"


def _docker(*arguments: str) -> str:
    argv = ["docker", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

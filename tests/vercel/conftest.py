"""One build for all tests of it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from app.settings.settings import host_environment
from tests.vercel.deployment import CannotBuildError, Deployment, build


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    try:
        yield build(tmp_path_factory.mktemp("deployment"))
    except CannotBuildError as exc:
        if host_environment().get("CI") == "true":
            raise  # there nothing may be left out
        pytest.skip(f"Vercel's build cannot be tried here: {exc}")


@pytest.fixture(scope="session")
def bundles(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The files of each function, where it would find them."""
    return {
        name: function.unpack(tmp_path_factory.mktemp("bundle"))
        for name, function in deployment.functions.items()
    }

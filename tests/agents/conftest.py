"""The real script under the real supervisor and relay; only the model behind the unix socket is ours."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from app.playground.model.server import ModelPace, create_model_app
from tests.agents.bench import Bench, serve


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The test interpreter's own environment holds the same SDK; linked where the adapter expects a venv."""
    root = tmp_path / "env"
    root.mkdir()
    (root / "venv").symlink_to(sys.prefix)
    return root


@pytest.fixture
def bench(tmp_path: Path, environment: Path) -> Bench:
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    return Bench(root=tmp_path, socket_path=tmp_path / "broker.sock", environment=environment)


@pytest.fixture
def model_app() -> ASGIApp:
    return create_model_app(pace=ModelPace(word_s=0, slow_word_s=0.2))


@pytest.fixture
async def model(bench: Bench, model_app: ASGIApp) -> AsyncIterator[Bench]:
    """A bench with the offline model behind its socket."""
    async with serve(model_app, bench.socket_path):
        yield bench

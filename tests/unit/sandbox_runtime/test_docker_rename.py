"""Who may rename a container has it; behind a proxy that refuses to, nobody has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Response

from app.web.hosting import serve
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.providers.docker.client import Engine, open_engine


def _engine(status: int) -> FastAPI:
    app = FastAPI()

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"ApiVersion": "1.41", "Version": "20.10"}

    @app.post("/v1.41/containers/one/rename")
    async def rename(name: str) -> Response:
        assert name == "two"
        return Response(status_code=status)

    return app


@asynccontextmanager
async def _opened(status: int) -> AsyncIterator[Engine]:
    async with (
        serve(_engine(status)) as url,
        open_engine(url.replace("http:", "tcp:")) as engine,
    ):
        yield engine


@pytest.mark.parametrize(("status", "is_renamed"), [(204, True), (404, False), (403, False)])
async def test_what_the_engine_says(status: int, *, is_renamed: bool) -> None:
    async with _opened(status) as engine:
        assert await engine.rename("one", "two") is is_renamed


async def test_another_failure_is_one() -> None:
    async with serve(_engine(500)) as url, open_engine(url.replace("http:", "tcp:")) as engine:
        with pytest.raises(SandboxError, match="cannot rename a container"):
            await engine.rename("one", "two")

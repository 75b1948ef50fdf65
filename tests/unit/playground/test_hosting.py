"""The embedded server starts on a free port, ends in bounded time, and leaves nothing behind."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from app.web.hosting import serve
from tests.plain_http import NO_TLS


def _app(events: list[str]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        events.append("started")
        yield
        events.append("stopped")

    app = FastAPI(lifespan=lifespan)

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            try:
                while True:
                    yield "tick\n"
                    await asyncio.sleep(0.01)
            finally:
                events.append("stream ended")

        return StreamingResponse(chunks())

    return app


async def test_serves_with_lifespan_on_a_free_port() -> None:
    """The app answers while the block runs, and its lifespan surrounds that."""
    events: list[str] = []
    async with (
        serve(_app(events)) as url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
    ):
        assert (await http.get(f"{url}/hello")).json() == "hello"
        assert events == ["started"]
    assert events == ["started", "stopped"]


async def test_an_endless_response_does_not_hold_up_the_end() -> None:
    """Leaving the block with an open stream takes under three seconds and ends the stream's generator."""
    events: list[str] = []
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        async with serve(_app(events)) as url:
            response = await http.send(http.build_request("GET", f"{url}/endless"), stream=True)
            left_at = loop.time()
        assert loop.time() - left_at < 3
        await response.aclose()
    assert events == ["started", "stream ended", "stopped"]


async def test_the_block_fails_with_its_own_exception() -> None:
    """An exception of the caller passes through unwrapped, and the server has ended by then."""
    events: list[str] = []
    with pytest.raises(KeyError, match="mine"):
        async with serve(_app(events)):
            raise KeyError("mine")
    assert events == ["started", "stopped"]


async def test_a_failing_lifespan_is_a_runtime_error() -> None:
    """An app that cannot start raises in the caller, and does not end the process."""

    @asynccontextmanager
    async def broken(_app: FastAPI) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    with pytest.raises(RuntimeError, match="could not start"):
        async with serve(FastAPI(lifespan=broken)):
            pytest.fail("the block must not run")


async def test_a_taken_port_is_an_os_error() -> None:
    """A second server on the same port is refused before anything starts."""
    async with serve(_app([])) as url:
        with pytest.raises(OSError, match="in use"):
            async with serve(_app([]), port=int(url.rpartition(":")[2])):
                pytest.fail("the block must not run")


async def test_a_unix_socket_is_private_and_removed(tmp_path: Path) -> None:
    """A unix socket is readable by its owner only and gone afterwards."""
    path = tmp_path / "s"
    async with serve(_app([]), uds=path) as url:
        assert path.stat().st_mode & 0o777 == 0o600
        transport = httpx.AsyncHTTPTransport(verify=NO_TLS, uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url=url) as http:
            assert (await http.get("/hello")).json() == "hello"
    assert not path.exists()


async def test_signal_handlers_stay_the_process_own() -> None:
    """Serving does not replace the handler of SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    async with serve(_app([])):
        assert signal.getsignal(signal.SIGINT) is before

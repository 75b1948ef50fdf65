"""What the program that tries hosts from inside says of an address that is dialled by a listed name in TLS."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_scripts.inside import reach
from tests.certificates import Authority

NAME, OWN, OTHER = "localhost", "127.0.0.1", "127.0.0.2"
PAGE = b"HTTP/1.1 200 OK\r\nserver: %s\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def serving(
    authority: Authority, says: bytes | None, address: str, *, name: str = NAME, port: int = 0
) -> AsyncIterator[int]:
    """A server with a certificate for a name; says=None: it ends without a word, and before TLS where the name is empty."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if says is not None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(says)
            await writer.drain()
        writer.close()

    context = authority.server(name) if name else None
    server = await asyncio.start_server(answer, address, port, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("there", "name", "became"),
    [
        (PAGE % b"own", NAME, "failed: leads to localhost itself"),
        (PAGE % b"other", NAME, "reached"),
        (PAGE.replace(b"200", b"404") % b"own", NAME, "reached"),
        (PAGE.replace(b"200", b"502") % b"", NAME, "failed: 502"),
        (b"220 ready\r\n", NAME, "reached"),
        (None, NAME, "failed: Remote end closed connection without response"),
        (None, "", "failed: "),
        (PAGE % b"own", "other.example", "reached"),
    ],
    ids=[
        *("itself", "another kind of server", "another answer", "a gateway", "no HTTP"),
        *("no answer", "no TLS", "another one's certificate"),
    ],
)
async def test_whoever_answers_by_a_listed_name(
    there: bytes | None, name: str, became: str, tmp_path: Path
) -> None:
    """The one that has the name is at the same port of another address."""
    authority = Authority()
    async with (
        serving(authority, PAGE % b"own", OWN) as port,
        serving(authority, there, OTHER, name=name, port=port),
    ):
        assert (await try_other(authority, port, tmp_path)).startswith(became)


async def test_a_name_that_is_down_itself_was_not_who_answered(tmp_path: Path) -> None:
    authority = Authority()
    async with serving(authority, PAGE % b"other", OTHER) as port:
        assert await try_other(authority, port, tmp_path) == "reached"


async def try_other(authority: Authority, port: int, directory: Path) -> str:
    """What the program says became of it."""
    trusted, host = directory / "trusted.pem", f"{NAME}:{port}@{OTHER}"
    trusted.write_text(authority.pem)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", reach.__file__, "/nowhere", host),
        env={"SSL_CERT_FILE": str(trusted)},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await program.communicate()
    found = json.loads(out)[host]
    assert found["by_proxy"] == ""
    return str(found["direct"])

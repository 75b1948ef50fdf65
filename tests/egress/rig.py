"""A proxy at a unix socket, and the origin to which all of its connections lead; what an attempt sends is judged by what arrives there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.aio import open_task_group
from app.egress.hosts import HostEntry, HostSet, read_items
from app.egress.proxy import EgressBounds, EgressGrant, EgressProxy, dial
from app.egress.tally import Tally
from app.egress.upstream import Upstream
from tests.egress.bypasses import ENTRIES, PUBLIC_ADDRESS, Bypass

QUICK = EgressBounds(head_s=0.5, hello_s=1.0, dial_s=0.5, idle_s=1.0)
TIMEOUT_S = 10.0
PAUSE_S = 0.05
ANSWER = b"answer of the origin"


def entries_of(words: Sequence[str]) -> tuple[HostEntry, ...]:
    """Returns entries as an operator writes them."""
    return tuple(one for one in read_items(words) if not isinstance(one, HostSet))


@dataclass(slots=True, kw_only=True)
class Origin:
    """Answers each connection that sends something, once."""

    arrived: list[bytes] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    """As the proxy wanted it."""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.arrived)
        self.arrived.append(b"")
        try:
            while data := await reader.read(65536):
                if not self.arrived[number]:
                    writer.write(ANSWER)
                self.arrived[number] += data
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def dial(self, address: str, port: int) -> Upstream:
        """Is a Dial that leads here, whatever the address."""
        self.dialled.append((address, port))
        return await dial("127.0.0.1", self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    path: Path
    origin: Origin
    tally: Tally
    proxy: EgressProxy

    async def send(self, pieces: Sequence[bytes]) -> bytes:
        """Sends an attempt, and returns all that its client is told."""
        told = bytearray()
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(self.path)
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    try:
                        async with asyncio.timeout(PAUSE_S):
                            told += await reader.read(65536)
                    except TimeoutError:
                        pass
                if pieces[-1] == b"":
                    writer.write_eof()
                while not told.endswith(ANSWER) and (data := await reader.read(65536)):
                    told += data
            except ConnectionError:
                pass
            finally:
                writer.close()
        return bytes(told)


@asynccontextmanager
async def open_rig(
    directory: Path,
    bypass: Bypass,
    *,
    words: Sequence[str] = ENTRIES,
    bounds: EgressBounds = QUICK,
) -> AsyncIterator[Rig]:
    """Opens a proxy for whom DNS answers as the attempt says."""
    origin, tally, path = Origin(), Tally(), directory / "egress"

    async def look_up(name: str, port: int) -> Sequence[str]:
        del port
        found = bypass.answers.get(name.removesuffix("."), [PUBLIC_ADDRESS])
        if not found:
            raise OSError("no such name")
        return found

    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    origin.port = server.sockets[0].getsockname()[1]
    async with server, open_task_group() as group:
        proxy = EgressProxy(
            group,
            look_up=look_up,
            dial=origin.dial,
            is_own=lambda address: address in bypass.own,
            bounds=bounds,
        )
        grant = EgressGrant(run_id="run_1", entries=entries_of(words), tally=tally)
        async with proxy.listen(path, lambda: grant):
            yield Rig(path=path, origin=origin, tally=tally, proxy=proxy)

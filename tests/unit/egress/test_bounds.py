"""How long and how much: what waits, floods or outlives its run is cut, and whose list counts is the run's at that moment."""

import asyncio
from dataclasses import replace
from pathlib import Path

from app.aio import open_task_group
from app.egress.proxy import EgressGrant, EgressProxy
from app.egress.tally import Tally
from tests.egress.bypasses import LISTED, Bypass, client_hello, connect
from tests.egress.rig import ANSWER, QUICK, Rig, entries_of, open_rig

PLAIN_CASE = Bypass(kind="bounds", what="a listed host", pieces=())
TUNNEL = (connect(f"{LISTED}:443"), client_hello(LISTED))
CUT_WITHIN_S = 1.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_tunnel(rig: Rig) -> Streams:
    """Returns a tunnel through which the origin has answered."""
    reader, writer = await asyncio.open_unix_connection(rig.path)
    writer.write(b"".join(TUNNEL))
    async with asyncio.timeout(5):
        await reader.readuntil(ANSWER)
    return reader, writer


async def is_cut(reader: asyncio.StreamReader, *, within_s: float) -> bool:
    """Whether the connection ends, whatever comes before."""
    try:
        async with asyncio.timeout(within_s):
            await reader.read()
            return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def test_an_open_tunnel_ends_with_the_socket(tmp_path: Path) -> None:
    """As with the run's end, within a second."""
    async with open_rig(tmp_path, PLAIN_CASE) as rig:
        reader, writer = await open_tunnel(rig)
    assert await is_cut(reader, within_s=CUT_WITHIN_S)
    writer.close()
    assert not rig.path.exists()


async def test_one_connection_too_many(tmp_path: Path) -> None:
    """It is refused; the others go on, and when one of them ends there is room again."""
    bounds = replace(QUICK, connections=2, idle_s=10)
    async with open_rig(tmp_path, PLAIN_CASE, bounds=bounds) as rig:
        tunnels = [await open_tunnel(rig) for _ in range(2)]
        assert b" 429 " in await rig.send(TUNNEL)
        tunnels[0][1].close()
        async with asyncio.timeout(5):
            while rig.tally.open_connections > 1:
                await asyncio.sleep(0.01)
        (await open_tunnel(rig))[1].close()
        tunnels[1][1].close()
        assert rig.tally.refused == []  # it was reached, too
        assert [use.refusals for use in rig.tally.uses] == [0, 1]


async def test_all_runs_together_have_a_bound(tmp_path: Path) -> None:
    bounds = replace(QUICK, all_connections=1, idle_s=10)
    async with open_rig(tmp_path, PLAIN_CASE, bounds=bounds) as rig:
        (_, writer) = await open_tunnel(rig)
        assert b" 429 " in await rig.send(TUNNEL)
        writer.close()


async def test_who_says_nothing_keeps_nobody_out(tmp_path: Path) -> None:
    """It holds no place among all runs' connections, and of its own run's only so many are open."""
    bounds = replace(QUICK, connections=2, all_connections=2, head_s=5)
    async with open_rig(tmp_path, PLAIN_CASE, bounds=bounds) as rig:
        silent = [await asyncio.open_unix_connection(rig.path) for _ in range(6)]
        for reader, _ in silent[4:]:
            async with asyncio.timeout(2):
                assert b" 429 " in await reader.read()
        other = Tally()
        grant = EgressGrant(run_id="run_2", entries=entries_of([LISTED]), tally=other)
        async with rig.proxy.listen(tmp_path / "other", lambda: grant):
            told = await replace(rig, path=tmp_path / "other", tally=other).send(TUNNEL)
        assert told.endswith(ANSWER)
        for _, writer in silent:
            writer.close()


async def test_a_head_in_drops(tmp_path: Path) -> None:
    """A byte now and then keeps nobody waiting for longer than a whole head may take."""
    async with open_rig(tmp_path, PLAIN_CASE) as rig:
        reader, writer = await asyncio.open_unix_connection(rig.path)
        for byte in TUNNEL[0][:8]:
            writer.write(bytes([byte]))
            await asyncio.sleep(QUICK.head_s / 10)
        async with asyncio.timeout(5):
            assert b" 408 " in await reader.read()
        writer.close()
        assert rig.origin.dialled == []


async def test_a_tunnel_that_idles(tmp_path: Path) -> None:
    """It is cut; one in which a byte moves is not."""
    async with open_rig(tmp_path, PLAIN_CASE, bounds=replace(QUICK, idle_s=0.4)) as rig:
        reader, writer = await open_tunnel(rig)
        for _ in range(4):
            writer.write(b"x")
            await asyncio.sleep(0.2)
        assert not reader.at_eof()
        assert await is_cut(reader, within_s=5)
        writer.close()


async def test_a_run_has_sent_enough(tmp_path: Path) -> None:
    """The connection is cut, and the next one is refused: the bound is the run's, not a connection's."""
    async with open_rig(tmp_path, PLAIN_CASE, bounds=replace(QUICK, sent_bytes=100_000)) as rig:
        reader, writer = await asyncio.open_unix_connection(rig.path)
        writer.write(b"".join(TUNNEL) + b"x" * 300_000)
        assert await is_cut(reader, within_s=5)
        writer.close()
        assert b" 403 " in await rig.send(TUNNEL)
        assert sum(map(len, rig.origin.arrived)) < 300_000


async def test_a_run_has_got_enough(tmp_path: Path) -> None:
    """As with what it sends."""
    bounds = replace(QUICK, received_bytes=len(ANSWER) - 1)
    async with open_rig(tmp_path, PLAIN_CASE, bounds=bounds) as rig:
        assert not (await rig.send(TUNNEL)).endswith(ANSWER)
        assert b" 403 " in await rig.send(TUNNEL)


async def test_whose_list_counts(tmp_path: Path) -> None:
    """At each connection it is the grant's of that moment: of another run at its own socket, and of the next slice at the same."""
    one = EgressGrant(run_id="run_1", entries=entries_of([LISTED]), tally=Tally())
    other = EgressGrant(run_id="run_2", entries=entries_of(["other.example"]), tally=Tally())
    current = [one]
    async with open_task_group() as group, open_rig(tmp_path, PLAIN_CASE) as rig:
        proxy = EgressProxy(group, dial=rig.origin.dial, look_up=_public, bounds=QUICK)
        async with (
            proxy.listen(tmp_path / "one", lambda: current[0]),
            proxy.listen(tmp_path / "two", lambda: other),
        ):
            at_one, at_two = (replace(rig, path=tmp_path / name) for name in ("one", "two"))
            assert (await at_one.send(TUNNEL)).endswith(ANSWER)
            assert b" 403 " in await at_two.send(TUNNEL)
            current[0] = replace(other, run_id="run_1")
            assert b" 403 " in await at_one.send(TUNNEL)
    assert [use.host for use in one.tally.uses] == [f"{LISTED}:443"]


async def _public(name: str, port: int) -> list[str]:
    del name, port
    return ["93.184.216.34"]


async def test_a_client_that_leaves_at_once(tmp_path: Path) -> None:
    """Ten thousand times: nothing is left open, and the next one is served."""
    async with open_rig(tmp_path, PLAIN_CASE) as rig:
        for _ in range(10_000):
            _, writer = await asyncio.open_unix_connection(rig.path)
            writer.close()
        (await open_tunnel(rig))[1].close()
        async with asyncio.timeout(10):
            while rig.tally.open_connections:
                await asyncio.sleep(0.01)

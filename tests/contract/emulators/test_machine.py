"""The machines of cloud emulators: users, disks, processes and a network that is really enforced."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.emulators.machine import Machine, boot
from tests.emulators.machine_disk import discard
from tests.emulators.machine_network import CLOSED, OPEN, Address, Policy, adding

pytestmark = pytest.mark.bubblewrap

_GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())"


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that answers with the request's head."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + head)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def machine(tmp_path: Path, echo: int) -> AsyncIterator[Machine]:
    internet = (Address(host="127.0.0.1", port=echo), Address(host="orion.test", port=echo))
    async with boot(tmp_path / "disk", internet=internet) as machine:
        yield machine
    await discard(tmp_path / "disk")


async def _say(machine: Machine, script: str, *, user: str = "ubuntu", data: bytes = b"") -> str:
    done = await machine.run(["sh", "-c", script], user=user, data=data)
    return done.stdout.decode() + done.stderr.decode() + str(done.code)


async def test_users(machine: Machine) -> None:
    """An ordinary user with a home, and sudo for those who may; the system is nobody's to write."""
    assert await _say(machine, "id -un; echo $HOME; touch ~/x") == "ubuntu\n/vercel\n0"
    assert await _say(machine, "sudo id -u; touch /etc/x 2>/dev/null || exit 3") == "0\n3"
    assert await _say(machine, "sudo -n sh -c 'exit 7'") == "7"
    assert (await _say(machine, "touch /usr/x", user="root")).endswith("1")
    assert (await _say(machine, "mount -t tmpfs none /mnt", user="root")).startswith("mount:")


async def test_streams_and_signals(machine: Machine) -> None:
    """Input, both outputs, exit codes; a signal reaches the command alone, a stop everything."""
    assert await _say(machine, "cat; echo e >&2; exit 3", data=b"in ") == "in e\n3"
    assert await _say(machine, "no-such-command 2>/dev/null") == "127"
    process = await machine.start(["sh", "-c", "echo up; exec sleep 60"], user="ubuntu")
    assert await process.stdout.readline() == b"up\n"
    process.signal(signal.SIGTERM)
    assert await process.wait() == 143
    process = await machine.start(["sleep", "60"], user="ubuntu")
    await machine.stop()
    assert await process.wait() == 137
    with pytest.raises(ConnectionError):
        await machine.start(["true"], user="ubuntu")


async def test_network(machine: Machine, echo: int) -> None:
    """What the policy says, at once and for each host; headers are added where nobody inside sees them."""

    async def get(host: str) -> str:
        argv = ["python3", "-c", _GET, f"http://{host}:{echo}/"]
        done = await machine.run(argv, user="ubuntu")
        return done.stdout.decode().lower() if done.code == 0 else ""

    assert await get("127.0.0.1") == await get("orion.test") == ""
    machine.network.policy = OPEN
    assert "user-agent" in await get("127.0.0.1")
    machine.network.policy = Policy(hosts={"orion.test": adding({"x-key": "K1"})})
    assert "x-key: k1" in await get("orion.test")
    assert await get("127.0.0.1") == ""
    machine.network.policy = CLOSED
    assert await get("orion.test") == ""
    assert (await _say(machine, "tail -n +3 /proc/net/dev | cut -d: -f1")).split() == ["lo", "0"]


async def test_disks(machine: Machine, tmp_path: Path) -> None:
    """A saved disk boots again as it was, owners and all, and is not changed by what came later."""
    await _say(machine, "mkdir -m 700 ~/d; echo 1 > ~/d/f; mkfifo ~/fifo")
    await machine.stop()
    await machine.save(tmp_path / "saved")
    await machine.power_on()
    await _say(machine, "echo 2 > ~/d/f")
    async with boot(tmp_path / "other", saved=tmp_path / "saved") as other:
        assert await _say(other, "cat ~/d/f; stat -c %U ~/fifo") == "1\nubuntu\n0"
    for name in ("saved", "other"):
        await discard(tmp_path / name)

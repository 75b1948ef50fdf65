"""What passes from one socket to another within the kernel: whole, in order, held up, cut."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.aio import open_task_group
from app.egress.pipe import SocketPipe
from tests.waiting import until

pytestmark = pytest.mark.timeout(60)

MIB = 1024 * 1024
DATA = b"".join(number.to_bytes(4, "big") * (MIB // 4) for number in range(64))


@dataclass
class Ends:
    """The two sockets of a pipe, from outside; and what it has told."""

    sender: socket.socket
    receiver: socket.socket
    source: socket.socket
    target: socket.socket
    came: list[int] = field(default_factory=list)
    ends: list[OSError | None] = field(default_factory=list)
    refuses_after: int = 1 << 40

    def count(self, size: int) -> None:
        self.came.append(size)
        if sum(self.came) > self.refuses_after:
            raise ConnectionAbortedError

    def open(self) -> SocketPipe:
        return SocketPipe(
            self.source.fileno(), self.target.fileno(), count=self.count, on_end=self.ends.append
        )


@pytest.fixture
def ends() -> Iterator[Ends]:
    """TCP on one side, a unix socket on the other, as in the proxy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        source, _ = listener.accept()
    target, receiver = socket.socketpair()
    both = (sender, source, target, receiver)
    for one in both:
        one.settimeout(0)
    yield Ends(sender=sender, receiver=receiver, source=source, target=target)
    for one in both:
        one.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def _read_all(receiver: socket.socket) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < len(DATA):
        got += await loop.sock_recv(receiver, MIB)
    return bytes(got)


async def test_all_comes_in_order_and_nothing_is_left_open(ends: Ends) -> None:
    """More than fits anywhere at once; the end of the source is told once."""
    loop, before = asyncio.get_running_loop(), descriptors()
    ends.open()
    async with open_task_group() as group:
        reading = group.create_task(_read_all(ends.receiver))
        await loop.sock_sendall(ends.sender, DATA)
        ends.sender.shutdown(socket.SHUT_WR)
        assert await reading == DATA
    assert sum(ends.came) == len(DATA)
    await until(lambda: ends.ends == [None])
    assert descriptors() == before


async def test_who_takes_nothing_holds_the_source_up(ends: Ends) -> None:
    loop = asyncio.get_running_loop()
    pipe = ends.open()
    async with open_task_group() as group:
        sending = group.create_task(loop.sock_sendall(ends.sender, DATA))
        await asyncio.sleep(0.3)
        assert not sending.done()
        assert 0 < sum(ends.came) < 4 * MIB
        reading = group.create_task(_read_all(ends.receiver))
        assert await reading == DATA
    pipe.close()


@pytest.mark.parametrize("broken", ["source", "target"])
async def test_a_side_that_breaks_ends_it(ends: Ends, broken: str) -> None:
    """With what broke; also while it is held up."""
    loop = asyncio.get_running_loop()
    ends.open()
    async with open_task_group() as group:
        sending = group.create_task(loop.sock_sendall(ends.sender, DATA))
        await asyncio.sleep(0.1)
        sending.cancel()
    if broken == "target":
        ends.receiver.close()
    else:
        ends.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        ends.sender.close()
        async with open_task_group() as group:
            reading = group.create_task(_read_all(ends.receiver))
            await until(lambda: len(ends.ends) == 1)
            reading.cancel()
    await until(lambda: len(ends.ends) == 1)
    assert isinstance(ends.ends[0], OSError)


async def test_who_counts_may_end_it(ends: Ends) -> None:
    loop = asyncio.get_running_loop()
    ends.refuses_after = 10
    ends.open()
    await loop.sock_sendall(ends.sender, b"x" * 11)
    await until(lambda: len(ends.ends) == 1)
    assert isinstance(ends.ends[0], ConnectionAbortedError)


async def test_closed_it_says_nothing(ends: Ends) -> None:
    """And its sockets are still their owners'."""
    loop, before = asyncio.get_running_loop(), descriptors()
    pipe = ends.open()
    pipe.close()
    pipe.close()
    assert descriptors() == before
    await loop.sock_sendall(ends.sender, b"later")
    assert await loop.sock_recv(ends.source, 5) == b"later"
    assert ends.ends == []

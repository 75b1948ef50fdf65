"""The image's health check, against services that live, refuse, hang and are not there."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from tests.forking import REPOSITORY
from tests.ports import free_port

pytestmark = pytest.mark.e2e


@contextmanager
def answering(line: bytes | None) -> Iterator[int]:
    """A port where whoever asks is told this, or nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(4096)
                if line is not None and asked.startswith(b"GET /healthz "):
                    connection.sendall(line + b"\r\nContent-Length: 0\r\n\r\n")
                elif line is None:
                    connection.recv(1)

        thread = Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def check(port: int, host: str = "127.0.0.1") -> int:
    argv = [sys.executable, "-I", "-S", str(REPOSITORY / "container" / "healthcheck.py")]
    environment = {"ORION_HOST": host, "ORION_PORT": str(port)}
    return subprocess.run(argv, env=environment, timeout=10, check=False).returncode


@pytest.mark.parametrize(
    ("line", "host", "code"),
    [
        (b"HTTP/1.1 200 OK", "127.0.0.1", 0),
        (b"HTTP/1.1 200 OK", "0.0.0.0", 0),  # noqa: S104 - the setting's value
        (b"HTTP/1.1 503 Service Unavailable", "127.0.0.1", 1),
        (b"no HTTP", "127.0.0.1", 1),
    ],
    ids=["lives", "bound to all addresses", "refuses", "is something else"],
)
def test_what_is_answered(line: bytes, host: str, code: int) -> None:
    """Only a 200 of the address that the service is bound to is health."""
    with answering(line) as port:
        assert check(port, host) == code


def test_nothing_is_answered() -> None:
    """A service that hangs is given up within the check's time; one that is not there at once."""
    assert check(free_port()) == 1
    with answering(None) as port:
        begun = time.monotonic()
        assert check(port) == 1
        assert 2.5 < time.monotonic() - begun < 8.0  # given up, not killed by the 10 s of this test

"""How what runs in a sandbox gets out by the unix sockets of its thread: loopback ports that lead to the broker, and to the proxy.

Usage, for one command that shall find the proxy: `python3 -I relay.py BROKER COMMAND [ARGUMENT ...]`
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

_MAX_CONNECTIONS = 64
_MAX_EGRESS_CONNECTIONS = 160
"""More than the proxy lets one run have, asked for or not: it is the proxy that says no."""
_CONNECT_TIMEOUT_S = 10
_BROKER_WAIT_S = 15.0
_BROKER_PAUSE_S = 0.2
_CROWDED_PAUSE_S = 0.05
_CHUNK_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031
"""Source: Linux, include/uapi/linux/fcntl.h; the module has a name for it since Python 3.10."""
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EPERM)
_STACK_BYTES = 512 * 1024
"""Default stacks of 8 MiB would eat a sandbox's address space limit."""
_PORT_NAME = "ORION_EGRESS_PORT"
_EGRESS = "egress"
"""Both as `sandbox_runtime.types` has them."""


def broker_url(broker: str) -> str:
    """Returns the base URL of a broker that is given by its URL or the path of its socket; for the latter a relay is started."""
    return broker.rstrip("/") if broker.startswith(("http://", "https://")) else start_relay(broker)


def start_egress(broker: str) -> None:
    """Serves the proxy beside the broker's socket at the port that the sandbox's environment names; without one there is no proxy.

    Its connections are counted by themselves: an install must not keep the agent from its model.
    """
    port = os.environ.get(_PORT_NAME)
    if not port:
        return
    try:
        proxy = str(Path(broker).with_name(_EGRESS))
        start_relay(proxy, port=int(port), limit=_MAX_EGRESS_CONNECTIONS)
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:  # else another relay of this sandbox is there
            raise


def start_relay(
    broker_socket: str,
    wait_s: float = _BROKER_WAIT_S,
    *,
    port: int = 0,
    limit: int = _MAX_CONNECTIONS,
) -> str:
    """Serves from daemon threads until this process ends. A broker that is not there is waited for so long.

    `port`: 0 = any that is free. `limit`: of connections at once; more wait in the kernel's backlog.

    Returns:
        The relay's base URL, `http://127.0.0.1:PORT`.

    Raises:
        OSError: the port is taken.
    """
    threading.stack_size(_STACK_BYTES)
    listener = socket.create_server(("127.0.0.1", port), backlog=limit)
    free = threading.BoundedSemaphore(limit)
    serving = (listener, broker_socket, _Absence(wait_s), free)
    threading.Thread(target=_accept, args=serving, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _accept(
    listener: socket.socket,
    broker_socket: str,
    absence: _Absence,
    free: threading.BoundedSemaphore,
) -> None:
    while True:
        free.acquire()  # the connection's thread gives it back
        try:
            _accept_one(listener, broker_socket, absence, free)
        except (OSError, RuntimeError):
            # No descriptor or no thread is left for the moment, or this client is gone; the run needs us later, too.
            free.release()
            time.sleep(_CROWDED_PAUSE_S)


def _accept_one(
    listener: socket.socket,
    broker_socket: str,
    absence: _Absence,
    free: threading.BoundedSemaphore,
) -> None:
    """Raises: OSError, RuntimeError: nobody serves it, and it is closed."""
    with contextlib.ExitStack() as stack:
        client, _ = listener.accept()
        stack.enter_context(client)
        # Otherwise each piece of a stream would wait until the one before is acknowledged.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serving = (client, broker_socket, absence, free)
        threading.Thread(target=_serve, args=serving, daemon=True).start()
        stack.pop_all()  # it is the thread's now


def _serve(
    client: socket.socket, broker_socket: str, absence: _Absence, free: threading.BoundedSemaphore
) -> None:
    # Whatever is not left for it, the agent sees a closed connection, which its SDK retries.
    with contextlib.suppress(OSError, RuntimeError), contextlib.ExitStack() as stack:
        stack.callback(free.release)
        stack.enter_context(client)
        broker = _connect(broker_socket, absence)
        if broker is None:
            return
        stack.enter_context(broker)
        upward = threading.Thread(target=_copy, args=(client, broker), daemon=True)
        upward.start()
        _copy(broker, client)
        _until_over(broker)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # which ends the other direction
        upward.join()


def _until_over(broker: socket.socket) -> None:
    """Waits until the broker has closed both directions, or the client its own: who was answered and goes on to hold its connection takes nobody's place."""
    over = select.poll()
    over.register(broker, 0)  # a hang-up is told in any case
    over.poll()


class _Absence:
    """Since when the broker is not there: all connections wait for it together, and once that was in vain, none does."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._since: float | None = None

    def is_over(self) -> None:
        self._since = None

    def may_wait(self) -> bool:
        self._since = time.monotonic() if self._since is None else self._since
        return time.monotonic() - self._since < self._wait_s


def _connect(broker_socket: str, absence: _Absence) -> socket.socket | None:
    """Returns a connection to the broker, which is waited for while the service starts again; None after that."""
    while True:
        broker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        broker.settimeout(_CONNECT_TIMEOUT_S)
        try:
            broker.connect(broker_socket)
        except OSError:
            broker.close()
            if not absence.may_wait():
                return None
            time.sleep(_BROKER_PAUSE_S)
        else:
            absence.is_over()
            broker.settimeout(None)
            return broker


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until the end, then closes only this direction: a half-closed peer may still be answered."""
    try:
        if not _splice(source, target):
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            while size := source.recv_into(buffer):
                target.sendall(buffer[:size])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side broke: wake the other direction too, or its thread would wait for ever.
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def _splice(source: socket.socket, target: socket.socket) -> bool:
    """Copies within the kernel, which takes a third of the processor's time; False = it cannot do that here, and nothing is lost.

    Raises: OSError: one of the two is gone.
    """
    splice = getattr(os, "splice", None)  # Linux, since Python 3.10
    if splice is None:
        return False
    out, into = os.pipe()
    try:
        with contextlib.suppress(OSError):
            fcntl.fcntl(into, _F_SETPIPE_SZ, _CHUNK_BYTES)
        while size := splice(source.fileno(), into, _CHUNK_BYTES):
            while size:
                size -= splice(out, target.fileno(), size)
    except OSError as exc:
        if exc.errno not in _NO_SPLICE:
            raise
        os.set_blocking(out, False)
        with contextlib.suppress(BlockingIOError):
            target.sendall(os.read(out, _CHUNK_BYTES))
        return False
    else:
        return True
    finally:
        os.close(out)
        os.close(into)


def main(broker: str, command: list[str]) -> int:
    """Runs a command with the proxy; returns its exit code, as a shell would."""
    start_egress(broker)
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as exc:
        print(f"cannot start {command[0]}: {exc}", file=sys.stderr)
        return 126 if isinstance(exc, PermissionError) else 127
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

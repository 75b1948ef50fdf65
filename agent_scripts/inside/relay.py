"""A loopback port inside the sandbox that leads to the broker's unix socket, so that every SDK just gets a URL."""

from __future__ import annotations

import contextlib
import socket
import threading

_MAX_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 10
_CHUNK_BYTES = 64 * 1024
_STACK_BYTES = 512 * 1024
"""Default stacks of 8 MiB would eat a sandbox's address space limit."""


def start_relay(broker_socket: str) -> str:
    """Serve from daemon threads until this process ends.

    Returns:
        The relay's base URL, `http://127.0.0.1:PORT`.
    """
    threading.stack_size(_STACK_BYTES)
    listener = socket.create_server(("127.0.0.1", 0), backlog=_MAX_CONNECTIONS)
    threading.Thread(target=_accept, args=(listener, broker_socket), daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, broker_socket: str) -> None:
    free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
    while True:
        # More connections than that wait in the kernel's backlog.
        free.acquire()  # the connection's thread gives it back
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, broker_socket, free), daemon=True).start()


def _serve(client: socket.socket, broker_socket: str, free: threading.BoundedSemaphore) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(free.release)
        stack.enter_context(client)
        broker = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        broker.settimeout(_CONNECT_TIMEOUT_S)
        try:
            broker.connect(broker_socket)
        except OSError:
            return  # the agent sees a closed connection, which its SDK retries
        broker.settimeout(None)
        upward = threading.Thread(target=_copy, args=(client, broker), daemon=True)
        upward.start()
        _copy(broker, client)
        upward.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the end, then close only this direction: a half-closed peer may still be answered."""
    try:
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side broke: wake the other direction too, or its thread would wait for ever.
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

"""Tries to reach hosts as programs of this sandbox would, by its proxy and past it, and prints what became of each as a JSON object.

Usage: `python3 -I reach.py BROKER NAME:PORT[@ADDRESS] ...`; the first is the path of the broker's socket, or its URL. With an address, that
is dialled past the proxy, and the name is said in TLS alone: it counts as reached when another server than the name's answers there, by
its certificate or, as a network may end the TLS of a sandbox with its own, by its answer.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside.relay import start_egress

_TIMEOUT_S = 5
_TRIES_AT_ONCE = 16
_PORT_NAME = "ORION_EGRESS_PORT"
_PLAIN_PORT = 80
_REACHED = "reached"
_FIRST_SERVER_ERROR = 500


def main(broker: str, hosts: list[str]) -> int:
    """Prints the object; returns 0."""
    proxy = int(os.environ.get(_PORT_NAME, "0"))
    if proxy:
        start_egress(broker)
    with ThreadPoolExecutor(_TRIES_AT_ONCE) as pool:
        direct = pool.map(lambda host: _try(host, 0), hosts)
        by_proxy = pool.map(
            lambda host: _try(host, proxy) if proxy and "@" not in host else "", hosts
        )
        found = zip(hosts, direct, by_proxy)  # noqa: B905 - Python 3.9, which has no `strict`
        print(json.dumps({host: {"direct": one, "by_proxy": two} for host, one, two in found}))
    return 0


def _try(host: str, proxy: int) -> str:
    named, _, address = host.partition("@")
    name, _, port = named.rpartition(":")
    place = ("127.0.0.1", proxy) if proxy else (address or name, int(port))
    try:
        with socket.create_connection(place, timeout=_TIMEOUT_S) as connection:
            if int(port) == _PLAIN_PORT:
                return _ask(connection, f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n")
            if proxy:
                refusal = _ask(connection, f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n")
                if refusal != _REACHED:
                    return refusal
            context = ssl.create_default_context()
            if address:
                return _whose(connection, context, (name, int(port)))
            context.check_hostname = False  # whether it is reached, not whether it is trusted
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(connection, server_hostname=name):
                return _REACHED
    except OSError as exc:
        return f"failed: {exc}"


def _whose(connection: socket.socket, context: ssl.SSLContext, own: tuple[str, int]) -> str:
    name, _ = own
    try:
        status, server = _page(connection, context, name)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as exc:
        return f"failed: {exc}"
    except ssl.SSLError:  # another one's certificate, or its refusal of the name
        return _REACHED
    if status >= _FIRST_SERVER_ERROR:  # of the network, which found nobody of that name there
        return f"failed: {status}"
    try:
        with socket.create_connection(own, timeout=_TIMEOUT_S) as direct:
            is_own = _page(direct, context, name) == (status, server)
    except OSError:
        is_own = False
    return f"failed: leads to {name} itself" if is_own else _REACHED


def _page(connection: socket.socket, context: ssl.SSLContext, name: str) -> tuple[int, str]:
    """Returns the status with which a host's first page comes, and the kind of server; 0 for what is no HTTP. Raises: OSError."""
    with context.wrap_socket(connection, server_hostname=name) as tls:
        client = http.client.HTTPConnection(name)
        client.sock = tls
        try:
            client.request("GET", "/")
            answer = client.getresponse()
        except http.client.RemoteDisconnected:
            raise
        except http.client.HTTPException:
            return 0, ""
        return answer.status, answer.headers.get("server", "")


def _ask(connection: socket.socket, request: str) -> str:
    connection.sendall(request.encode())
    answer = connection.recv(4096).decode("utf-8", "replace")
    status, (_, _, said) = answer.split(" ", 2)[1:2], answer.partition("\r\n\r\nOrion: ")
    if not said or not status:
        return _REACHED
    kind = "failed" if status[0].startswith("5") else "refused"
    return f"{kind}: {status[0]}, {said.strip()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

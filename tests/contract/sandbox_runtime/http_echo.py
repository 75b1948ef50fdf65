"""A server on loopback that notes what it is asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override


class EchoServer:
    def __init__(self, port: int, headers: list[dict[str, str]]) -> None:
        self.port = port
        self.headers = headers
        """Of each request, by name in lower case."""


@contextmanager
def serve_echo() -> Iterator[EchoServer]:
    headers: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        @override
        def log_message(self, format: str, *args: object) -> None:  # its own
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield EchoServer(server.server_port, headers)
        finally:
            server.shutdown()
            thread.join()

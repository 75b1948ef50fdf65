"""The server's name in the first message of a TLS connection, read by OpenSSL; nothing is decrypted."""

import asyncio
import ssl
from typing import Final

MAX_HELLO_BYTES: Final = 64 * 1024
"""Of everything before the name is known. Source: RFC 8446, 5.1: a record has 16 KiB; a hello may take several."""
_CHUNK_BYTES: Final = 64 * 1024


class HelloError(ValueError):
    """What a client sends is no beginning of TLS, or names no server."""


async def read_hello(reader: asyncio.StreamReader, first: bytes) -> tuple[str, bytes]:
    """Reads on until a client has named a server.

    Args:
        first: What was read before, possibly nothing.

    Returns:
        The name in lower case, and all that was read.

    Raises:
        HelloError
        OSError: the connection broke.
    """
    hello, data = _Hello(), first
    while True:
        name = hello.feed(data) if data else None
        if name is not None:
            return name, bytes(hello.read)
        data = await reader.read(_CHUNK_BYTES)
        if not data:
            raise HelloError("ended before its TLS named a server")


class _Hello:
    """Fed with what a client sends first, in any pieces."""

    def __init__(self) -> None:
        self.read = bytearray()
        self._incoming = ssl.MemoryBIO()
        self._names: list[str | None] = []
        context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_SERVER
        )  # which has no certificate, and needs none
        context.sni_callback = self._note
        self._handshake = context.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)

    def _note(self, _: object, name: str | None, __: object) -> int:
        self._names.append(name)
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # it was only asked to read

    def feed(self, data: bytes) -> str | None:
        """Returns the server's name, or None as long as it is not there. Raises: HelloError: it will never be there."""
        self.read += data
        self._incoming.write(data)
        try:
            self._handshake.do_handshake()
        except ssl.SSLWantReadError:
            if len(self.read) > MAX_HELLO_BYTES:
                raise HelloError("its TLS does not come to the name of a server") from None
            return None
        except ssl.SSLError:
            pass  # by `_note`, or because it is no TLS
        if not self._names:
            raise HelloError("does not speak TLS")
        name = self._names[0]
        if not name:
            raise HelloError("names no server in its TLS")
        return name.lower()

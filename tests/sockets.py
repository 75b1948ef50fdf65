"""The other side of a connection within this process."""

import os
import socket
from contextlib import suppress
from pathlib import Path


def accepted_side(client: object) -> socket.socket:
    """A copy of the socket that this process has accepted from the client of this address. Raises: LookupError."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not path.readlink().name.startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(path.name)))
            with suppress(OSError):
                if found.getpeername() == client:
                    return found
            found.close()
    raise LookupError(f"nobody here has accepted {client}")

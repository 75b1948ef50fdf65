"""Ports for processes that are started a moment later."""

import random
import socket
from contextlib import suppress

_BELOW_THE_KERNELS = range(20_000, 32_000)
"""The kernel gives no connection such a port on its own. Source: Linux, ip(7), ip_local_port_range, 32768 and up."""


def free_port() -> int:
    """Returns one of 127.0.0.1 that nobody listens on, nor is given by chance before it is used."""
    for port in random.sample(_BELOW_THE_KERNELS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("100 ports were taken")

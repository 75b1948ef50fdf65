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


def own_address() -> str:
    """This machine's, by which sandboxes with any network, and containers, reach it. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])

"""Where `orion serve` cannot listen."""

import socket

import pytest
from fastapi import FastAPI

from app.cli.commands.serve import open_listener
from app.cli.output import read_settings


async def test_a_port_in_use_is_named_with_its_setting() -> None:
    """Not only what the system says of it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^ORION_HOST=127.0.0.1, ORION_PORT={port} cannot be"):
            async with open_listener(FastAPI(), read_settings(orion_port=str(port))):
                pytest.fail("somebody else listens there")


async def test_a_host_that_is_none_is_named_too() -> None:
    """As a misspelt one is."""
    settings = read_settings(orion_host="no.such.host.invalid", orion_port="0")
    with pytest.raises(OSError, match=r"^ORION_HOST=no\.such\.host\.invalid, "):
        async with open_listener(FastAPI(), settings):
            pytest.fail("there is no such host")

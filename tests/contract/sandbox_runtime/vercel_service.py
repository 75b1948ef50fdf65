"""The emulator of Vercel and providers that use it, for tests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

from sandbox_runtime.providers.vercel import VercelSettings
from tests.emulators.machine_network import Address
from tests.emulators.vercel.server import Emulator, run_vercel
from tests.emulators.vercel.world import PROJECT, TEAM, TOKEN

BROKER_HOST = "127.0.0.1"


@contextmanager
def run_service() -> Iterator[tuple[Emulator, int]]:
    """The emulator, and the port on which sandboxes there find a broker, should one listen."""
    with socket.create_server((BROKER_HOST, 0)) as reserved:
        port = reserved.getsockname()[1]
    with run_vercel(internet=(Address(host=BROKER_HOST, port=port),)) as emulator:
        yield emulator, port


def settings_for(emulator: Emulator, **changed: object) -> VercelSettings:
    """Of a namespace of its own."""
    values = {
        "token": TOKEN,
        "team_id": TEAM,
        "project_id": PROJECT,
        "api_url": emulator.url,
        "name": f"t{token_hex(4)}",
    }
    return VercelSettings(**(values | changed))  # type: ignore[arg-type]  # as the dataclass says

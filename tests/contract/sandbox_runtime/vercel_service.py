"""The emulator of Vercel and providers that use it, for tests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex

from sandbox_runtime.providers.vercel import VercelSettings
from tests.emulators.machine_network import Address
from tests.emulators.vercel.server import Emulator, run_vercel
from tests.emulators.vercel.world import PROJECT, TEAM, TOKEN

BROKER_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VercelService:
    """An emulator, and the port on which sandboxes there find a broker, should one listen."""

    emulator: Emulator
    broker_port: int

    def settings(self, **changed: object) -> VercelSettings:
        """Of a namespace of its own, with heartbeats as quick as tests."""
        values = {
            "token": TOKEN,
            "team_id": TEAM,
            "project_id": PROJECT,
            "api_url": self.emulator.url,
            "name": f"t{token_hex(4)}",
            "beat_s": 0.5,
            "create_timeout_s": 5.0,
        }
        return VercelSettings(**(values | changed))  # type: ignore[arg-type]  # as the dataclass says


@contextmanager
def run_service() -> Iterator[VercelService]:
    """One for many tests."""
    with socket.create_server((BROKER_HOST, 0)) as reserved:
        port = reserved.getsockname()[1]
    with run_vercel(internet=(Address(host=BROKER_HOST, port=port),)) as emulator:
        yield VercelService(emulator=emulator, broker_port=port)

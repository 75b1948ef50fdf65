"""One emulated organisation for a module's tests."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox_runtime.providers.deno import DenoSettings
from tests.emulators.deno.running import run_emulator
from tests.emulators.deno.server import Emulator
from tests.emulators.machine_disk import disks_directory
from tests.emulators.machine_network import Address

TOKEN = f"ddo_{secrets.token_hex(12)}"


@contextmanager
def open_organisation(*internet: Address) -> Iterator[Emulator]:
    """Its disks are outside of the directory of temporary files, which machines have of their own."""
    directory = Path(tempfile.mkdtemp(prefix="deno-", dir=disks_directory()))
    try:
        with run_emulator(directory / "disks", token=TOKEN, internet=internet) as emulator:
            yield emulator
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settings_for(emulator: Emulator, state_dir: Path | None = None) -> DenoSettings:
    return DenoSettings(token=TOKEN, api_url=emulator.url, retry_wait_s=0.03, state_dir=state_dir)

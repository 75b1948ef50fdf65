"""An emulator in a thread of its own, as a server elsewhere would be."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from tests.emulators.deno.resources import IMAGE
from tests.emulators.deno.server import Emulator, open_emulator
from tests.emulators.machine_disk import MachineImage
from tests.emulators.machine_network import Address

START_S, STOP_S = 20.0, 30.0


@contextmanager
def run_emulator(
    directory: Path,
    *,
    token: str,
    internet: Sequence[Address] = (),
    image: MachineImage = IMAGE,
) -> Iterator[Emulator]:
    """For the length of the block."""
    started: Future[Emulator] = Future()
    stopping = asyncio.Event()

    async def serve() -> None:
        try:
            async with open_emulator(
                directory, token=token, internet=internet, image=image
            ) as emulator:
                emulator.loop = asyncio.get_running_loop()
                started.set_result(emulator)
                await stopping.wait()
        except BaseException as exc:
            if not started.done():
                started.set_exception(exc)
            raise

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    emulator = started.result(START_S)
    try:
        yield emulator
    finally:
        assert emulator.loop is not None
        emulator.loop.call_soon_threadsafe(stopping.set)
        thread.join(STOP_S)
        assert not thread.is_alive()

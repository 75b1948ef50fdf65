"""`orion serve` and `orion worker`: the service over HTTP (or Socket Mode), or a part of it, until SIGTERM or SIGINT."""

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI

from app.aio import open_task_group
from app.compose.adapters import OtherPlaceError, Overrides, Role
from app.log import get_logger
from app.main import open_service
from app.settings.group import SettingsError
from app.settings.settings import Settings
from app.slack.api import SlackFault, SlackRefusal
from app.store.engine import StateDirectoryBusyError, UnreadableStoreError
from app.web.hosting import serve as serve_http
from app.web.routes import install_routes
from sandbox_runtime.errors import SandboxError

REQUEST_GRACE_S = 3.0
"""For requests in flight at shutdown: as long as Slack would wait for them."""

SWITCH_INTERVAL_S = 0.0005
"""How long the loop waits for a thread that holds the interpreter; by default 5 ms, and each message crosses several."""
OPEN_FILES = 65_536
GC_THRESHOLDS = (700, 10, 1_000_000)
"""Python's own for what is young; all objects are looked through by the clock instead: see `GC_INTERVAL_S`."""
GC_INTERVAL_S = 300.0
"""A full collection with 1,000 runs going holds the loop for 0.1 to 0.35 s, and finds some 60,000 objects (measured).

By count it would come every few seconds when most is to do. So often it delays one acknowledgement in a thousand.
"""
EXPECTED = (
    StateDirectoryBusyError,
    UnreadableStoreError,
    OtherPlaceError,
    SettingsError,
    SandboxError,
    SlackFault,
    OSError,
)
"""Why a service may fail to start without being broken."""

_log = get_logger(__name__)


def serve(
    settings: Settings, *, role: Role = Role.WHOLE, overrides: Overrides | None = None
) -> int:
    """Does what the role is until a signal: 0 after an orderly end; 1 when start-up failed, with one line that says why."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_open_files()
    try:
        asyncio.run(_serve(settings, role, overrides or Overrides()))
    except EXPECTED as exc:
        print(f"orion cannot start: {_reason(exc, settings)}", file=sys.stderr)
        return 1
    return 0


def _raise_open_files() -> None:
    """Lets this process have as many descriptors as it may: the usual 1,024 are few, where a connection through the proxy takes six. Sandboxes have a limit of their own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, OPEN_FILES), most))


def _reason(problem: Exception, settings: Settings) -> str:
    match problem:
        case SlackRefusal():
            return f"SLACK_APP_TOKEN: Slack refuses it: {problem}"
        case SlackFault():
            return f"Slack cannot be reached at {settings.slack.api_url} (SLACK_API_URL): {problem}"
        case _:
            return str(problem)


async def _serve(settings: Settings, role: Role, overrides: Overrides) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with open_service(settings, overrides=overrides, role=role) as service:
        api = FastAPI(title="Orion", openapi_url=None)
        install_routes(api, service.web)
        async with open_listener(api, settings) as base_url:
            _log.info("service.listening", url=base_url)
            async with open_task_group() as group:
                collecting = group.create_task(_collect_garbage(), name="garbage-collection")
                await stopping.wait()
                collecting.cancel()
            await service.drain()


@asynccontextmanager
async def open_listener(api: FastAPI, settings: Settings) -> AsyncIterator[str]:
    """Yields where it listens. Raises: OSError: it cannot; names the settings and their values."""
    host, port = settings.service.host, settings.service.port
    async with AsyncExitStack() as stack:
        try:
            listening = serve_http(api, host=host, port=port, grace_s=REQUEST_GRACE_S)
            base_url = await stack.enter_async_context(listening)
        except OSError as exc:
            raise OSError(
                f"ORION_HOST={host}, ORION_PORT={port} cannot be listened on: {exc.strerror or exc}"
            ) from exc
        yield base_url


async def _collect_garbage() -> None:
    """Collects garbage at intervals until cancelled, so that it seldom holds the loop. What start-up made stays for ever: it is not looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    while True:
        await asyncio.sleep(GC_INTERVAL_S)
        gc.collect()

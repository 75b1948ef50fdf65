"""`orion playground`: the stack on one address, and a real `orion serve` beside it."""

import asyncio
import errno
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from app.aio import open_task_group
from app.cli.commands.runs import migrate
from app.compose.providers import create_local
from app.playground.slack.types import FakeSlackConfig
from app.playground.stack import OWN_KEYS_SECRET, TRACE_KEYS, create_stack, orion_environment
from app.settings.group import SettingsError
from app.settings.settings import Settings, load_settings, make_private, read_environment
from app.store.engine import StateDirectoryBusyError, UnreadableStoreError, own_state_directory
from app.web.hosting import serve
from sandbox_runtime.errors import SandboxError

DEFAULT_STATE_DIR = Path("~/.local/state/orion-playground")
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
OWN_PREFIXES = ("SLACK_", "LANGFUSE_", "AI_GATEWAY_", "ORION_DATABASE_URL")
"""Settings of the caller that must not reach the playground's Orion, in either case."""


def run_playground(*, port: int, state_dir: Path | None) -> int:
    """Runs until a signal; 0 after an orderly end, 1 when something could not start."""
    directory = (state_dir or DEFAULT_STATE_DIR).expanduser().resolve()
    try:
        settings = load_settings(given=TRACE_KEYS)  # its Orion has traces
        said = read_environment()
        _make_state_dir(directory)
        with own_state_directory(directory / "playground"):
            # Its runs are nobody's records: no need to ask.
            migrate(settings.at(directory))
            return asyncio.run(_run(settings, said, port=port, directory=directory))
    except (SettingsError, StateDirectoryBusyError, UnreadableStoreError, OSError) as exc:
        reason = _port_reason(exc, port) if isinstance(exc, OSError) else str(exc)
        reason = reason.replace("ORION_STATE_DIR", "--state-dir")  # which is what sets it here
        print(f"the playground cannot start: {reason}", file=sys.stderr)
        return 1


def _make_state_dir(directory: Path) -> None:
    """Raises: OSError, which names the option."""
    try:
        make_private(directory)
        # The directory may be there, but not for us to write in.
        make_private(directory / "playground")
    except FileExistsError as exc:
        raise OSError(f"--state-dir {exc.filename} is a file, not a directory") from exc
    except OSError as exc:
        raise OSError(f"--state-dir {directory} cannot be used: {exc.strerror}") from exc


def run_stand_ins(*, port: int, events_url: str | None = None) -> int:
    """Serves the local Slack, models and traces alone, until a signal; prints the settings by which Orion processes reach them.

    Args:
        events_url: Where events, commands and clicks are posted; None = they go to whoever opens a socket.
    """
    try:
        return asyncio.run(_run_stand_ins(port=port, events_url=events_url))
    except OSError as exc:
        print(f"the playground cannot start: {_port_reason(exc, port)}", file=sys.stderr)
        return 1


async def _run_stand_ins(*, port: int, events_url: str | None) -> int:
    stopping = _until_signal()
    config = FakeSlackConfig(events_url=events_url)
    async with serve(create_stack(config), port=port) as url:
        settings = orion_environment(url, config)
        if events_url is None:
            # By Socket Mode each process that hears finds the way by itself.
            settings = {"SLACK_APP_TOKEN": config.app_token, **settings}
            del settings["SLACK_SIGNING_SECRET"]
        way = events_url or "a socket that yours opens (--events-url URL: by HTTP)"
        hint = f"It has no Orion. Its events go to {way}; what did not get there: {url}/deliveries"
        _announce(url, [], hint=f"{hint}\n\n  With these settings, in a `.env`, yours reach it:")
        print("\n".join(f"{name}={value}" for name, value in settings.items()), flush=True)
        await stopping.wait()
    return 0


def _until_signal() -> asyncio.Event:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


def _port_reason(problem: OSError, port: int) -> str:
    is_taken = problem.errno == errno.EADDRINUSE
    return f"port {port} (--port) is in use by another program" if is_taken else str(problem)


async def _run(settings: Settings, said: Mapping[str, str], *, port: int, directory: Path) -> int:
    stopping = _until_signal()
    banners = list(await _isolation(settings.at(directory)))
    model = _real_model(settings)
    if model:
        banners.append(
            "Your ANTHROPIC_API_KEY is set: answers come from the real model. This costs money."
        )
    config = FakeSlackConfig(banners=tuple(text for text in banners if text))
    stack = create_stack(config)
    async with serve(stack, port=port) as stack_url:
        orion_url = f"http://127.0.0.1:{_free_port()}"
        stack.state.fake_slack.events_url = f"{orion_url}/slack/events"
        environment = {
            "ORION_SANDBOX": "local",  # also where an engine answers, unless the caller says otherwise
            "ORION_RUNS_PER_USER_HOUR": "1000",  # who tries it out has no colleagues to leave room for
            **{k: v for k, v in said.items() if not k.upper().startswith(OWN_PREFIXES)},
            **orion_environment(stack_url, config),
            "ORION_OWN_KEYS_SECRET": OWN_KEYS_SECRET,
            **model,
            "ORION_STATE_DIR": str(directory),
            "ORION_HOST": "127.0.0.1",
            "ORION_PORT": orion_url.rpartition(":")[2],
        }
        if banners:
            environment["ORION_LOCAL_ISOLATION"] = "bubblewrap" if not banners[0] else "none"
        async with _orion(environment) as process:
            is_ready = await _wait_until_ready(orion_url, process, stopping)
            if is_ready:
                _announce(stack_url, banners)
                await _first_of(process, stopping)
    return 0 if stopping.is_set() else 1


async def _isolation(settings: Settings) -> tuple[str]:
    """Returns a banner when this machine cannot isolate, else an empty text."""
    if settings.sandbox.is_unisolated:
        return ("No isolation, as ORION_LOCAL_ISOLATION says: agents run as you, on this machine.",)
    try:
        async with create_local(settings) as provider:
            await provider.probe()
    except SandboxError as exc:
        return (f"No isolation: agents run as you, on this machine. {exc}",)
    return ("",)


def _real_model(settings: Settings) -> Mapping[str, str]:
    """Returns the caller's own model key, if there is one."""
    if settings.models.anthropic_api_key is None:
        return {}
    return {
        "ANTHROPIC_API_KEY": settings.models.anthropic_api_key.get_secret_value(),
        "ANTHROPIC_BASE_URL": settings.models.anthropic_base_url,
    }


@asynccontextmanager
async def _orion(environment: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs `orion serve` as a process of its own, where this one is: for `orion.toml` and for settings that are paths.

    It reads no `.env` by itself, where the tokens of a real Slack may be.
    """
    # Killed, the playground takes its Orion along: nobody else would end it. Source: setpriv(1), --pdeathsig.
    setpriv = shutil.which("setpriv")
    process = await asyncio.create_subprocess_exec(
        *((setpriv, "--pdeathsig", "TERM") if setpriv else ()),
        sys.executable,
        "-P",  # a directory `app` here is not ours
        "-m",
        "app.cli",
        "serve",
        "--no-env-file",
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _wait_until_ready(
    url: str, process: asyncio.subprocess.Process, stopping: asyncio.Event
) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_TIMEOUT_S), httpx.AsyncClient(trust_env=False) as http:
            while process.returncode is None and not stopping.is_set():
                with suppress(httpx.HTTPError):
                    if (await http.get(f"{url}/healthz")).is_success:
                        return True
                await asyncio.sleep(0.1)
    return False


async def _first_of(process: asyncio.subprocess.Process, stopping: asyncio.Event) -> None:
    async with open_task_group() as group:
        waits = [group.create_task(stopping.wait()), group.create_task(process.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _announce(
    url: str,
    banners: list[str],
    *,
    hint: str = "Write `@Orion hello` in #general. Ctrl-C ends it.",
) -> None:
    lines = [
        "",
        f"  The playground is open:  {url}",
        f"  Traces:                  {url}/traces",
        "",
    ]
    lines += [f"  ! {banner}" for banner in banners if banner]
    lines += [f"  {hint}", ""]
    print("\n".join(lines), flush=True)

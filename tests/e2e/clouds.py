"""Emulated clouds as tests of the whole service see them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.playground.slack.types import FakeSlackConfig
from tests.e2e.harness import Stage, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.wheels import ensure_wheels
from tests.emulators.deno import server as deno_server
from tests.emulators.deno.faults import Kind
from tests.emulators.deno.resources import IMAGE
from tests.emulators.deno.running import run_emulator
from tests.emulators.machine_disk import disks_directory
from tests.emulators.machine_network import Address
from tests.emulators.vercel import server as vercel_server
from tests.emulators.vercel.faults import Fault, failing
from tests.emulators.vercel.server import run_vercel
from tests.emulators.vercel.world import PROJECT, TEAM, TOKEN
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tests.emulators.spans import Spans

_ALWAYS = 1000
KEY = "sk-ant-" + secrets.token_hex(16)
"""Of the model: what must not be found in any machine, nor on the way there."""
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))

DENO_TOKEN = f"ddo_{secrets.token_hex(12)}"


SLOW_S = 4.0
TROUBLES = ("hiccups", "full", "refusing", "slow", "cut", "unsaved")
"""Each step fails once; too many sandboxes run; the token is void; a sandbox is made after `SLOW_S`; output breaks off;
nothing can be saved.
"""


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """An emulator, as the tests here see it."""

    settings: Mapping[str, str]
    running: Callable[[], int]
    """Machines that run now."""
    sent: Callable[[], bytes]
    """All that it was ever sent."""
    spans: Spans
    trouble: Mapping[str, Callable[[], None]]
    """What can be made to go wrong from now on, by its name in `TROUBLES`."""
    struck: Callable[[], int]
    """How many requests met one of them, but for those that are cut by hand."""
    calm: Callable[[], None]
    """Nothing goes wrong any more."""
    end_machines: Callable[[], None]
    """Their time is over."""
    requests: Callable[[], int]
    """How many it has been sent."""
    lose_snapshots: Callable[[], None] | None = None
    """All that were saved expire; None = they never do there."""


@contextmanager
def _open_vercel(internet: Sequence[Address]) -> Iterator[Cloud]:
    wheels = ensure_wheels()
    with run_vercel(internet=internet, binds=(wheels,), files=_package_index(wheels)) as emulator:
        yield Cloud(
            settings={
                "ORION_SANDBOX": "vercel",
                "ORION_VERCEL_API_URL": emulator.url,
                "VERCEL_TOKEN": TOKEN,
                "VERCEL_TEAM_ID": TEAM,
                "VERCEL_PROJECT_ID": PROJECT,
            },
            running=lambda: sum(
                record.session is not None and record.session.status == "running"
                for record in emulator.world.sandboxes.values()
            ),
            sent=lambda: b"\n".join(
                seen.body + repr(seen.headers).encode() for seen in emulator.seen
            ),
            spans=emulator.spans,
            trouble=_vercel_trouble(emulator),
            struck=lambda: len(emulator.faults.seen),
            calm=emulator.faults.stop,
            end_machines=emulator.end_lifetimes,
            requests=lambda: len(emulator.seen),
            lose_snapshots=emulator.world.snapshots.clear,
        )


@contextmanager
def _open_deno(internet: Sequence[Address]) -> Iterator[Cloud]:
    wheels = ensure_wheels()
    image = replace(IMAGE, binds=(wheels,), files=_package_index(wheels))
    # Outside of the directory of temporary files, which machines have of their own.
    directory = Path(tempfile.mkdtemp(prefix="deno-", dir=disks_directory()))
    try:
        with run_emulator(
            directory / "disks", token=DENO_TOKEN, internet=internet, image=image
        ) as emulator:
            yield Cloud(
                settings={
                    "ORION_SANDBOX": "deno",
                    "ORION_DENO_API_URL": emulator.url,
                    "DENO_DEPLOY_TOKEN": DENO_TOKEN,
                },
                running=lambda: len(emulator.organisation.running),
                sent=lambda: repr((emulator.requests, emulator.calls)).encode(),
                spans=emulator.spans,
                trouble=_deno_trouble(emulator),
                struck=lambda: len(emulator.faults.fired),
                calm=emulator.faults.clear,
                end_machines=emulator.end_lifetimes,
                requests=lambda: len(emulator.requests),
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _vercel_trouble(emulator: vercel_server.Emulator) -> Mapping[str, Callable[[], None]]:
    add = emulator.faults.add
    steps = ("create", "start", "logs", "stdin", "snapshot", "destroy")
    return {
        "hiccups": lambda: add(*(failing(step, 503) for step in steps)),
        "full": lambda: add(failing("create", 429, "rate_limited", times=_ALWAYS)),
        "refusing": lambda: add(failing("create", 401, "unauthorized", times=_ALWAYS)),
        "slow": lambda: add(Fault(endpoint="create", kind="slow", delay_s=SLOW_S)),
        "cut": lambda: add(
            *(Fault(endpoint="logs", kind="cut", after_bytes=count) for count in (60, 700, 1500))
        ),
        "unsaved": lambda: add(failing("snapshot", 500, times=_ALWAYS)),
    }


def _deno_trouble(emulator: deno_server.Emulator) -> Mapping[str, Callable[[], None]]:
    create, snapshot = "GET /api/v3/sandboxes/create", "POST /api/v2/volumes/*/snapshot"
    steps = (create, snapshot, "POST /api/v2/volumes", "DELETE /api/v3/sandboxes/*")

    def hiccup() -> None:
        for step in steps:
            emulator.faults.add(step, Kind.FAIL)

    def always(endpoint: str, kind: Kind) -> None:
        emulator.faults.add(endpoint, kind, times=_ALWAYS)

    return {
        "hiccups": hiccup,
        "full": lambda: always(create, Kind.RATE_LIMIT),
        "refusing": lambda: always(create, Kind.UNAUTHORIZED),
        "slow": lambda: emulator.faults.add(create, Kind.SLOW, seconds=SLOW_S),
        "cut": emulator.cut_sockets,
        "unsaved": lambda: always(snapshot, Kind.FAIL),
    }


def _package_index(wheels: Path) -> Mapping[str, str]:
    """A machine's own, since its internet is this test's."""
    return {"/etc/pip.conf": f"[global]\nno-index = true\nfind-links = {wheels}\n"}


CLOUDS: Mapping[str, Callable[[Sequence[Address]], AbstractContextManager[Cloud]]] = {
    "vercel": _open_vercel,
    "deno": _open_deno,
}


@asynccontextmanager
async def open_stage_at(
    name: str, directory: Path, *, has_broker: bool = True, **settings: str
) -> AsyncIterator[tuple[Stage, Cloud]]:
    """Orion with its sandboxes there; they reach Orion, or without its address the model itself, and nothing else."""
    state_dir, port = new_state_dir(directory), free_port()
    public_url = settings.get("ORION_PUBLIC_URL", f"http://127.0.0.1:{port}")
    nothing_prepared = directory / "nothing"
    for kind in ("environments", "snapshots", "names"):
        (nothing_prepared / kind).mkdir(parents=True)
    async with open_world(QUICK_RETRIES) as world:
        ports = (urlsplit(public_url).port or 0, urlsplit(world.url).port or 0)
        internet = [Address(host="127.0.0.1", port=number) for number in ports]
        with CLOUDS[name](internet) as cloud:
            address = {"ORION_PUBLIC_URL": public_url} if has_broker else {}
            async with open_orion(
                world,
                state_dir,
                nothing_prepared,
                **{
                    "ANTHROPIC_API_KEY": KEY,
                    "ORION_PORT": str(port),
                    **cloud.settings,
                    **address,
                    **settings,
                },
            ) as stage:
                yield stage, cloud
            assert cloud.running() == 0

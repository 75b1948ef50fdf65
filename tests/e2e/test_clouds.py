"""The whole service with sandboxes in emulated clouds: answers, files, Stop, kill -9, canary, and nothing left there."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from app.playground.slack_types import LookalikeConfig
from app.runs.model import Resumption, RunState
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import free_port, new_state_dir
from tests.e2e.wheels import ensure_wheels
from tests.emulators.deno.resources import IMAGE
from tests.emulators.deno.running import run_emulator
from tests.emulators.machine_network import Address
from tests.emulators.vercel.server import run_vercel
from tests.emulators.vercel.world import PROJECT, TEAM, TOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(300)]

QUICK_RETRIES = LookalikeConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))


DENO_TOKEN = f"ddo_{secrets.token_hex(12)}"
KEY = "sk-ant-" + secrets.token_hex(16)
"""Of the model: what must not be found in any machine, nor on the way there."""


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """An emulator, as the tests here see it."""

    settings: Mapping[str, str]
    running: Callable[[], int]
    """Machines that run now."""
    sent: Callable[[], bytes]
    """All that it was ever sent."""


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
        )


@contextmanager
def _open_deno(internet: Sequence[Address]) -> Iterator[Cloud]:
    wheels = ensure_wheels()
    image = replace(IMAGE, binds=(wheels,), files=_package_index(wheels))
    # Outside of the directory of temporary files, which machines have of their own.
    directory = Path(tempfile.mkdtemp(prefix="deno-", dir="/var/tmp"))
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
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _package_index(wheels: Path) -> Mapping[str, str]:
    """A machine's own, since its internet is this test's."""
    return {"/etc/pip.conf": f"[global]\nno-index = true\nfind-links = {wheels}\n"}


CLOUDS: Mapping[str, Callable[[Sequence[Address]], AbstractContextManager[Cloud]]] = {
    "vercel": _open_vercel,
    "deno": _open_deno,
}


@asynccontextmanager
async def _open_stage(
    name: str, directory: Path, *, has_broker: bool = True, **settings: str
) -> AsyncIterator[tuple[Stage, Cloud]]:
    """Orion with its sandboxes there; they reach Orion, or without its address the model itself, and nothing else."""
    state_dir, port = new_state_dir(directory), free_port()
    nothing_prepared = directory / "nothing"
    for kind in ("environments", "snapshots", "names"):
        (nothing_prepared / kind).mkdir(parents=True)
    async with open_world(QUICK_RETRIES) as world:
        ports = (port, urlsplit(world.url).port or 0)
        internet = [Address(host="127.0.0.1", port=number) for number in ports]
        with CLOUDS[name](internet) as cloud:
            address = {"ORION_PUBLIC_URL": f"http://127.0.0.1:{port}"} if has_broker else {}
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


@pytest.mark.parametrize("name", CLOUDS)
async def test_answers_files_stop_and_a_crash(name: str, tmp_path: Path) -> None:
    """In one service, since its environment takes a while to make; no key was ever sent, and nothing is left."""
    async with _open_stage(name, tmp_path) as (stage, cloud):
        ts = await stage.client.say("@Orion run: id -un; pwd; echo 4711 > notes")
        answer = text_of(await stage.answer(ts, timeout_s=150))
        assert "agent" in answer
        assert "/work" in answer
        assert cloud.running() == 0
        second = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711" in text_of(await stage.answer(second, thread_ts=ts))
        slow = await stage.client.say("@Orion !slow 60")
        await stage.client.wait_for_reply(slow, lambda reply: "I write slowly" in text_of(reply))
        await stage.client.say("stop", thread_ts=slow)
        stopped = await stage.ended(slow, timeout_s=10)
        assert stopped.state is RunState.STOPPED
        await _crash(stage, cloud)
        assert await stage.orion.terminate() == 0
        assert KEY.encode() not in cloud.sent()


async def _crash(stage: Stage, cloud: Cloud) -> None:
    """The agent goes on in the cloud while there is no Orion, and the next one follows it to its end."""
    begun = len(stage.orion.log_lines("agent.started"))
    ts = await stage.client.say("@Orion run: echo once >> ran; sleep 8; cat ran")
    async with asyncio.timeout(30):
        while len(stage.orion.log_lines("agent.started")) == begun:
            await asyncio.sleep(0.05)
    assert cloud.running() == 1
    await asyncio.sleep(2)
    await stage.orion.kill9()
    await stage.orion.start()
    answer = text_of(await stage.answer(ts, timeout_s=90))
    assert "```\nonce\n[exit code 0]" in answer
    run = await stage.record(ts)
    assert (run.attempt, run.resumed) == (2, Resumption.ATTACHED)


@pytest.mark.parametrize("name", CLOUDS)
async def test_without_a_public_address_the_network_adds_the_key(name: str, tmp_path: Path) -> None:
    """The model answers, and the agent, who looks in its environment and among its files, has not seen the key."""
    async with _open_stage(name, tmp_path, has_broker=False) as (stage, _cloud):
        look = f"env > seen; grep -rsl {KEY[7:]} /work /orion /home /tmp /proc/self/environ || echo nothing"
        ts = await stage.client.say(f"@Orion run: {look}")
        assert "nothing" in text_of(await stage.answer(ts, timeout_s=150))
        for request in await stage.world.model_requests():
            headers = request["headers"]
            assert headers.get("x-api-key", KEY) == KEY
            assert headers["authorization"] == f"Bearer {KEY}"
        code, said = await stage.cli("doctor")
        assert "the agent may use any model" in said, (code, said)

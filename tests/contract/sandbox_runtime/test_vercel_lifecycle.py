"""Lives of sandboxes at Vercel: crashes of the service, lifetimes, credentials, snapshots, what the SDK sends."""

import asyncio
import base64
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest

from sandbox_runtime import (
    SandboxError,
    SandboxErrorCode,
    SandboxId,
    SandboxSpec,
    SandboxStats,
    open_sandbox,
)
from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel.provider import VercelProvider
from tests.contract.sandbox_runtime.vercel_service import VercelService
from tests.emulators.vercel.shapes import recorded, shape_of

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_ROOT = Path(__file__).parents[3]
_CRASHING = """
import asyncio, json, sys
from sandbox_runtime import SandboxSpec
from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel.provider import VercelProvider

async def main():
    async with VercelProvider(VercelSettings(**json.loads(sys.argv[1]))) as provider:
        sandbox = await provider.create(SandboxSpec(env={"WORD": "kept"}, labels={"orion.run": "r1"}))
        script = "i=0; while :; do i=$((i+1)); echo $i >> /orion/events.jsonl; sleep 0.05; done"
        await sandbox.spawn(["sh", "-c", script])
        print(sandbox.id, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
async def provider(vercel: VercelService) -> AsyncIterator[VercelProvider]:
    async with VercelProvider(vercel.settings()) as provider:
        yield provider


async def _crash(settings: VercelSettings) -> SandboxId:
    """A process that makes a sandbox, starts a command in it, and is killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CRASHING, json.dumps(asdict(settings))),
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        name = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    return SandboxId(name)


async def test_attach_after_a_crash(vercel: VercelService) -> None:
    """Another process finds the sandbox by its label, its environment, and the command that still writes its log."""
    settings = vercel.settings()
    name = await _crash(settings)
    async with VercelProvider(settings) as provider:
        (info,) = await provider.list({"orion.run": "r1"})
        assert (info.id, info.running) == (name, True)
        sandbox = await provider.attach(name)
        before = len(await sandbox.read_file("/orion/events.jsonl"))
        await asyncio.sleep(0.3)
        assert len(await sandbox.read_file("/orion/events.jsonl")) > before > 0
        assert (await sandbox.exec(["sh", "-c", "echo $WORD $HOME"], timeout_s=10)).text == "kept /home/agent\n"  # fmt: skip
    assert vercel.emulator.running() == []


async def test_attach_to_an_earlier_version(vercel: VercelService) -> None:
    """Whoever attaches brings the runner that reads its requests: the one inside may be of an earlier version."""
    settings = vercel.settings()
    name = await _crash(settings)
    session = vercel.emulator.world.sandboxes[name].session
    assert session is not None
    old = ["sh", "-c", "echo 'raise SystemExit(9)' > /run/sandbox-runtime/run.py"]
    assert vercel.emulator.call(session.machine.run(old)).code == 0
    async with VercelProvider(settings) as provider:
        sandbox = await provider.attach(name)
        assert (await sandbox.exec(["echo", "new"], timeout_s=10)).text == "new\n"


async def test_sweep(vercel: VercelService) -> None:
    """What a process that lives no more has left is removed, except what shall be kept; a living one's stays."""
    settings = vercel.settings()
    name = await _crash(settings)
    async with VercelProvider(settings) as other, VercelProvider(settings) as provider:
        living = await other.create(SandboxSpec())
        assert await provider.sweep({name}) == 0
        assert await provider.sweep() == 1
        assert vercel.emulator.running() == [living.id]


async def test_what_a_sandbox_may_have_is_told(
    vercel: VercelService, provider: VercelProvider
) -> None:
    """Region, processors, memory, and its end by the session's clock, also when its life was extended; nothing of one that is over."""
    async with open_sandbox(provider, SandboxSpec(lifetime_s=600)) as sandbox:
        (info,) = await provider.list()
        assert info.region == "iad1"
        session = vercel.emulator.world.sandboxes[sandbox.id].session
        assert session is not None
        told = await provider.stats(sandbox.id)
        assert (told.cpus, told.memory_limit_bytes) == (4, 8192 * 1024 * 1024)
        assert (told.cpu_s, told.memory_bytes) == (None, None)
        await sandbox.extend(3000)
        ends_at = (await provider.stats(sandbox.id)).ends_at
        assert ends_at is not None
        assert ends_at.timestamp() == (session.started_at + session.timeout_ms) / 1000
        assert ends_at.timestamp() - time.time() > 2900
    assert await provider.stats(sandbox.id) == SandboxStats()
    assert await provider.stats(SandboxId("orion-other-0123456789abcdef")) == SandboxStats()


async def test_lifetime(vercel: VercelService, provider: VercelProvider) -> None:
    """As the specification says, extended only when it has to be; past what Vercel allows it is refused."""
    async with open_sandbox(provider, SandboxSpec(lifetime_s=1200)) as sandbox:
        session = vercel.emulator.world.sandboxes[sandbox.id].session
        assert session is not None
        assert session.timeout_ms == 1_200_000
        await sandbox.extend(600)
        assert session.timeout_ms == 1_200_000
        await sandbox.extend(3000)
        ends_s = (session.started_at + session.timeout_ms) / 1000 - time.time()
        assert 3000 <= ends_s < 3003
        for lifetime_s, kind in ((0, ValueError), (-1, ValueError), (10**6, SandboxError)):
            with pytest.raises(kind):
                await sandbox.extend(lifetime_s)
    async with open_sandbox(provider, SandboxSpec(lifetime_s=5)) as sandbox:
        assert vercel.emulator.world.sandboxes[sandbox.id].timeout_ms == 60_000
    with pytest.raises(SandboxError) as caught:
        await provider.create(SandboxSpec(lifetime_s=10**6))
    assert caught.value.code is SandboxErrorCode.LIMIT_REACHED


async def test_workspace_on_the_same_environment(
    vercel: VercelService, provider: VercelProvider
) -> None:
    """The usual case: the snapshot holds both, and nothing is moved; what was made from an environment leaves it alone."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        environment = await sandbox.snapshot(name="environment")
    async with open_sandbox(provider, SandboxSpec(snapshot_id=environment.id)) as sandbox:
        await sandbox.write_file("turn", b"1")
        saved = await sandbox.snapshot(name="session")
    created = vercel.emulator.world.created
    spec = SandboxSpec(snapshot_id=environment.id, workspace_id=saved.id)
    async with open_sandbox(provider, spec) as sandbox:
        assert await sandbox.read_file("turn") == b"1"
    assert vercel.emulator.world.created == created + 1
    assert vercel.emulator.count("read") == vercel.emulator.count("write") == 0
    await provider.delete_snapshot(saved.id)
    assert [ref.id for ref in await provider.list_snapshots()] == [environment.id]
    assert len(vercel.emulator.world.snapshots) == 1
    await provider.delete_snapshot(environment.id)
    assert not any(s.query.get("deleteOrphanSnapshots") == "true" for s in vercel.emulator.seen)


async def test_more_labels_than_tags(provider: VercelProvider) -> None:
    """The most telling ones are kept."""
    labels = {f"label-{n}": "x" for n in range(5)} | {"orion.run": "a b/ü", "orion.agent": "claude"}
    async with open_sandbox(provider, SandboxSpec(labels=labels)) as sandbox:
        (info,) = await provider.list({"orion.run": "a b/ü", "orion.agent": "claude"})
        assert info.id == sandbox.id
        assert len(info.labels) == 4


async def test_probe(provider: VercelProvider) -> None:
    """It really runs a sandbox, and says what it is."""
    assert "microVM" in await provider.probe()


def _token(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.x"


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (_token(exp=1, owner_id="t", project_id="p"), "VERCEL_OIDC_TOKEN has expired"),
        (_token(exp=9e9), "lacks a claim"),
        ("nonsense", "not a JSON Web Token"),
        (_token(exp=9e9, owner_id="team_tests", project_id="prj_tests"), "not accepted"),
    ],
)
async def test_oidc_token(vercel: VercelService, token: str, words: str) -> None:
    """One that cannot be used is named, before or after the API was asked."""
    settings = vercel.settings(token=None, team_id=None, project_id=None, oidc_token=token)
    async with VercelProvider(settings) as provider:
        for ask in (provider.ensure_ready, provider.probe):
            with pytest.raises(SandboxError, match=words) as caught:
                await ask()
            assert (caught.value.code, caught.value.retryable) == (
                SandboxErrorCode.UNAVAILABLE,
                False,
            )


async def test_requests_are_as_recorded(vercel: VercelService, provider: VercelProvider) -> None:
    """What the real SDK sends has the recorded shapes: a new version that says it differently is noticed."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        environment = await sandbox.snapshot(name="environment")
    async with open_sandbox(provider, SandboxSpec(labels={"orion.run": "r"})) as sandbox:
        process = await sandbox.spawn(["sleep", "60"])
        await process.kill()
        await sandbox.extend(5000)
        saved = await sandbox.snapshot()
    spec = SandboxSpec(snapshot_id=environment.id, workspace_id=saved.id)
    async with open_sandbox(provider, spec):
        pass
    for ref in await provider.list_snapshots():
        await provider.delete_snapshot(ref.id)
    found: dict[str, list[object]] = {}
    for seen in vercel.emulator.seen:
        body = json.loads(seen.body) if seen.body and seen.endpoint != "write" else None
        shape = {"query": shape_of(dict(seen.query)), "body": shape_of(body)}
        shapes = found.setdefault(seen.endpoint, [])
        if shape not in shapes:
            shapes.append(shape)
    known = recorded()
    assert {"create", "run", "start", "stdin", "logs", "snapshot", "update"} <= found.keys()
    unknown = [(at, shape) for at, all_ in found.items() for shape in all_ if shape not in known.get(at, [])]  # fmt: skip
    assert unknown == [], json.dumps(found, indent=1, sort_keys=True)

"""What only the Deno provider promises: its network, lifetime, connection, and what lies on the platform."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandbox_runtime import (
    BrokeredNetwork,
    OpenNetwork,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    SandboxStats,
    open_sandbox,
)
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.labels import MANAGED
from sandbox_runtime.providers.deno.provider import DenoProvider
from sandbox_runtime.providers.deno.sandbox import DenoSandbox
from sandbox_runtime.task_group import open_task_group
from tests.contract.sandbox_runtime.deno_emulator import TOKEN, open_organisation, settings_for
from tests.contract.sandbox_runtime.http_echo import EchoServer, serve_echo
from tests.emulators.deno.server import Emulator
from tests.emulators.machine_network import Address

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_GET = """
import os, sys, urllib.request
request = urllib.request.Request(sys.argv[1])
if "ORION_BROKER_KEY" in os.environ:
    request.add_header("x-api-key", os.environ["ORION_BROKER_KEY"])
print(urllib.request.urlopen(request, timeout=3).read().decode())
"""


@pytest.fixture(scope="module")
def echoes() -> Iterator[tuple[EchoServer, EchoServer]]:
    """Two servers; both are in the emulated internet."""
    with serve_echo() as one, serve_echo() as other:
        yield one, other


@pytest.fixture(scope="module")
def organisation(echoes: tuple[EchoServer, EchoServer]) -> Iterator[Emulator]:
    with open_organisation(*(Address(host="127.0.0.1", port=e.port) for e in echoes)) as emulator:
        yield emulator


@pytest.fixture
def settings(organisation: Emulator) -> DenoSettings:
    return settings_for(organisation)


@pytest.fixture
async def provider(settings: DenoSettings) -> AsyncIterator[DenoProvider]:
    async with DenoProvider(settings) as provider:
        await provider.ensure_ready()
        yield provider


async def sh(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script], timeout_s=20)
    return result.text + result.error_text


async def _get(sandbox: Sandbox, port: int) -> str | None:
    argv = ["python3", "-c", _GET, f"http://127.0.0.1:{port}/v1"]
    result = await sandbox.exec(argv, timeout_s=10)
    return result.text.strip() if result.exit_code == 0 else None


async def test_network(provider: DenoProvider, echoes: tuple[EchoServer, EchoServer]) -> None:
    """Closed reaches nothing, brokered its one endpoint, open all; and the allow list was always sent but when open."""
    one, other = echoes
    found = []
    for network in (
        SandboxSpec().network,
        BrokeredNetwork(endpoint=f"http://127.0.0.1:{one.port}/broker"),
        OpenNetwork(),
    ):
        async with open_sandbox(provider, SandboxSpec(network=network)) as sandbox:
            answers = [await _get(sandbox, echo.port) for echo in (one, other)]
            found.append([answer is not None for answer in answers])
            if isinstance(network, BrokeredNetwork):
                assert sandbox.paths.broker == network.endpoint
    assert found == [[False, False], [True, False], [True, True]]


async def test_what_is_told_of_a_sandbox(provider: DenoProvider) -> None:
    """Its region; the platform says neither what it uses nor when it ends."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        (info,) = await provider.list()
        assert (info.id, info.region) == (sandbox.id, "ord")
        assert await provider.stats(sandbox.id) == SandboxStats()


async def test_out_of_memory(provider: DenoProvider) -> None:
    """The kernel shall take a command rather than what runs it."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        assert await sh(sandbox, "cat /proc/self/oom_score_adj") == "500\n"


async def test_header_from_outside(
    organisation: Emulator, provider: DenoProvider, echoes: tuple[EchoServer, EchoServer]
) -> None:
    """The endpoint gets the value; inside there is only a text in its place, and nowhere the value."""
    echo, _ = echoes
    value = f"sk-{secrets.token_hex(16)}"
    network = BrokeredNetwork(
        endpoint=f"http://127.0.0.1:{echo.port}", headers={"x-api-key": value}
    )
    async with open_sandbox(provider, SandboxSpec(network=network)) as sandbox:
        text = (await sh(sandbox, 'printf %s "$ORION_BROKER_KEY"')).strip()
        assert text
        assert text != value
        echo.headers.clear()
        assert await _get(sandbox, echo.port) is not None
        searched = await organisation.run_inside(
            ["sh", "-c", f"cat /proc/[0-9]*/environ; grep -rs '{value[:9]}[{value[9]}]{value[10:]}' /session /etc /tmp; echo searched"]
        )  # fmt: skip
        assert b"searched" in searched
        assert value.encode() not in searched
    assert echo.headers[-1]["x-api-key"] == value
    bodies = [body for _, _, body in organisation.requests]
    assert not any(value in body for body in bodies)  # the configuration is base64
    with pytest.raises(SandboxError, match="headers of one secret") as caught:
        await provider.create(
            SandboxSpec(network=replace(network, headers={"a": value, "b": value[::-1]}))
        )
    assert caught.value.code is SandboxErrorCode.UNSUPPORTED
    assert value not in str(caught.value)


async def test_canary(organisation: Emulator, settings: DenoSettings) -> None:
    """Secrets of the service and the token itself show in nothing that is sent, and nowhere inside."""
    async with DenoProvider(settings) as provider:
        await provider.ensure_ready()
    secret = secrets.token_hex(16)
    os.environ["ORION_CANARY"] = secret  # noqa: TID251  # planted to be looked for
    try:
        async with (
            DenoProvider(settings) as other,
            open_sandbox(other, SandboxSpec(env={"MINE": "1"})) as sandbox,
        ):
            script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; env; grep -rs searched-for /session /tmp; echo searched"
            found = await sh(sandbox, script)
            await sandbox.write_file("file", b"text")
            await sandbox.snapshot(name="canary")
    finally:
        del os.environ["ORION_CANARY"]  # noqa: TID251
    sent = repr(organisation.requests) + repr(organisation.calls)
    assert "searched" in found
    for hidden in (secret, TOKEN, "ORION_CANARY"):
        assert hidden not in found
        assert hidden not in sent


async def test_connection_is_made_again(organisation: Emulator, provider: DenoProvider) -> None:
    """After a cut the next command runs; one that ran is dead with its tree; a spawned one went on."""
    beat = "while :; do echo >> {0}; sleep 0.05; done"
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        process = await sandbox.spawn(["sh", "-c", beat.format("free")])
        async with open_task_group() as group:
            bound = group.create_task(_code_of(sandbox, beat.format("bound")))
            await sh(sandbox, "until [ -s bound -a -s free ]; do sleep 0.02; done")
            organisation.cut_sockets()
            assert await bound == (SandboxErrorCode.UNAVAILABLE, False)
        before = await sh(sandbox, "wc -l < bound; wc -l < free")
        await asyncio.sleep(0.3)
        after = await sh(sandbox, "wc -l < bound; wc -l < free")
        assert after.split()[0] == before.split()[0]
        assert int(after.split()[1]) > int(before.split()[1])
        with pytest.raises(SandboxError, match="lost"):
            _ = [event async for event in process.events()]


async def _code_of(sandbox: Sandbox, script: str) -> tuple[SandboxErrorCode, bool] | None:
    try:
        await sandbox.exec(["sh", "-c", script], timeout_s=20)
    except SandboxError as exc:
        return exc.code, exc.retryable
    return None


async def test_attach(settings: DenoSettings, tmp_path: Path) -> None:
    """Another process finds the sandbox, its variables and limits, and what was spawned in it; the file goes on growing."""
    settings = replace(settings, state_dir=tmp_path)
    async with DenoProvider(settings) as first:
        await first.ensure_ready()
        spec = SandboxSpec(env={"WORD": "kept"}, labels={"run": "r9"})
        sandbox = await first.create(spec)
        argv = ["sh", "-c", "while :; do echo $WORD >> events; sleep 0.05; done"]
        await sandbox.spawn(argv)
        first.release(sandbox.id)
    async with DenoProvider(settings) as second:
        (info,) = await second.list({"run": "r9"})
        attached = await second.attach(info.id)
        assert attached.id == sandbox.id
        found = await sh(attached, 'wc -l < events; tail -1 events; echo "$WORD"')
        lines, *words = found.split()
        assert words == ["kept", "kept"]
        await asyncio.sleep(0.3)
        assert int(await sh(attached, "wc -l < events")) > int(lines)
        assert await second.attach(info.id) is attached
        ref = await attached.snapshot(name="attached")
        await attached.destroy()
        assert [one.name for one in await second.list_snapshots() if one.id == ref.id] == [
            "attached"
        ]
        await second.delete_snapshot(ref.id)


async def test_lifetime(organisation: Emulator, provider: DenoProvider) -> None:
    """It ends by itself, which is no error that passes; its workspace can still be saved."""
    sandbox = await provider.create(SandboxSpec(lifetime_s=2.0))
    assert isinstance(sandbox, DenoSandbox)
    assert sandbox.expires_at is not None
    assert sandbox.expires_at < datetime.now(UTC) + timedelta(seconds=2.1)
    await sandbox.write_file("late", b"but saved")
    while organisation.organisation.running:
        await asyncio.sleep(0.05)
    with pytest.raises(SandboxError, match="gone") as caught:
        await sandbox.exec(["true"], timeout_s=5)
    assert (caught.value.code, caught.value.retryable) == (SandboxErrorCode.UNAVAILABLE, False)
    ref = await sandbox.snapshot(name="late")
    await sandbox.destroy()
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as restored:
        assert await restored.read_file("late") == b"but saved"
    await provider.delete_snapshot(ref.id)


async def test_extension(organisation: Emulator, provider: DenoProvider) -> None:
    """It lives longer when it shall, as far as the platform goes."""
    async with open_sandbox(provider, SandboxSpec(lifetime_s=60)) as sandbox:
        (box,) = organisation.organisation.running
        assert box.stop_at - datetime.now(UTC).timestamp() < 61
        await sandbox.extend(600)
        assert box.stop_at - datetime.now(UTC).timestamp() > 598
        asked = len(organisation.requests)
        await sandbox.extend(60)
        assert len(organisation.requests) == asked
        with pytest.raises(ValueError, match="above 0"):
            await sandbox.extend(0)
        for code in (
            await _extension_code(sandbox, 1801),
            await _creation_code(provider, SandboxSpec(lifetime_s=1801)),
        ):
            assert code is SandboxErrorCode.LIMIT_REACHED


async def _extension_code(sandbox: Sandbox, lifetime_s: float) -> SandboxErrorCode | None:
    try:
        await sandbox.extend(lifetime_s)
    except SandboxError as exc:
        return exc.code
    return None


async def _creation_code(provider: DenoProvider, spec: SandboxSpec) -> SandboxErrorCode | None:
    try:
        sandbox = await provider.create(spec)
    except SandboxError as exc:
        return exc.code
    await sandbox.destroy()
    return None


async def test_limit_of_running(organisation: Emulator, provider: DenoProvider) -> None:
    """Past what may run at once it is LIMIT_REACHED, with the number, and may pass; no volume is left."""
    before = organisation.organisation.slugs
    organisation.organisation.max_running = 1
    try:
        async with open_sandbox(provider, SandboxSpec()):
            with pytest.raises(SandboxError, match="1 sandboxes run") as caught:
                await provider.create(SandboxSpec())
    finally:
        organisation.organisation.max_running = 5
    assert (caught.value.code, caught.value.retryable) == (SandboxErrorCode.LIMIT_REACHED, True)
    assert organisation.organisation.slugs == before


async def test_labels(organisation: Emulator, provider: DenoProvider) -> None:
    """Five at most, ours among them, which may also be the caller's own; what does not fit is refused before."""
    labels = {
        MANAGED: "true",
        "orion.agent": "claude",
        "name": "sly-fox",
        "repo": "a/b",
        "run": "r",
    }
    async with open_sandbox(provider, SandboxSpec(labels=labels)):
        (info,) = await provider.list({"repo": "a/b"})
        assert info.labels == labels
        (box,) = organisation.organisation.running
        assert len(box.labels) == 5
    for bad in (
        {f"l{number}": "" for number in range(5)},
        {"Upper": ""},
        {"k" * 65: ""},
        {"k": "v" * 129},
        {MANAGED: "else"},
    ):
        code = await _creation_code(provider, SandboxSpec(labels=bad))
        assert code is SandboxErrorCode.CREATE_FAILED

"""What lies on the platform: the base, chains of workspaces, other regions, and what was left by those that died."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_runtime import SandboxError, SandboxErrorCode, SandboxSpec, open_sandbox
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.create import SETUP
from sandbox_runtime.providers.deno.labels import Slug
from sandbox_runtime.providers.deno.provider import DenoProvider
from sandbox_runtime.providers.deno.snapshots import MAX_DEPTH
from sandbox_runtime.task_group import together
from sandbox_runtime.types import SnapshotRef
from tests.contract.sandbox_runtime.deno_emulator import TOKEN, open_organisation, settings_for
from tests.emulators.deno.server import Emulator

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_CHILD = """
import asyncio, os, sys
from sandbox_runtime import SandboxSpec
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.provider import DenoProvider

async def main():
    settings = DenoSettings(token=sys.argv[1], api_url=sys.argv[2])
    async with DenoProvider(settings) as provider:
        sandbox = await provider.create(SandboxSpec())
        print(sandbox.id, flush=True)
        os._exit(9)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def organisation() -> Iterator[Emulator]:
    with open_organisation() as emulator:
        yield emulator


@pytest.fixture
def settings(organisation: Emulator) -> DenoSettings:
    return settings_for(organisation)


@pytest.fixture
async def provider(settings: DenoSettings) -> AsyncIterator[DenoProvider]:
    async with DenoProvider(settings) as provider:
        await provider.ensure_ready()
        yield provider


async def _save(provider: DenoProvider, spec: SandboxSpec, word: str) -> SnapshotRef:
    async with open_sandbox(provider, spec) as sandbox:
        await sandbox.exec(["sh", "-c", f"echo {word} >> words"], timeout_s=10)
        return await sandbox.snapshot(name="thread")


async def test_base_is_made_once(organisation: Emulator, settings: DenoSettings) -> None:
    """It tells its steps; who comes meanwhile waits; another recipe is another base; a probe makes nothing."""
    settings = replace(settings, name="once", setup=f"{SETUP}\n# other")
    steps: list[str] = []
    made = organisation.organisation.created
    async with DenoProvider(settings) as provider:
        assert "made on first use" in await provider.probe()
        first, second = await together(
            provider.ensure_ready(steps.append), provider.ensure_ready(steps.append)
        )
        assert "base environment exists" in await provider.probe()
    assert first.id == second.id
    assert organisation.organisation.created == made + 1
    assert steps == [
        "checking",
        "creating",
        "booting",
        "installing tools",
        "snapshotting",
        "cleaning up",
        "done",
        "checking",
        "exists",
    ]
    box = list(organisation.organisation.boxes.values())[-1]
    assert box.config["allow_net"] is None


async def test_failing_setup(organisation: Emulator, settings: DenoSettings) -> None:
    """The error has the end of what was said, the last step is `error`, and no machine or volume is left."""
    before = organisation.organisation.slugs
    steps: list[str] = []
    settings = replace(settings, name="broken", setup="echo no such package >&2; exit 3")
    async with DenoProvider(settings) as provider:
        with pytest.raises(SandboxError, match="no such package") as caught:
            await provider.ensure_ready(steps.append)
        code = SandboxErrorCode.CREATE_FAILED
        with pytest.raises(SandboxError, match="no base environment") as missing:
            await provider.create(SandboxSpec())
    assert (caught.value.code, missing.value.code) == (SandboxErrorCode.SETUP_FAILED, code)
    assert steps[-2:] == ["cleaning up", "error"]
    assert organisation.organisation.running == []
    assert organisation.organisation.slugs == before


@pytest.mark.long
async def test_long_thread(organisation: Emulator, provider: DenoProvider) -> None:
    """Turn after turn begins from what the one before saved; its past is let go in time, and all of it at the end."""
    before = organisation.organisation.slugs
    ref = await _save(provider, SandboxSpec(), "w0")
    depths = []
    for number in range(1, MAX_DEPTH + 3):
        ref = await _save(provider, SandboxSpec(snapshot_id=ref.id), f"w{number}")
        slug = Slug.parse(ref.id)
        assert slug is not None
        depths.append(slug.depth)
    assert depths == [*range(1, MAX_DEPTH + 1), 0, 1]
    (listed,) = [one for one in await provider.list_snapshots() if one.name == "thread"]
    assert listed == ref
    await provider.sweep()
    # The copied one and what came after it: the older chain could go.
    assert len(organisation.organisation.slugs - before) == 4
    asked = len(organisation.requests)
    await provider.sweep()
    assert not any(method == "DELETE" for method, _, _ in organisation.requests[asked:])
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        words = (await sandbox.read_file("words")).decode().split()
    assert words == [f"w{number}" for number in range(MAX_DEPTH + 3)]
    await provider.delete_snapshot(ref.id)
    await provider.sweep()
    assert organisation.organisation.slugs == before


async def test_other_region(organisation: Emulator, settings: DenoSettings) -> None:
    """After a change of region nothing of the other one is used, and what is out of reach is said."""
    async with DenoProvider(settings) as provider:
        await provider.ensure_ready()
        ref = await _save(provider, SandboxSpec(), "here")
    async with DenoProvider(replace(settings, region="ams")) as provider:
        assert provider.region == "ams"
        assert "saved sessions are in another region" in await provider.probe()
        assert await provider.find_snapshot("thread") is None
        assert list(await provider.list_snapshots()) == []
        await provider.ensure_ready()
        with pytest.raises(SandboxError, match="in region ord, not in ams") as caught:
            await provider.create(SandboxSpec(snapshot_id=ref.id))
        assert caught.value.code is SandboxErrorCode.NOT_FOUND
        async with open_sandbox(provider, SandboxSpec()):
            (box,) = organisation.organisation.running
            assert box.region == "ams"
    async with DenoProvider(settings) as provider:
        await provider.delete_snapshot(ref.id)


async def test_names_outlast_the_process(settings: DenoSettings, tmp_path: Path) -> None:
    """A name is found without the file of names; with it, the list shows it."""
    async with DenoProvider(replace(settings, state_dir=tmp_path)) as provider:
        await provider.ensure_ready()
        ref = await _save(provider, SandboxSpec(), "x")
    async with DenoProvider(replace(settings, state_dir=tmp_path)) as provider:
        assert [one.name for one in await provider.list_snapshots()] == ["thread"]
    async with DenoProvider(settings) as provider:
        assert await provider.find_snapshot("thread") == ref
        assert [one.name for one in await provider.list_snapshots()] == [None]
        await provider.delete_snapshot(ref.id)
        await provider.sweep()


async def test_sweep(organisation: Emulator, provider: DenoProvider) -> None:
    """What a process that died has left goes, unless it shall be kept; what lives stays."""
    before = organisation.organisation.slugs
    argv = [sys.executable, "-c", _CHILD, TOKEN, organisation.url]
    env = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = await asyncio.to_thread(
        subprocess.run, argv, env=env, capture_output=True, text=True, timeout=30, check=False
    )
    left = child.stdout.strip()
    assert left, child.stderr
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        ids = {info.id for info in await provider.list()}
        assert ids == {left, sandbox.id}
        assert await provider.sweep(keep=list(ids)) == 0
        assert await provider.sweep() == 1
        assert {info.id for info in await provider.list()} == {sandbox.id}
        assert (await sandbox.exec(["true"], timeout_s=10)).exit_code == 0
    assert organisation.organisation.slugs == before


def test_settings_are_checked() -> None:
    """A value that could not work is refused before anything is asked, by its name."""
    for bad, said in (
        ({"token": ""}, "DENO_DEPLOY_TOKEN"),
        ({"region": "iad1"}, "'iad1'; known: ams, ord"),
        ({"name": "Big"}, "not a name"),
        ({"name": "n" * 33}, "not a name"),
        ({"memory_mib": 512}, "768 to 4096"),
        ({"lifetime_s": 1801.0}, "at most 1800 s"),
        ({"api_url": "https://x/path"}, "without a path"),
    ):
        with pytest.raises(ValueError, match=said):
            DenoSettings(**{"token": "t", **bad})  # type: ignore[arg-type]  # wrong on purpose

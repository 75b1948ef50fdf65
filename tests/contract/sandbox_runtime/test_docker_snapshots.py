# short looks at the host, in tests
"""Images of the Docker provider: the base, environments, workspaces."""

import asyncio
import json
import os
import secrets
import subprocess
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from sandbox_runtime import (
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    SnapshotRef,
    open_sandbox,
)
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.client import open_engine
from sandbox_runtime.providers.docker.images import BaseImage, Images
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.docker.snapshots import MAX_CHANGES
from sandbox_runtime.task_group import open_task_group
from tests.contract.sandbox_runtime.docker_engine import count, inspect, sh
from tests.waiting import until

pytestmark = pytest.mark.docker


@pytest.mark.long
async def test_restoring_an_environment_copies_nothing(provider: DockerProvider) -> None:
    """A sandbox on an environment of 24 MB writes next to nothing, and so does its own snapshot."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file("/env/large", os.urandom(24_000_000))
        ref = await sandbox.snapshot()
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        size = await sandbox.exec(["stat", "-c", "%s", "/env/large"], timeout_s=20)
        assert size.text == "24000000\n"
        argv = ["docker", "inspect", "--size", "-f", "{{.SizeRw}}"]
        name = f"orion-{provider.namespace}-{sandbox.id}"
        written = subprocess.run([*argv, name], capture_output=True, check=True)  # noqa: ASYNC221  # short
        assert int(written.stdout) < 100_000
        session = await sandbox.snapshot()
    sizes = []
    for snapshot in (ref, session):
        found = inspect(f"orion-snapshot/{provider.namespace}:{snapshot.id}")
        size_bytes = found["Size"]
        assert isinstance(size_bytes, int)
        sizes.append(size_bytes)
    assert sizes[1] - sizes[0] < 1_000_000
    await provider.delete_snapshot(ref.id)
    async with open_sandbox(provider, SandboxSpec(snapshot_id=session.id)) as sandbox:
        assert (await sandbox.exec(["stat", "/env/large"], timeout_s=20)).exit_code == 0
        again = await sandbox.snapshot()
    await provider.delete_snapshot(session.id)
    await provider.delete_snapshot(again.id)


async def test_a_replaced_snapshot_goes_with_its_last_sandbox(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Its image stays as long as a container runs from it, and no longer: nobody waits for the next sweep."""
    nameless = ("images", "--filter", "dangling=true")
    name = f"session-{secrets.token_hex(4)}"
    before = count(docker_settings, *nameless)
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        ref = await sandbox.snapshot(name=name)
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        await sandbox.write_file("more", b"x")
        newer = await sandbox.snapshot(name=name)
        assert count(docker_settings, *nameless) == before + 1
    assert count(docker_settings, *nameless) == before
    await provider.delete_snapshot(newer.id)


_WAITING = ("ps", "--all", "--filter", "label=orion.copy")


async def test_a_copy_is_one_sandbox_s(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """The next sandbox begins with its files, and they go with it; another has what was saved, too, and no file is both's."""
    saved = await _saved(provider)
    volumes = count(docker_settings, "volume", "ls")
    async with open_task_group() as group:
        for _ in range(2):
            group.create_task(provider.keep_copy(saved.id))
    assert count(docker_settings, *_WAITING) == 1
    assert count(docker_settings, "volume", "ls") == volumes + 2
    spec = SandboxSpec(workspace_id=saved.id)
    script = "cat deps; echo two > deps; touch ~/left; ls -ld . | cut -c1-10"
    async with AsyncExitStack() as opened:
        sandboxes = [await opened.enter_async_context(open_sandbox(provider, spec)) for _ in "ab"]
        assert [await sh(one, script) for one in sandboxes] == 2 * ["one\ndrwxr-xr-x\n"]
        assert count(docker_settings, *_WAITING) == 0
    assert count(docker_settings, "ps", "--all") == 0
    assert count(docker_settings, "volume", "ls") == volumes
    await provider.delete_snapshot(saved.id)


async def test_a_copy_goes_with_its_snapshot(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """It outlives who has made it, and no snapshot; one that was taken is swept when who took it has gone."""
    saved = await _saved(provider)
    async with DockerProvider(replace(docker_settings, owner="gone")) as other:
        await other.keep_copy(saved.id)
    await provider.sweep(living=())
    assert count(docker_settings, *_WAITING) == 1
    copy = f"orion-{docker_settings.name}-copy-{saved.id}"
    argv = ["docker", "rename", copy, f"{copy}-taken"]
    subprocess.run(argv, check=True)  # noqa: ASYNC221  # short
    await provider.sweep(living=())
    assert count(docker_settings, "ps", "--all") == 0
    await provider.keep_copy(saved.id)
    assert count(docker_settings, *_WAITING) == 1
    await provider.delete_snapshot(saved.id)
    assert count(docker_settings, "ps", "--all") == 0
    assert count(docker_settings, "volume", "ls") == 0
    await provider.keep_copy(saved.id)
    assert count(docker_settings, "ps", "--all") == 0


async def _saved(provider: DockerProvider) -> SnapshotRef:
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.write_file("deps", b"one\n")
        return await sandbox.snapshot()


_GROW = """
import os
os.makedirs("deps", exist_ok=True)
for number in range(20):
    with open(f"deps/{number}", "wb") as file:
        file.write(os.urandom(1_000_000))
    os.utime(f"deps/{number}", (1, 499162500))
"""
_CHANGE = """
import os
with open("deps/1", "r+b") as file:
    file.write(b"new!")
os.utime("deps/1", (1, 499162500))
os.unlink("deps/2")
os.link("deps/3", "linked")
"""


async def _large(provider: DockerProvider, name: str | None = None) -> SnapshotRef:
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.exec(["python3", "-c", _GROW], timeout_s=20)
        return await sandbox.snapshot(name=name)


async def test_of_a_large_workspace_what_has_changed_is_saved(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """As one more layer, which outlives the ones below; a change that size and time do not show counts."""
    name = f"session-{secrets.token_hex(4)}"
    saved = await _large(provider)
    async with open_sandbox(provider, SandboxSpec(workspace_id=saved.id)) as sandbox:
        await sandbox.exec(["python3", "-c", _CHANGE], timeout_s=20)
        await sandbox.snapshot(name=name)
        await sandbox.write_file("later", b"1")
        last = await sandbox.snapshot(name=name)
    sizes = {ref.id: ref.size_bytes or 0 for ref in await provider.list_snapshots()}
    assert 20_000_000 <= sizes[saved.id] < sizes[last.id] < sizes[saved.id] + 6_000_000
    assert _changes(docker_settings, last) == "2"
    await provider.delete_snapshot(saved.id)
    async with open_sandbox(provider, SandboxSpec(snapshot_id=last.id)) as sandbox:
        script = "ls deps | wc -l; head -c 4 deps/1; stat -c ' %h' linked; cat later; ls /tmp"
        assert await sh(sandbox, script) == "19\nnew! 2\n1"
    await provider.delete_snapshot(last.id)
    assert count(docker_settings, "ps", "--all") == 0


@pytest.mark.long
async def test_layers_do_not_pile_up(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Every now and then all of it is saved again."""
    name = f"session-{secrets.token_hex(4)}"
    ref = await _large(provider, name)
    told = []
    for number in range(MAX_CHANGES + 2):
        async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
            await sandbox.write_file("number", b"%d" % number)
            ref = await sandbox.snapshot(name=name)
        told.append(_changes(docker_settings, ref))
    assert told == [*map(str, range(1, MAX_CHANGES + 1)), "0", "1"]
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        assert await sh(sandbox, "cat number; ls deps | wc -l") == f"{MAX_CHANGES + 1}20\n"
    await provider.delete_snapshot(ref.id)


async def test_what_cannot_be_compared_is_saved_whole(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """A file with two names, too deep for a path; and a save that is given up leaves nothing."""
    saved = await _large(provider)
    script = "import os\nfor _ in range(25):\n os.mkdir('d' * 200)\n os.chdir('d' * 200)\nopen('a', 'w').close()\nos.link('a', 'b')"
    async with open_sandbox(provider, SandboxSpec(workspace_id=saved.id)) as sandbox:
        await sandbox.exec(["python3", "-c", script], timeout_s=20)
        await sandbox.write_file("beside", b"1")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.7):
                await sandbox.snapshot()
        await until(lambda: count(docker_settings, "ps", "--all") == 1)
        ref = await sandbox.snapshot()
        assert _changes(docker_settings, ref) == "0"
        await sandbox.exec(["rm", "-rf", "d" * 200], timeout_s=20)
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        assert await sh(sandbox, "cat beside; ls deps | wc -l") == "120\n"
    for one in (ref, saved):
        await provider.delete_snapshot(one.id)


def _changes(settings: DockerSettings, ref: SnapshotRef) -> object:
    config = inspect(f"orion-snapshot/{settings.name}:{ref.id}")["Config"]
    assert isinstance(config, dict)
    return config["Labels"]["orion.changes"]


@pytest.mark.long
async def test_deleted_files_stay_deleted(provider: DockerProvider) -> None:
    """A session's snapshot holds what is there then, not what an earlier one or the environment's making had."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_files({"of-the-making": b"1", "/env/tool": b"1"})
        ref = await sandbox.snapshot()
    for gone, kept in (("of-the-making", "first"), ("first", "second")):
        async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
            await sandbox.exec(["rm", gone], timeout_s=20)
            await sandbox.write_file(kept, b"1")
            ref = await sandbox.snapshot()
        async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
            assert await sh(sandbox, "ls; ls /env") == f"{kept}\ntool\n"


@pytest.mark.long
async def test_snapshots_hold_no_variables(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Neither an environment nor a session keeps what its sandbox had in its environment."""
    secret = secrets.token_hex(16)
    spec = SandboxSpec(env={"TOKEN": secret}, environment_writable=True)
    async with open_sandbox(provider, spec) as sandbox:
        assert await sh(sandbox, "echo $TOKEN") == f"{secret}\n"
        environment = await sandbox.snapshot()
    spec = SandboxSpec(env={"TOKEN": secret}, snapshot_id=environment.id)
    async with open_sandbox(provider, spec) as sandbox:
        session = await sandbox.snapshot()
    for ref in (environment, session):
        found = json.dumps(inspect(f"orion-snapshot/{docker_settings.name}:{ref.id}"))
        assert secret not in found


@pytest.mark.long
async def test_environment_of_another_base_is_not_found(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """When the base image changes, environments made on the old one are made again; sessions stay."""
    name = secrets.token_hex(4)
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.snapshot(name=name)
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        session = await sandbox.snapshot(name=f"{name}-session")
    other = f"orion-test-other:{name}"
    argv = ["docker", "build", "--quiet", "--tag", other, "-"]
    subprocess.run(  # noqa: ASYNC221  # short
        argv,
        input=f"FROM {docker_settings.image}\nLABEL other={name}\n".encode(),
        check=True,
        capture_output=True,
        env={"PATH": f"{os.defpath}:/usr/local/bin", "DOCKER_BUILDKIT": "0"},
    )
    try:
        async with DockerProvider(replace(docker_settings, image=other)) as second:
            assert await second.find_snapshot(name) is None
            assert await second.find_snapshot(f"{name}-session") == session
        assert await provider.find_snapshot(name) is not None
    finally:
        argv = ["docker", "rmi", other]
        subprocess.run(argv, check=True, capture_output=True)  # noqa: ASYNC221  # short


async def test_base_image_is_built_once(docker_settings: DockerSettings) -> None:
    """It is named by what goes into it, tells its steps, and a failing step is quoted."""
    # Labelled first, so that the layers which a failed build leaves as a cache are known as ours.
    dockerfile = (
        f"ARG BASE\nFROM ${{BASE}}\nLABEL orion.name={docker_settings.name}\n"
        "ARG GIT_NAME\nRUN echo of ${GIT_NAME} > /work/built\n"
    ).encode()
    settings = replace(docker_settings, image=None, base=docker_settings.image, git_name="Ada")
    async with open_engine(settings.docker_host) as engine:
        base = BaseImage(Images(engine), settings, dockerfile=dockerfile)
        renamed = BaseImage(
            Images(engine), replace(settings, git_name="Eve"), dockerfile=dockerfile
        )
        assert base.reference != renamed.reference
        steps: list[str] = []
        try:
            made = await base.ensure(steps.append)
            again: list[str] = []
            assert (await base.ensure(again.append)).id == made.id
        finally:
            await Images(engine).remove(base.reference)
        assert (steps[:2], steps[-1]) == (["checking", "creating"], "done")
        assert any(step.startswith("installing, step ") for step in steps)
        assert again == ["checking", "exists"]
        broken = BaseImage(
            Images(engine), settings, dockerfile=dockerfile + b"RUN echo why; exit 7\n"
        )
        with pytest.raises(SandboxError, match="why") as caught:
            await broken.ensure(steps.append)
        assert caught.value.code is SandboxErrorCode.SETUP_FAILED
        assert steps[-1] == "error"
    exited = ["docker", "ps", "--all", "--quiet", "--filter", "exited=7"]
    left = subprocess.run(exited, capture_output=True, check=True).stdout  # noqa: ASYNC221  # short
    assert left == b""


async def test_missing_images_are_named(docker_settings: DockerSettings) -> None:
    """An operator's image that the engine does not have is an error with its fix, before anything runs."""
    async with DockerProvider(replace(docker_settings, image="orion-test-none:1")) as provider:
        with pytest.raises(SandboxError, match="pull it") as caught:
            await provider.ensure_ready()
        assert caught.value.code is SandboxErrorCode.SETUP_FAILED
        with pytest.raises(SandboxError, match="pull it"):
            await provider.probe()
        with pytest.raises(SandboxError) as caught:
            await provider.create(SandboxSpec())
        assert caught.value.code is SandboxErrorCode.CREATE_FAILED


async def test_missing_runtime_is_named(docker_settings: DockerSettings) -> None:
    """A runtime that the engine does not know is an error that says so."""
    async with DockerProvider(replace(docker_settings, runtime="no-such")) as provider:
        with pytest.raises(SandboxError, match="no-such") as caught:
            await provider.probe()
        assert caught.value.code is SandboxErrorCode.ISOLATION_UNAVAILABLE
        with pytest.raises(SandboxError) as caught:
            await provider.create(SandboxSpec())
        assert caught.value.code is SandboxErrorCode.CREATE_FAILED

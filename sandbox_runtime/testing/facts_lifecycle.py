"""Conformance: sandboxes apart from each other, their end, snapshots and names."""

import asyncio
import secrets
from contextlib import suppress

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.expectations import (
    TIMEOUT_S,
    expect,
    expect_code,
    expect_equal,
    expect_raises,
    fact,
    fresh,
    python,
    sh,
)
from sandbox_runtime.types import Capability, SandboxId, SandboxLimits, SandboxSpec, SnapshotId


async def check_sandboxes_do_not_share_files(provider: SandboxProvider) -> None:
    """What one sandbox writes, another does not find."""
    async with fresh(provider) as one, fresh(provider) as other:
        expect(one.id != other.id, one.id)
        await one.write_file("file", b"of one")
        await one.write_file(f"{one.paths.home}/file", b"of one")
        for path in ("file", f"{other.paths.home}/file"):
            with expect_raises(FileNotFoundError):
                await other.read_file(path)


async def check_spec_env(provider: SandboxProvider) -> None:
    """The sandbox's own variables reach every command; a command's own win over them."""
    async with fresh(provider, SandboxSpec(env={"A": "spec", "B": "spec"})) as sandbox:
        argv = ["sh", "-c", "echo $A $B"]
        result = await sandbox.exec(argv, timeout_s=TIMEOUT_S, env={"B": "exec"})
        expect_equal(result.text, "spec exec\n")


async def check_file_size_limit(provider: SandboxProvider) -> None:
    """A file cannot grow beyond the limit."""
    spec = SandboxSpec(limits=SandboxLimits(max_file_bytes=100_000))
    async with fresh(provider, spec) as sandbox:
        await sh(sandbox, "head -c 200000 /dev/zero > large")
        expect_equal((await sh(sandbox, "stat -c %s large")).text, "100000\n")


async def check_memory_limit(provider: SandboxProvider) -> None:
    """A command that takes too much memory fails, and the sandbox lives on."""
    spec = SandboxSpec(limits=SandboxLimits(memory_bytes=512 * 1024**2))
    async with fresh(provider, spec) as sandbox:
        result = await python(sandbox, "bytearray(1024**3)")
        expect(result.exit_code != 0, result)
        expect_equal((await sh(sandbox, "echo alive")).text, "alive\n")


async def check_use_after_destroy(provider: SandboxProvider) -> None:
    """A destroyed sandbox refuses everything with UNAVAILABLE."""
    async with fresh(provider) as sandbox:
        await sandbox.destroy()
        with expect_code(SandboxErrorCode.UNAVAILABLE):
            await sandbox.exec(["true"], timeout_s=TIMEOUT_S)
        with expect_code(SandboxErrorCode.UNAVAILABLE):
            await sandbox.spawn(["true"])
        with expect_code(SandboxErrorCode.UNAVAILABLE):
            await sandbox.write_file("file", b"")
        with expect_code(SandboxErrorCode.UNAVAILABLE):
            await sandbox.read_file("file")
        with expect_code(SandboxErrorCode.UNAVAILABLE):
            await sandbox.snapshot()


async def check_destroy_is_idempotent(provider: SandboxProvider) -> None:
    """Destroying several times, even at once, is fine."""
    async with fresh(provider) as sandbox, open_task_group() as group:
        for _ in range(3):
            group.create_task(sandbox.destroy())


async def check_destroy_is_not_cancelled_halfway(provider: SandboxProvider) -> None:
    """A cancellation waits until the sandbox is gone."""
    async with fresh(provider) as sandbox, open_task_group() as group:
        await sh(sandbox, "true")
        destroying = group.create_task(sandbox.destroy())
        await asyncio.sleep(0)
        destroying.cancel()
        await asyncio.wait([destroying], timeout=TIMEOUT_S)
        expect(destroying.cancelled(), destroying)
        left = [info.id for info in await provider.list() if info.id == sandbox.id and info.running]
        expect_equal(left, [])


async def check_destroy_ends_commands(provider: SandboxProvider) -> None:
    """Destroying ends what runs: a spawned command's events end, and an exec does not hang."""
    async with fresh(provider) as sandbox:
        process = await sandbox.spawn(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
        async with asyncio.timeout(TIMEOUT_S), open_task_group() as group:
            waiting = group.create_task(sandbox.exec(["sleep", "60"], timeout_s=60))
            await sh(sandbox, "true")
            await sandbox.destroy()
            events = [event async for event in process.events()]
        expect(events, events)
        expect_equal(waiting.result().exit_code, 137)


async def check_unknown_snapshot(provider: SandboxProvider) -> None:
    """An unknown snapshot id, also a hostile one, raises NOT_FOUND."""
    for unknown in ("no-such-snapshot", "../../etc", ".", ""):
        with expect_code(SandboxErrorCode.NOT_FOUND):
            await provider.create(SandboxSpec(snapshot_id=SnapshotId(unknown)))


async def check_ensure_ready_is_stable(provider: SandboxProvider) -> None:
    """The base is made once, tells its steps, and boots."""
    steps: list[str] = []
    first = await provider.ensure_ready(steps.append)
    expect_equal(steps[0], "checking")
    expect_equal((await provider.ensure_ready()).id, first.id)
    expect_equal(first.provider, provider.name)
    async with fresh(provider, SandboxSpec(snapshot_id=first.id)) as sandbox:
        expect_equal((await sh(sandbox, "echo up")).text, "up\n")


async def check_snapshot_restores_the_workspace(provider: SandboxProvider) -> None:
    """Work and home come back with modes and links, writable; the run directory does not."""
    async with fresh(provider) as sandbox:
        await sandbox.write_file("d/tool", b"#!/bin/sh\necho work\n", executable=True)
        await sandbox.write_file(f"{sandbox.paths.home}/.notes", b"home")
        await sandbox.write_file(f"{sandbox.paths.run}/secret", b"never saved")
        await sh(sandbox, "ln -s d link; mkdir empty; chmod 500 empty; mkfifo fifo")
        ref = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(snapshot_id=ref.id)) as restored:
        expect_equal(
            (await sh(restored, "link/tool; stat -c %A empty; rmdir empty")).text,
            "work\ndr-x------\n",
        )
        expect_equal(await restored.read_file(f"{restored.paths.home}/.notes"), b"home")
        await restored.write_file("d/tool", b"writable")
        with expect_raises(FileNotFoundError):
            await restored.read_file(f"{restored.paths.run}/secret")


async def check_snapshot_is_immutable(provider: SandboxProvider) -> None:
    """What is done to a restored sandbox, or to the one saved, is not seen by the next one."""
    async with fresh(provider) as sandbox:
        await sandbox.write_file("file", b"saved")
        ref = await sandbox.snapshot()
    for text in (b"changed", b"again"):
        async with fresh(provider, SandboxSpec(snapshot_id=ref.id)) as restored:
            expect_equal(await restored.read_file("file"), b"saved")
            await restored.write_file("file", text)


async def check_saving_ends_it_where_said(provider: SandboxProvider) -> None:
    """A sandbox works on after it was saved, unless its provider says that saving ends it."""
    async with fresh(provider) as sandbox:
        await sandbox.snapshot()
        if Capability.ENDS_WHEN_SAVED in provider.capabilities:
            with expect_code(SandboxErrorCode.UNAVAILABLE):
                await sh(sandbox, "true")
        else:
            expect_equal((await sh(sandbox, "echo on")).text, "on\n")


async def check_snapshot_names(provider: SandboxProvider) -> None:
    """A name finds its snapshot; a later one of that name replaces it; deletion ends it."""
    name = f"odd name/ü {secrets.token_hex(4)}"
    expect_equal(await provider.find_snapshot(name), None)
    async with fresh(provider) as sandbox:
        first = await sandbox.snapshot(name=name)
        expect_equal(first.name, name)
        expect_equal(await provider.find_snapshot(name), first)
        second = await sandbox.snapshot(name=name)
    expect_equal(await provider.find_snapshot(name), second)
    listed = [ref for ref in await provider.list_snapshots() if ref.name == name]
    expect_equal(listed, [second])
    await provider.delete_snapshot(second.id)
    await provider.delete_snapshot(second.id)
    expect_equal(await provider.find_snapshot(name), None)
    with expect_code(SandboxErrorCode.NOT_FOUND):
        await provider.create(SandboxSpec(snapshot_id=second.id))


async def check_environment_is_saved(provider: SandboxProvider) -> None:
    """What is put into a writable environment is found in sandboxes made from it, and further ones build on it."""
    async with fresh(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/bin/one", b"1")
        first = await sandbox.snapshot()
    spec = SandboxSpec(snapshot_id=first.id, environment_writable=True)
    async with fresh(provider, spec) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/bin/two", b"2")
        second = await sandbox.snapshot()
    for ref, names in ((first, "one\n"), (second, "one\ntwo\n")):
        async with fresh(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
            expect_equal((await sh(sandbox, 'ls "$1"/bin', sandbox.paths.environment)).text, names)


async def check_environment_sizes(provider: SandboxProvider) -> None:
    """The list says how large an environment is, without the base that it stands on."""
    name, size_bytes = f"sized {secrets.token_hex(4)}", 300_000
    async with fresh(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(
            f"{sandbox.paths.environment}/file", secrets.token_bytes(size_bytes)
        )
        await sandbox.snapshot(name=name)
    (listed,) = [ref for ref in await provider.list_snapshots() if ref.name == name]
    expect(size_bytes <= (listed.size_bytes or 0) < 10 * size_bytes, listed)
    await provider.delete_snapshot(listed.id)


async def check_session_keeps_its_environment(provider: SandboxProvider) -> None:
    """The snapshot of a working sandbox remembers the environment below it."""
    async with fresh(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/tool", b"tool")
        base = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(snapshot_id=base.id)) as sandbox:
        await sandbox.write_file("turn", b"1")
        session = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(snapshot_id=session.id)) as sandbox:
        expect_equal(await sandbox.read_file(f"{sandbox.paths.environment}/tool"), b"tool")
        expect_equal(await sandbox.read_file("turn"), b"1")


async def check_workspace_moves_to_another_environment(provider: SandboxProvider) -> None:
    """Files saved above one environment are found above another one, which stays as it is; an unknown one is refused."""
    async with fresh(provider) as sandbox:
        await sandbox.write_file("turn", b"1")
        saved = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/tool", b"new")
        base = await sandbox.snapshot()
    spec = SandboxSpec(snapshot_id=base.id, workspace_id=saved.id)
    async with fresh(provider, spec) as sandbox:
        expect_equal(await sandbox.read_file("turn"), b"1")
        expect_equal(await sandbox.read_file(f"{sandbox.paths.environment}/tool"), b"new")
        await sandbox.write_file("turn", b"2")
        both = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(snapshot_id=both.id)) as sandbox:
        expect_equal(await sandbox.read_file("turn"), b"2")
        expect_equal(await sandbox.read_file(f"{sandbox.paths.environment}/tool"), b"new")
    with expect_code(SandboxErrorCode.NOT_FOUND):
        await provider.create(
            SandboxSpec(snapshot_id=base.id, workspace_id=SnapshotId("no-such-snapshot"))
        )


async def check_deleted_snapshot_keeps_running_sandboxes(provider: SandboxProvider) -> None:
    """A running sandbox survives the deletion of its snapshot."""
    async with fresh(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/tool", b"tool")
        ref = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        await provider.delete_snapshot(ref.id)
        expect_equal(await sandbox.read_file(f"{sandbox.paths.environment}/tool"), b"tool")


async def check_list_by_labels(provider: SandboxProvider) -> None:
    """Listing finds living sandboxes carrying all the labels, and only those."""
    mark = secrets.token_hex(4)
    async with fresh(provider, SandboxSpec(labels={"mark": mark, "kind": "a"})) as sandbox:
        (info,) = await provider.list({"mark": mark})
        expect_equal((info.id, info.running, info.labels["kind"]), (sandbox.id, True, "a"))
        expect_equal(list(await provider.list({"mark": mark, "kind": "b"})), [])
    expect_equal(list(await provider.list({"mark": mark})), [])


async def check_removal_by_id(provider: SandboxProvider) -> None:
    """Its commands end, it is gone for whoever holds it; unknown and hostile ids change nothing."""
    async with fresh(provider) as sandbox, fresh(provider) as other:
        waiting = await sandbox.spawn(["sleep", "60"])
        for unknown in ("no-such-sandbox", "../../etc", "", other.id + "/.."):
            await provider.remove(SandboxId(unknown))
        await provider.remove(sandbox.id)
        await provider.remove(sandbox.id)
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(SandboxError):
                async for _event in waiting.events():
                    pass
        with expect_code(SandboxErrorCode.UNAVAILABLE):
            await sandbox.exec(["true"], timeout_s=TIMEOUT_S)
        expect_equal((await sh(other, "echo alive")).text, "alive\n")


async def check_attach_after_destroy(provider: SandboxProvider) -> None:
    """An unknown sandbox raises NOT_FOUND."""
    with expect_code(SandboxErrorCode.NOT_FOUND):
        await provider.attach(SandboxId("no-such-sandbox"))


LIFECYCLE_FACTS = (
    fact(check_sandboxes_do_not_share_files),
    fact(check_spec_env),
    fact(check_file_size_limit),
    fact(check_memory_limit),
    fact(check_use_after_destroy),
    fact(check_destroy_is_idempotent),
    fact(check_destroy_is_not_cancelled_halfway),
    fact(check_destroy_ends_commands),
    fact(check_unknown_snapshot),
    fact(check_ensure_ready_is_stable),
    fact(check_snapshot_restores_the_workspace, needs=Capability.SNAPSHOT),
    fact(check_snapshot_is_immutable, needs=Capability.SNAPSHOT),
    fact(check_saving_ends_it_where_said, needs=Capability.SNAPSHOT),
    fact(check_snapshot_names, needs=Capability.SNAPSHOT),
    fact(check_environment_is_saved, needs=Capability.SNAPSHOT),
    fact(check_environment_sizes, needs=Capability.SNAPSHOT),
    fact(check_session_keeps_its_environment, needs=Capability.SNAPSHOT),
    fact(check_workspace_moves_to_another_environment, needs=Capability.SNAPSHOT),
    fact(check_deleted_snapshot_keeps_running_sandboxes, needs=Capability.SNAPSHOT),
    fact(check_removal_by_id),
    fact(check_list_by_labels),
    fact(check_attach_after_destroy, needs=Capability.ATTACH),
)

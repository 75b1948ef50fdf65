"""Each fault of the service at each step of a sandbox's life: the right code, or success after the right repetition."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import create_sandbox
from sandbox_runtime.providers.vercel.provider import VercelProvider
from sandbox_runtime.types import SandboxSpec, SnapshotId
from tests.contract.sandbox_runtime.vercel_service import VercelService
from tests.emulators.vercel.faults import Fault, Kind, failing, talking_nonsense
from tests.emulators.vercel.server import Emulator
from tests.long import long_but, one_of_each

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_GONE, _FAILED = SandboxErrorCode.UNAVAILABLE, SandboxErrorCode.CREATE_FAILED
_LIMIT, _MISSING = SandboxErrorCode.LIMIT_REACHED, SandboxErrorCode.NOT_FOUND
_SPEC = SandboxSpec(labels={"orion.run": "run-7", "orion.agent": "anthropic"})

_STATUSES: dict[str, Callable[[str], Fault]] = {
    "429": lambda at: failing(at, 429, "rate_limited", headers={"retry-after": "1"}),
    "500": lambda at: failing(at, 500, "internal_error"),
    "503": lambda at: failing(at, 503, "unavailable"),
    "html": talking_nonsense,
    "garbage": lambda at: talking_nonsense(at, html=False),
    "lost": lambda at: Fault(endpoint=at, kind="lost"),
    "broken": lambda at: Fault(endpoint=at, kind="broken"),
    "401": lambda at: failing(at, 401, "unauthorized"),
    "403": lambda at: failing(at, 403, "forbidden"),
    "410": lambda at: failing(at, 410, "sandbox_stopped"),
}
_PASSING = ("429", "500", "503", "html", "garbage", "lost", "broken")
ONCE = {
    (step, fault): None
    for step in ("create", "start", "update", "destroy", "snapshot")
    for fault in _PASSING
} | {
    # The boot is asked for once for each sandbox: the next attempt has another sandbox.
    ("run", "429"): None,
    ("run", "500"): None,
    ("run", "lost"): None,
    ("run", "broken"): None,
    # What tells the output is asked again.
    ("logs", "429"): None,
    ("logs", "500"): None,
    ("logs", "lost"): None,
    ("logs", "broken"): None,
    ("logs", "html"): None,
    # The SDK repeats input that may not have arrived, with its offset.
    ("stdin", "429"): None,
    ("stdin", "503"): None,
    ("stdin", "lost"): None,
    ("stdin", "broken"): None,
    # Not on a plain 500: whether it arrived is unknown, and the command must not run twice.
    ("stdin", "500"): _GONE,
    # What will not pass is not repeated.
    ("create", "401"): _GONE,
    ("create", "403"): _GONE,
    ("run", "410"): _FAILED,
    ("run", "401"): _FAILED,
    ("start", "401"): _GONE,
    ("start", "410"): _GONE,
    ("snapshot", "403"): _GONE,
    ("snapshot", "410"): _GONE,
    ("update", "403"): _GONE,
    # What is stopped need not be.
    ("stop", "410"): None,
    ("stop", "500"): None,
}
ALWAYS = {
    ("create", "429"): _LIMIT,
    ("create", "500"): _FAILED,
    ("create", "html"): _FAILED,
    ("create", "lost"): _GONE,
    ("run", "500"): _FAILED,
    ("start", "500"): _GONE,
    ("start", "lost"): _GONE,
    ("logs", "500"): _GONE,
    ("snapshot", "500"): _GONE,
    ("update", "500"): _GONE,
}


async def _live(provider: VercelProvider, emulator: Emulator) -> None:
    """From its making to its end, with a command and a snapshot."""
    sandbox = await create_sandbox(provider, _SPEC, attempts=3, backoff_s=0.01)
    try:
        assert len(emulator.running()) == 1
        result = await sandbox.exec(["sh", "-c", "echo x >> ran; cat ran"], timeout_s=20)
        assert result.text == "x\n"  # once
        ref = await sandbox.snapshot(name="saved")
        assert await provider.find_snapshot("saved") == ref
        await provider.delete_snapshot(ref.id)
    finally:
        await sandbox.destroy()


async def _outcome(service: VercelService, *faults: Fault) -> SandboxError | None:
    emulator = service.emulator
    async with VercelProvider(service.settings()) as provider:
        emulator.faults.add(*faults)
        failure = None
        try:
            async with asyncio.timeout(28):
                await _live(provider, emulator)
        except SandboxError as exc:
            failure = exc
        assert emulator.faults.seen, "the fault did not come"
        emulator.faults.clear()
        if failure is None:
            assert list(await provider.list({"orion.run": "run-7"})) == []
            assert list(await provider.list_snapshots()) == []
        else:
            await provider.sweep()
    # What a failure left was removed by closing, or is off.
    assert emulator.running() == []
    return failure


def _make(fault: str) -> Callable[[str], Fault]:
    return _STATUSES[fault]


MAX_REPETITIONS = 20
"""Output is asked for again for nine beats, here of half a second each, at most once in half a second."""


@pytest.mark.parametrize(("step", "fault"), one_of_each(ONCE, lambda row: ONCE[row] or row[0]))
async def test_a_fault_that_passes(vercel: VercelService, step: str, fault: str) -> None:
    """It costs a repetition, or ends in the code that says why not; nothing is made twice, nothing is left."""
    failure = await _outcome(vercel, _make(fault)(step))
    assert (failure.code if failure else None) is ONCE[step, fault], failure


@pytest.mark.parametrize(("step", "fault"), one_of_each(ALWAYS, ALWAYS.__getitem__))
async def test_a_fault_that_stays(vercel: VercelService, step: str, fault: str) -> None:
    """The right code, after a bounded number of repetitions; when the service is well again nothing is left."""
    made = _make(fault)(step)
    made.times = 30
    failure = await _outcome(vercel, made)
    assert failure is not None
    assert failure.code is ALWAYS[step, fault], failure
    assert vercel.emulator.count(step) <= MAX_REPETITIONS


async def test_answer_to_a_create_is_lost(vercel: VercelService) -> None:
    """What was made is found by its name and used: no second one."""
    before = vercel.emulator.world.created
    async with VercelProvider(vercel.settings()) as provider:
        vercel.emulator.faults.add(Fault(endpoint="create", kind="broken"))
        sandbox = await create_sandbox(provider, _SPEC, backoff_s=0.01)
        assert vercel.emulator.world.created == before + 1
        assert (await sandbox.exec(["true"], timeout_s=10)).exit_code == 0
        await sandbox.destroy()


async def test_create_while_the_service_is_away(vercel: VercelService) -> None:
    """Answer and look-ups lost: the next attempt finds the first one's sandbox by its name, and takes it."""
    before = vercel.emulator.world.created
    async with VercelProvider(vercel.settings()) as provider:
        lost = Fault(endpoint="get", kind="lost", times=3)
        vercel.emulator.faults.add(Fault(endpoint="create", kind="broken"), lost)
        sandbox = await create_sandbox(provider, _SPEC, backoff_s=0.01)
        assert vercel.emulator.world.created == before + 1
        await sandbox.destroy()


@pytest.mark.long
async def test_cancelled_create(vercel: VercelService) -> None:
    """Whoever gives up while a sandbox is made leaves none."""
    async with VercelProvider(vercel.settings()) as provider:
        vercel.emulator.faults.add(Fault(endpoint="create", kind="slow", delay_s=0.5))
        vercel.emulator.world.start_s = 5.0

        async def give_up() -> None:
            async with asyncio.timeout(0.8):
                await provider.create(_SPEC)

        with pytest.raises(TimeoutError):
            await give_up()
    assert vercel.emulator.running() == []


@pytest.mark.parametrize("is_closed_at_once", long_but([True, False], lambda closed: not closed))
async def test_create_that_is_answered_after_its_asker_has_gone(
    vercel: VercelService, *, is_closed_at_once: bool
) -> None:
    """Nobody waits for it, and what it makes is removed."""
    before = vercel.emulator.world.created
    async with VercelProvider(vercel.settings()) as provider:
        vercel.emulator.faults.add(Fault(endpoint="create", kind="slow", delay_s=3))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await provider.create(_SPEC)
        assert time.monotonic() - began < 1.5
        assert vercel.emulator.world.created == before
        if not is_closed_at_once:
            await asyncio.sleep(4)
            assert vercel.emulator.running() == []
    assert vercel.emulator.world.created == before + 1
    assert vercel.emulator.running() == []


async def test_cancelled_destroy_is_finished(vercel: VercelService) -> None:
    """A cancellation that hits the destruction itself comes after it."""
    async with VercelProvider(vercel.settings()) as provider:
        sandbox = await provider.create(_SPEC)
        vercel.emulator.faults.add(Fault(endpoint="destroy", kind="slow", delay_s=0.5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sandbox.destroy()
        assert list(await provider.list()) == []


@pytest.mark.long
async def test_slow_start(vercel: VercelService) -> None:
    """One that is pending for a while is waited for; for too long, it is removed."""
    async with VercelProvider(vercel.settings(create_timeout_s=2.0)) as provider:
        vercel.emulator.world.start_s = 1.0
        sandbox = await provider.create(_SPEC)
        await sandbox.destroy()
        vercel.emulator.world.start_s = 60.0
        with pytest.raises(SandboxError) as caught:
            async with asyncio.timeout(28):
                await provider.create(replace(_SPEC, labels={}))
        assert caught.value.retryable
        vercel.emulator.world.start_s = 0.0


async def test_too_many_sandboxes(vercel: VercelService) -> None:
    """The service's limit is LIMIT_REACHED, with the number running."""
    async with VercelProvider(vercel.settings()) as provider:
        sandbox = await provider.create(SandboxSpec())
        vercel.emulator.world.concurrency = 1
        with pytest.raises(SandboxError, match="1 sandboxes of this process") as caught:
            await provider.create(SandboxSpec())
        assert (caught.value.code, caught.value.retryable) == (_LIMIT, True)
        await sandbox.destroy()


async def test_expired_snapshot(vercel: VercelService) -> None:
    """A snapshot that the service has deleted is found no more, and NOT_FOUND to whoever has its id."""
    async with VercelProvider(vercel.settings()) as provider:
        sandbox = await provider.create(SandboxSpec(environment_writable=True))
        ref = await sandbox.snapshot(name="environment")
        (vercel_id,) = vercel.emulator.world.snapshots
        vercel.emulator.call(vercel.emulator.world.delete_snapshot(vercel_id))
        assert await provider.find_snapshot("environment") is None
        with pytest.raises(SandboxError) as caught:
            await create_sandbox(provider, SandboxSpec(snapshot_id=ref.id), backoff_s=0.01)
        assert (caught.value.code, caught.value.retryable) == (_MISSING, False)
        await provider.delete_snapshot(ref.id)
        await provider.delete_snapshot(SnapshotId("orion-x"))
        assert list(await provider.list_snapshots()) == []


async def test_expired_workspace(vercel: VercelService) -> None:
    """Whoever starts from it, or has it moved to another environment, is told NOT_FOUND; under its name there is nothing."""
    async with VercelProvider(vercel.settings()) as provider:
        environments = []
        for name in ("one", "two"):
            sandbox = await provider.create(SandboxSpec(environment_writable=True))
            environments.append((await sandbox.snapshot(name=name)).id)
        sandbox = await provider.create(SandboxSpec(snapshot_id=environments[0]))
        before = set(vercel.emulator.world.snapshots)
        ref = await sandbox.snapshot(name="session-x")
        (vercel_id,) = set(vercel.emulator.world.snapshots) - before
        vercel.emulator.call(vercel.emulator.world.delete_snapshot(vercel_id))
        assert ref.id in {each.id for each in await provider.list_snapshots()}
        assert await provider.find_snapshot("session-x") is None
        for environment in environments:
            with pytest.raises(SandboxError) as caught:
                await provider.create(SandboxSpec(snapshot_id=environment, workspace_id=ref.id))
            assert caught.value.code is _MISSING
        assert vercel.emulator.running() == []
        for each in await provider.list_snapshots():
            await provider.delete_snapshot(each.id)


@pytest.mark.parametrize(("kind", "after"), [("cut", (0, 60, 700, 5000)), ("silent", (0, 700))])
async def test_streams_break_off(vercel: VercelService, kind: Kind, after: tuple[int, ...]) -> None:
    """Output whose connection is cut, or carries nothing any more, arrives once and whole."""
    async with VercelProvider(vercel.settings(beat_s=0.3)) as provider:
        sandbox = await provider.create(SandboxSpec())
        faults = (Fault(endpoint="logs", kind=kind, after_bytes=number) for number in after)
        vercel.emulator.faults.add(*faults)
        result = await sandbox.exec(["sh", "-c", "seq 1 2000; sleep 1; seq 1 9 >&2"], timeout_s=25)
        assert result.stdout == b"".join(b"%d\n" % n for n in range(1, 2001))
        assert result.stderr == b"".join(b"%d\n" % n for n in range(1, 10))
        assert len(vercel.emulator.faults.seen) == len(after)
        await sandbox.destroy()


@pytest.mark.long
async def test_stream_that_stays_silent(vercel: VercelService) -> None:
    """Whose connections all carry nothing is lost, in time; then it is killed all the same."""
    async with VercelProvider(vercel.settings(beat_s=0.2)) as provider:
        sandbox = await provider.create(SandboxSpec())
        vercel.emulator.faults.add(Fault(endpoint="logs", kind="silent", times=40))
        began = time.monotonic()
        with pytest.raises(SandboxError) as caught:
            await sandbox.exec(["sleep", "60"], timeout_s=60)
        assert caught.value.code is SandboxErrorCode.UNAVAILABLE
        assert time.monotonic() - began < 20
        await sandbox.destroy()


async def test_silent_command(vercel: VercelService) -> None:
    """A command that says nothing for long is not lost: it shows that it lives."""
    async with VercelProvider(vercel.settings(beat_s=0.2)) as provider:
        sandbox = await provider.create(SandboxSpec())
        result = await sandbox.exec(["sh", "-c", "sleep 2; echo done"], timeout_s=20)
        assert result.text == "done\n"
        assert vercel.emulator.count("logs") == 1
        await sandbox.destroy()


async def test_lifetime_ends(vercel: VercelService) -> None:
    """Its time is over: UNAVAILABLE, listed as ended, and swept; it is never booted again."""
    async with VercelProvider(vercel.settings()) as provider:
        sandbox = await provider.create(_SPEC)
        process = await sandbox.spawn(["sleep", "60"])
        vercel.emulator.end_lifetime(sandbox.id)
        with pytest.raises(SandboxError) as caught:
            _ = [event async for event in process.events()]
        assert caught.value.code is _GONE
        with pytest.raises(SandboxError) as caught:
            await sandbox.exec(["true"], timeout_s=10)
        assert caught.value.code is _GONE
        info = await provider.find(sandbox.id)
        assert info is not None
        assert not info.running
        provider.release(sandbox.id)
        assert await provider.sweep() == 1
        assert await provider.find(sandbox.id) is None
    assert all(seen.query.get("resume") != "true" for seen in vercel.emulator.seen)

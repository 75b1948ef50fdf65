"""Whatever goes wrong at whatever step: the right error or success after the right retry, nothing twice, nothing left."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from sandbox_runtime import SandboxError, SandboxErrorCode, SandboxSpec, open_sandbox
from sandbox_runtime.providers.deno.provider import DenoProvider
from tests.contract.sandbox_runtime.deno_emulator import open_organisation, settings_for
from tests.emulators.deno.faults import Kind
from tests.emulators.deno.server import Emulator
from tests.long import one_of_each

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_LIST, _KILL = "GET /api/v3/sandboxes", "DELETE /api/v3/sandboxes/*"
_CREATE, _CONNECT = "GET /api/v3/sandboxes/create", "GET /api/v3/sandbox/*/connect"
_SNAPSHOTS, _VOLUMES = "GET /api/v2/snapshots", "POST /api/v2/volumes"
_SNAPSHOT, _DELETE = "POST /api/v2/volumes/*/snapshot", "DELETE /api/v2/volumes/*"
_DELETE_SNAPSHOT = "DELETE /api/v2/snapshots/*"
_START, _EXEC, _READ, _STOP = 0, 1, 2, 3
"""Which spawn of the scenario: the script that makes it a sandbox, the command, the file, what readies the disk."""

_UNAVAILABLE, _CREATE_FAILED = SandboxErrorCode.UNAVAILABLE, SandboxErrorCode.CREATE_FAILED
_PASSING = (Kind.RATE_LIMIT, Kind.FAIL, Kind.FAIL_AFTER, Kind.CUT, Kind.CUT_AFTER, Kind.SLOW)
"""Errors of the control plane after which asking again may help, and is safe."""

Row = tuple[str, Kind, int, SandboxErrorCode | None]
"""Endpoint, fault, how many requests pass before, and what comes of it: None = success."""

TABLE: list[Row] = [
    *((endpoint, kind, 0, None) for endpoint in (_SNAPSHOTS, _VOLUMES, _SNAPSHOT) for kind in (*_PASSING, Kind.HTML, Kind.GARBAGE)),
    *((_KILL, kind, 0, None) for kind in (*_PASSING, Kind.HTML, Kind.GARBAGE, Kind.MISSING)),
    *((_LIST, kind, 0, None) for kind in (*_PASSING, Kind.HTML, Kind.GARBAGE)),
    *((_DELETE_SNAPSHOT, kind, 0, None) for kind in _PASSING),
    *((_DELETE, kind, 0, None) for kind in _PASSING),
    # A sandbox is made again by whoever wanted it; what was made unheard of is ended first.
    *((_CREATE, kind, 0, None) for kind in (*_PASSING, Kind.HTML, Kind.GARBAGE)),
    (_CREATE, Kind.MISSING, 0, SandboxErrorCode.NOT_FOUND),
    *((endpoint, Kind.UNAUTHORIZED, 0, _UNAVAILABLE) for endpoint in (_SNAPSHOTS, _VOLUMES, _CREATE, _SNAPSHOT)),
    *(("spawn", kind, _START, None) for kind in (Kind.FAIL, Kind.CUT, Kind.CUT_AFTER, Kind.GARBAGE, Kind.SLOW, Kind.SILENT)),
    *(("processWait", kind, _START, None) for kind in (Kind.FAIL, Kind.CUT, Kind.GARBAGE)),
    # A command is never started again by itself: nobody knows how far it came.
    *(("spawn", kind, _EXEC, _UNAVAILABLE) for kind in (Kind.FAIL, Kind.CUT, Kind.CUT_AFTER, Kind.GARBAGE, Kind.SILENT)),
    *(("processWait", kind, _EXEC, _UNAVAILABLE) for kind in (Kind.FAIL, Kind.CUT, Kind.GARBAGE, Kind.SILENT)),
    ("spawn", Kind.SLOW, _EXEC, None),
    # A file is read again.
    *(("spawn", kind, _READ, None) for kind in (Kind.FAIL, Kind.CUT, Kind.CUT_AFTER, Kind.GARBAGE, Kind.SILENT)),
    *(("spawn", kind, _STOP, _UNAVAILABLE) for kind in (Kind.FAIL, Kind.CUT)),
]  # fmt: skip


@pytest.fixture(scope="module")
def organisation() -> Iterator[Emulator]:
    with open_organisation() as emulator:
        yield emulator


@pytest.fixture
async def provider(organisation: Emulator) -> AsyncIterator[DenoProvider]:
    organisation.faults.clear()
    async with DenoProvider(replace(settings_for(organisation), silence_s=0.6)) as provider:
        await provider.ensure_ready()
        yield provider


@pytest.mark.parametrize(
    "row",
    one_of_each([(row,) for row in TABLE], lambda given: (given[0][0], *given[0][2:])),
    ids=lambda row: f"{row[0]}-{row[1].name}-{row[2]}",
)
async def test_fault(organisation: Emulator, provider: DenoProvider, row: Row) -> None:
    """One fault in the life of a sandbox."""
    endpoint, kind, skip, wanted = row
    counted: list[str] = []
    before = organisation.organisation.slugs
    organisation.faults.add(endpoint, kind, skip=skip)
    found = await _live(provider, counted)
    assert organisation.faults.fired[-1] == (endpoint, kind)
    organisation.faults.clear()
    assert found is wanted
    assert counted in ([], ["x\n"])
    assert organisation.organisation.running == []
    assert list(await provider.list()) == []
    await provider.sweep()
    assert organisation.organisation.slugs <= before


async def _live(provider: DenoProvider, counted: list[str]) -> SandboxErrorCode | None:
    """From its making to its end, with a snapshot that goes again; what came of it."""
    try:
        spec = SandboxSpec(labels={"run": "r1"})
        async with open_sandbox(provider, spec, attempts=3, backoff_s=0.01) as sandbox:
            count = "echo x >> count; cat count"
            counted.append((await sandbox.exec(["sh", "-c", count], timeout_s=10)).text)
            assert await sandbox.read_file("count") == b"x\n"
            ref = await sandbox.snapshot(name="fault")
        await provider.delete_snapshot(ref.id)
        await provider.sweep()
    except SandboxError as exc:
        return exc.code
    return None


async def test_create_that_is_answered_after_its_asker_has_gone(
    organisation: Emulator, provider: DenoProvider
) -> None:
    """Nobody waits for it, and what it makes is ended."""
    before = organisation.organisation.slugs
    created = organisation.organisation.created
    organisation.faults.add(_CREATE, Kind.SLOW)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await provider.create(SandboxSpec())
    assert time.monotonic() - began < 1.5
    await asyncio.sleep(2)
    assert organisation.faults.fired[-1] == (_CREATE, Kind.SLOW)
    assert organisation.organisation.created <= created + 1
    assert organisation.organisation.running == []
    await provider.sweep()
    assert organisation.organisation.slugs <= before


async def test_sandboxes_that_cannot_be_ended_hold_up_no_end(
    organisation: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """The service goes away all the same, and says what it leaves to the platform."""
    organisation.faults.clear()
    async with asyncio.timeout(60):
        async with DenoProvider(settings_for(organisation)) as provider:
            await provider.ensure_ready()
            await provider.create(SandboxSpec())
            organisation.faults.add(_KILL, Kind.UNAUTHORIZED, times=100)
        assert len(organisation.organisation.running) == 1
        assert "sandbox not destroyed" in caplog.text
        organisation.faults.clear()
        async with DenoProvider(settings_for(organisation)) as provider:
            for left in await provider.list():
                await (await provider.attach(left.id)).destroy()
    assert organisation.organisation.running == []


@pytest.mark.parametrize(
    "kind", one_of_each([Kind.FAIL, Kind.UNAUTHORIZED, Kind.CUT, Kind.HTML], lambda _kind: None)
)
async def test_lasting_fault(organisation: Emulator, provider: DenoProvider, kind: Kind) -> None:
    """What does not pass is an error in time, which says where it was."""
    started = time.monotonic()
    for endpoint in (_SNAPSHOTS, _VOLUMES, _CREATE, _LIST, _KILL, _DELETE):
        organisation.faults.add(endpoint, kind, times=100)
    with pytest.raises(SandboxError, match="cannot") as caught:
        await provider.create(SandboxSpec())
    assert caught.value.code in {_UNAVAILABLE, _CREATE_FAILED}
    assert caught.value.retryable is (kind is not Kind.UNAUTHORIZED)
    assert time.monotonic() - started < 15
    organisation.faults.clear()

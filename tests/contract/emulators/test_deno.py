"""The emulated Deno as its own SDK sees it, and what it does not put up with."""

import base64
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deno_sandbox import AsyncDenoDeploy

from tests.emulators.deno.faults import Kind
from tests.emulators.deno.recording import TOKEN, drive, endpoints
from tests.emulators.deno.resources import BUILTIN
from tests.emulators.deno.server import Emulator, open_emulator
from tests.emulators.machine_disk import disks_directory
from tests.plain_http import NO_TLS

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_RECORDED = Path(__file__).parents[2] / "data" / "deno" / "sdk_requests.json"
_VOLUME = {"slug": "v", "region": "ord", "capacity": "1GB"}


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    with tempfile.TemporaryDirectory(prefix="deno-", dir=disks_directory()) as directory:
        async with open_emulator(Path(directory) / "disks", token=TOKEN) as emulator:
            yield emulator


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=emulator.url, headers=headers) as client:
        yield client


async def test_sdk(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK sends what it sent when it was recorded, and understands every answer."""
    for name, value in endpoints(emulator.url).items():
        monkeypatch.setenv(name, value)
    recorded = json.loads(_RECORDED.read_text("utf-8"))
    assert await drive(emulator) == recorded


async def test_why_the_socket_is_our_own(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK still renames a command's variables. Once this fails, see in providers/deno/rpc.py what else keeps that alive."""
    for name, value in endpoints(emulator.url).items():
        monkeypatch.setenv(name, value)
    sdk = AsyncDenoDeploy()
    async with sdk.volumes._client:
        await sdk.volumes.create("base", "ord", "10GiB", from_snapshot=BUILTIN)
        async with sdk.sandbox.create(region="ord", root="base") as sandbox:
            process = await sandbox.spawn("true", env={"MY_VAR": "1"}, stdout="null", stderr="null")
            await process.wait()
    (sent,) = [params for method, params in emulator.calls if method == "spawn"]
    assert sent["env"] == {"MYVar": "1"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v2/apps", None),
        ("POST", "/api/v3/sandboxes", {}),
        ("GET", "/api/v3/sandboxes?color=red", None),
        ("POST", "/api/v2/volumes", {**_VOLUME, "color": "red"}),
        ("POST", "/api/v2/volumes", {**_VOLUME, "capacity": 1}),
        ("POST", "/api/v2/volumes", {**_VOLUME, "capacity": "21GiB"}),
        ("POST", "/api/v2/volumes", {**_VOLUME, "slug": "Upper"}),
        ("POST", "/api/v2/volumes", {**_VOLUME, "slug": "x" * 33}),
        ("POST", "/api/v2/volumes", {**_VOLUME, "region": "iad1"}),
        ("POST", "/api/v2/volumes", {"slug": "v"}),
    ],
)
async def test_refused(client: httpx.AsyncClient, method: str, path: str, body: Any) -> None:
    """Unknown routes, parameters and fields, and values out of bounds, are 400 with a code."""
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"code", "message"}
    assert answer.headers["x-deno-trace-id"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"color": "red"},
        {"region": "iad1"},
        {"memory_mb": 512},
        {"labels": {f"l{number}": "" for number in range(6)}},
        {"labels": {"k": "v" * 129}},
        {"secrets": {"K": {"hosts": [], "value": "v"}}},
        {"stop_at_ms": 9_999_999_999_999},
        {"timeout": "soon"},
    ],
)
async def test_refused_sandbox(client: httpx.AsyncClient, wrong: dict[str, Any]) -> None:
    """So is a sandbox of another form."""
    config = base64.b64encode(json.dumps(wrong).encode()).decode()
    answer = await client.get("/api/v3/sandboxes/create", headers={"x-deno-sandbox-config": config})
    assert answer.status_code == 400


async def test_token(emulator: Emulator) -> None:
    """Without the token, nothing."""
    async with httpx.AsyncClient(verify=NO_TLS, base_url=emulator.url) as client:
        for path in ("/api/v3/sandboxes", "/api/v2/volumes"):
            answer = await client.get(path, headers={"Authorization": "Bearer other"})
            assert (answer.status_code, answer.json()["code"]) == (401, "INVALID_TOKEN")


async def test_what_cannot_be_deleted(client: httpx.AsyncClient) -> None:
    """A volume with a snapshot stays, as does a snapshot with a volume; slugs are of one namespace."""
    await client.post("/api/v2/volumes", json={**_VOLUME, "from": BUILTIN})
    assert (await client.post("/api/v2/volumes/v/snapshot", json={"slug": "v"})).status_code == 409
    assert (await client.post("/api/v2/volumes/v/snapshot", json={"slug": "s"})).status_code == 200
    derived = {**_VOLUME, "slug": "w", "from": "s"}
    assert (await client.post("/api/v2/volumes", json=derived)).json()["isBootable"]
    for path, status in (
        ("volumes/v", 409),
        ("snapshots/s", 409),
        ("volumes/w", 204),
        ("snapshots/s", 204),
        ("volumes/v", 204),
        ("volumes/v", 404),
    ):
        assert (await client.delete(f"/api/v2/{path}")).status_code == status


async def test_faults(emulator: Emulator, client: httpx.AsyncClient) -> None:
    """Each is as it says, as often as it says."""
    found = []
    for kind in (
        Kind.RATE_LIMIT,
        Kind.FAIL,
        Kind.UNAUTHORIZED,
        Kind.MISSING,
        Kind.HTML,
        Kind.GARBAGE,
    ):
        emulator.faults.add("GET /api/v2/volumes", kind)
        found.append((await client.get("/api/v2/volumes")).status_code)
    assert found == [429, 500, 401, 404, 200, 200]
    emulator.faults.add("POST /api/v2/volumes", Kind.CUT_AFTER)
    with pytest.raises(httpx.TransportError):
        await client.post("/api/v2/volumes", json=_VOLUME)
    assert [one["slug"] for one in (await client.get("/api/v2/volumes")).json()] == ["v"]
    assert len(emulator.faults.fired) == 7


async def test_pages(client: httpx.AsyncClient) -> None:
    """More than fit on a page are linked to."""
    for number in range(3):
        await client.post("/api/v2/volumes", json={**_VOLUME, "slug": f"v{number}"})
    first = await client.get("/api/v2/volumes?limit=2")
    second = await client.get(first.links["next"]["url"])
    assert [one["slug"] for one in (*first.json(), *second.json())] == ["v0", "v1", "v2"]
    assert "next" not in second.links

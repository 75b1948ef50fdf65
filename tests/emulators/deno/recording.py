"""What Deno's own SDK sends, recorded: `python -m tests.emulators.deno.recording > tests/data/deno/sdk_requests.json`.

A test compares, so that a new SDK shows what it changed.
"""

import asyncio
import base64
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from deno_sandbox import AsyncDenoDeploy

from tests.emulators.deno.resources import BUILTIN
from tests.emulators.deno.server import Emulator, open_emulator
from tests.emulators.machine_disk import disks_directory

TOKEN = "ddo_recorded"  # noqa: S105  # made up
_ID = re.compile(r"(sbx|vol|snp)_(ord|ams)_[0-9a-f]+")


async def drive(emulator: Emulator) -> list[dict[str, Any]]:
    """All that we ask of the control plane, and the SDK's own way to make and join a sandbox; what was sent meanwhile."""
    sdk = AsyncDenoDeploy()
    async with sdk.volumes._client:  # it has no end of its own
        return await _drive(sdk, emulator)


async def _drive(sdk: AsyncDenoDeploy, emulator: Emulator) -> list[dict[str, Any]]:
    base = await sdk.volumes.create("base", "ord", "10GiB", from_snapshot=BUILTIN)
    assert base["is_bootable"]
    async with sdk.sandbox.create(
        region="ord",
        root="base",
        env={"MY_VAR": "1"},
        timeout="5m",
        memory_mb=1024,
        labels={"app": "orion"},
        allow_net=[],
        secrets={"KEY": {"hosts": ["api.example.com"], "value": "sk"}},
    ) as sandbox:
        process = await sandbox.spawn(
            "sh", args=["-c", "read line; echo $MY_VAR $line"], stdout="piped", stderr="piped", stdin_data=[b"in\n"]
        )  # fmt: skip
        assert (await process.wait())["code"] == 0
        async with sdk.sandbox.connect(sandbox.id) as joined:
            assert await joined.env.get("MY_VAR") == "1"
        assert (await sdk.sandbox.list()).items[0]["status"] == "running"
        await sandbox.extend_timeout(600)
        await sandbox.expose_ssh()
        await sandbox.kill()
    await asyncio.sleep(0.1)  # it detaches
    snapshot = await sdk.volumes.snapshot("base", slug="tools")
    assert (await sdk.snapshots.get("tools")) == snapshot
    assert (await sdk.volumes.get("none")) is None
    assert len((await sdk.volumes.list(limit=100)).items) == 1
    assert len((await sdk.snapshots.list()).items) == 1
    await sdk.snapshots.delete("tools")
    await sdk.volumes.delete("base")
    return [
        *(_request(*request) for request in emulator.requests),
        *({"method": method, "params": params} for method, params in emulator.calls),
    ]


def _request(method: str, path: str, body: str) -> dict[str, Any]:
    found: dict[str, Any] = {"request": method + " " + _ID.sub(r"\1_*", path)}
    if path.endswith("/create"):
        found["config"] = json.loads(base64.b64decode(body))
    elif body:
        found["body"] = {
            name: "*" if name == "stop_at_ms" else value for name, value in json.loads(body).items()
        }
    return found


async def _record() -> None:
    with tempfile.TemporaryDirectory(dir=disks_directory()) as directory:
        async with open_emulator(Path(directory), token=TOKEN) as emulator:
            os.environ.update(endpoints(emulator.url))  # noqa: TID251  # where the SDK looks
            json.dump(await drive(emulator), sys.stdout, indent=1)
            sys.stdout.write("\n")


def endpoints(url: str) -> dict[str, str]:
    """What the SDK reads from the environment."""
    return {
        "DENO_DEPLOY_TOKEN": TOKEN,
        "DENO_DEPLOY_ENDPOINT": url,
        "DENO_SANDBOX_ENDPOINT": url,
    }


if __name__ == "__main__":
    asyncio.run(_record())

"""What sandboxes at Vercel reach, and what the service is told: a broker by its URL, keys in the network's headers only."""

import asyncio
import base64
import gzip
import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandbox_runtime import (
    BrokeredNetwork,
    OpenNetwork,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.providers.vercel.provider import VercelProvider
from tests.contract.sandbox_runtime.vercel_service import BROKER_HOST, VercelService
from tests.emulators.vercel.server import Seen
from tests.emulators.vercel.world import TOKEN

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]

_GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1] + '/x', timeout=5).read().decode())"


@asynccontextmanager
async def broker(port: int) -> AsyncIterator[list[str]]:
    """A server that answers with `fine`; the heads of its requests."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nfine")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, BROKER_HOST, port):
        yield heads


@pytest.fixture
async def provider(vercel: VercelService) -> AsyncIterator[VercelProvider]:
    async with VercelProvider(vercel.settings()) as provider:
        yield provider


@pytest.mark.parametrize("with_headers", [False, True])
async def test_broker(vercel: VercelService, provider: VercelProvider, with_headers: bool) -> None:
    """Its URL is reached, with headers that are put on outside, seen by nobody inside; a closed sandbox reaches nothing."""
    key = secrets.token_hex(16)
    url = f"http://{BROKER_HOST}:{vercel.broker_port}/broker"
    network = BrokeredNetwork(endpoint=url, headers={"x-orion-key": key} if with_headers else {})
    async with broker(vercel.broker_port) as heads:
        async with open_sandbox(provider, SandboxSpec(network=network)) as sandbox:
            assert sandbox.paths.broker == url
            argv = ["python3", "-c", _GET, sandbox.paths.broker]
            assert (await sandbox.exec(argv, timeout_s=20)).text == "fine\n"
            script = 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; env; grep -rls "$0" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr; true'
            searched = await sandbox.exec(["sh", "-c", script, key[:-1] + "[" + key[-1] + "]"], timeout_s=25)  # fmt: skip
            assert key not in searched.text.replace(key[:-1] + "[", "")
        assert heads[0].startswith("GET /broker/x HTTP/1.1")
        assert (f"x-orion-key: {key}" in heads[0].lower()) is with_headers
        async with open_sandbox(provider, SandboxSpec()) as sandbox:
            assert (await sandbox.exec(argv, timeout_s=20)).exit_code == 1
        other = BrokeredNetwork(endpoint="https://elsewhere.test/broker")
        async with open_sandbox(provider, SandboxSpec(network=other)) as sandbox:
            assert (await sandbox.exec(argv, timeout_s=20)).exit_code == 1
        assert len(heads) == 1
        async with open_sandbox(provider, SandboxSpec(network=OpenNetwork())) as sandbox:
            assert (await sandbox.exec(argv, timeout_s=20)).text == "fine\n"


async def test_broker_behind_a_socket(provider: VercelProvider) -> None:
    """A socket of this machine cannot be reached from there."""
    with pytest.raises(SandboxError, match="by a URL") as caught:
        await provider.create(SandboxSpec(network=BrokeredNetwork(endpoint="/run/broker.sock")))
    assert caught.value.code is SandboxErrorCode.UNSUPPORTED


def _texts(seen: Seen) -> list[bytes]:
    """What a request says, whatever it is packed in."""
    texts = [seen.path.encode(), json.dumps(dict(seen.query)).encode(), seen.body]
    if seen.endpoint == "write":
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(seen.body))) as archive:
            texts += [file.read() for member in archive if (file := archive.extractfile(member))]
    elif seen.body:
        body = json.loads(seen.body)
        texts += [base64.b64decode(body["data"])] if "data" in body else []
        texts += [base64.b64decode(a) for a in body.get("args", ()) if _is_base64(a)]
    return texts


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


async def test_canary(vercel: VercelService, provider: VercelProvider) -> None:
    """The service is told a key in one place: the headers that its network puts on. The API's own token is nowhere but in its header."""
    key, file = secrets.token_hex(16), secrets.token_hex(16)
    network = BrokeredNetwork(endpoint="https://orion.test", headers={"authorization": key})
    spec = SandboxSpec(network=network, env={"VISIBLE": "1"}, labels={"orion.run": "r"})
    async with open_sandbox(provider, spec) as sandbox:
        await sandbox.write_file("notes", file.encode())
        await sandbox.exec(["env"], timeout_s=10, env={"OF_COMMAND": "2"})
    found_file = False
    for seen in vercel.emulator.seen:
        texts = _texts(seen)
        assert not any(TOKEN.encode() in text for text in texts)
        found_file = found_file or any(file.encode() in text for text in texts)
        if seen.endpoint == "create":
            body = json.loads(seen.body)
            rule = {"transform": [{"headers": {"authorization": key}}]}
            assert body.pop("networkPolicy") == {"allow": {"orion.test": [rule]}}
            assert "env" not in body
            assert key not in json.dumps(body)
        else:
            assert not any(key.encode() in text for text in texts), seen.endpoint
    assert found_file, "the search finds nothing"

"""The named network at Vercel and Deno, whose own policies let hosts through: judged by what arrives at them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.egress.hello import read_hello
from sandbox_runtime import (
    BrokeredNetwork,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.deno.provider import DenoProvider
from sandbox_runtime.providers.vercel.provider import VercelProvider
from tests.contract.sandbox_runtime.deno_emulator import open_organisation, settings_for
from tests.contract.sandbox_runtime.vercel_service import VercelService
from tests.egress.bypasses import client_hello
from tests.emulators.machine_network import Address
from tests.emulators.vercel.server import run_vercel

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines, pytest.mark.timeout(240)]

LISTED, WILD, APEX, OTHER = "api.example.com", "a.wild.example", "wild.example", "evil.example"
HOSTS = (LISTED, "*.wild.example")
BROKER_PORT = 8080
SEND = """
import json, socket, sys
for host, hello in json.loads(sys.argv[1]):
    try:
        with socket.create_connection((host, 443), 5) as client:
            client.sendall(bytes.fromhex(hello))
            client.recv(1)
    except OSError:
        pass
"""


@asynccontextmanager
async def open_cloud(
    name: str, internet: Sequence[Address], directory: Path
) -> AsyncIterator[SandboxProvider]:
    """A provider whose sandboxes' internet is these addresses."""
    if name == "vercel":
        with run_vercel(internet=internet) as emulator:
            service = VercelService(emulator=emulator, broker_port=BROKER_PORT)
            async with VercelProvider(service.settings()) as vercel:
                yield vercel
    else:
        with open_organisation(*internet) as organisation:
            settings = replace(settings_for(organisation), state_dir=directory)
            async with DenoProvider(settings) as deno:
                await deno.ensure_ready()
                yield deno


async def name_in(hello: bytes) -> str:
    reader = asyncio.StreamReader()
    return (await read_hello(reader, hello))[0]


@pytest.mark.parametrize("name", ["vercel", "deno"])
async def test_hosts_of_the_list_are_reached_and_no_others(name: str, tmp_path: Path) -> None:
    """Where TLS names another host than the one that is dialled, Vercel goes by that name; of Deno it is not known."""
    arrived: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.read(65536))
        writer.close()

    tried = [(LISTED, LISTED), (WILD, WILD), (APEX, APEX), (OTHER, OTHER)]
    reached = [LISTED, WILD]
    if name == "vercel":
        tried.append((LISTED, OTHER))
    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        internet = [
            Address(host=host, port=443, target=port) for host in (LISTED, WILD, APEX, OTHER)
        ]
        network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=HOSTS)
        async with (
            open_cloud(name, internet, tmp_path) as provider,
            open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
        ):
            sent = json.dumps([(host, client_hello(said).hex()) for host, said in tried])
            done = await sandbox.exec(["python3", "-c", SEND, sent], timeout_s=60)
    assert done.exit_code == 0, done.text
    assert [await name_in(hello) for hello in arrived] == reached


async def test_vercel_knows_no_ports(tmp_path: Path) -> None:
    """A host with one of its own is refused, instead of being let through at all of them."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{port}", hosts=(f"{LISTED}:8443",))
    async with open_cloud("vercel", [], tmp_path) as provider:
        with pytest.raises(SandboxError, match="knows no ports") as caught:
            await provider.create(SandboxSpec(network=network))
    assert caught.value.code is SandboxErrorCode.UNSUPPORTED

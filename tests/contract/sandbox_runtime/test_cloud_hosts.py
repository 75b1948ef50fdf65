"""The named network at Vercel and Deno, whose own policies let hosts through: judged by what arrives at them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from agent_scripts.reaching import parse_tries, reach_command
from app.cli.commands.egress import describe_try
from app.compose.egress import CANARIES, try_hosts
from app.egress.hello import read_hello
from app.egress.hosts import HostEntry
from app.runs.sandboxes import agent_paths
from app.settings.settings import load_settings
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
from tests.certificates import issue
from tests.contract.sandbox_runtime.deno_emulator import open_organisation, settings_for
from tests.contract.sandbox_runtime.vercel_service import VercelService
from tests.egress.around import AROUND, attempts_of
from tests.egress.at_clouds import (
    KINDS,
    LISTS,
    ORIGINS,
    REACHED,
    Cloud,
    Reached,
    dial_of,
    is_listed,
)
from tests.egress.bypasses import BYPASSES, client_hello
from tests.emulators.machine_network import Address, inside_addresses
from tests.emulators.vercel.server import run_vercel
from tests.ports import own_address

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


DIAL = """
import json, socket, sys
for host, port, pieces in json.load(sys.stdin):
    try:
        with socket.create_connection((host, port), 2) as client:
            client.settimeout(0.5)
            for piece in pieces:
                client.sendall(bytes.fromhex(piece))
            client.recv(1)
    except (OSError, ValueError, OverflowError):
        pass
"""


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


@pytest.mark.parametrize(("name", "became"), [("vercel", "reached"), ("deno", "failed")])
async def test_a_try_tells_whether_a_listed_name_leads_elsewhere(
    name: str, became: str, tmp_path: Path
) -> None:
    """By the certificate that is shown there, from inside: what doctor tries. The host itself is no other one."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    issued = {host: await issue(tmp_path, host) for host in (LISTED, OTHER)}
    async with AsyncExitStack() as stack:
        internet = []
        for host, one in issued.items():
            server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=one.server())
            await stack.enter_async_context(server)
            target = server.sockets[0].getsockname()[1]
            internet.append(Address(host=host, port=443, target=target))
        provider = await stack.enter_async_context(open_cloud(name, internet, tmp_path))
        network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=HOSTS)
        spec = SandboxSpec(network=network)
        sandbox = await stack.enter_async_context(open_sandbox(provider, spec))
        inside = inside_addresses(internet)
        hosts = [f"{LISTED}:443@{inside[host]}" for host in (LISTED, OTHER)]
        command = reach_command(hosts, agent_paths(sandbox.paths), sandbox.paths.broker)
        trusted = {"SSL_CERT_FILE": f"{sandbox.paths.work}/trusted.pem"}
        files = {file.path: file.data for file in command.files}
        files[trusted["SSL_CERT_FILE"]] = issued[LISTED].certificate.read_bytes()
        await sandbox.write_files(files)
        done = await sandbox.exec(command.argv, timeout_s=60, env=trusted)
    assert done.exit_code == 0, done.text
    own, other = parse_tries(done.text)
    assert own.direct == f"failed: leads to {LISTED} itself"
    assert (other.direct.partition(":")[0], other.by_proxy) == (became, "")


async def test_hosts_are_tried_by_listed_names_too(tmp_path: Path) -> None:
    """At the address of a host on no list: at this emulator of Vercel it is reached, which doctor tells."""

    async def look_up(name: str, port: int) -> Sequence[str]:
        assert (name, port) == (f"{CANARIES[0]}.", 443)
        return [inside_addresses([canary])[canary.host]]

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    context = (await issue(tmp_path, OTHER)).server()
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        canary = Address(host=CANARIES[0], port=443, target=port)
        given = {"orion_state_dir": tmp_path, "orion_public_url": f"http://127.0.0.1:{BROKER_PORT}"}
        settings = load_settings(env_file=None, given=given)
        async with open_cloud("vercel", [canary], tmp_path) as provider:
            listed = [HostEntry(name="wild.example", is_wildcard=True), HostEntry(name=LISTED)]
            canaries, tried = await try_hosts(settings, provider, listed, look_up=look_up)
    assert [describe_try(one).partition(":")[0] for one in tried] == [LISTED]
    by_name, by_listed_name = canaries
    assert not by_name.is_reached
    assert describe_try(by_listed_name) == f"127.1.0.1, by {LISTED}:443 in TLS: reached"


@pytest.mark.long
@pytest.mark.parametrize("name", get_args(Cloud))
async def test_no_attempt_of_the_table_reaches_another_host(name: Cloud, tmp_path: Path) -> None:
    """Tried from inside without a proxy, by kinds; those that reach a host of the list are as many as the document says.

    At Vercel one reaches another host where its TLS names a listed one: the document says how many do.
    """
    arrived: list[tuple[str, int, bytes]] = []
    reached: dict[str, Reached] = {}

    async def hear(
        origin: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if sent := await reader.read(65536):
            arrived.append((*origin, sent))
            writer.write(b".")
        writer.close()

    async with AsyncExitStack() as stack:
        internet = []
        for host, port in ORIGINS:
            server = await asyncio.start_server(partial(hear, (host, port)), "127.0.0.1", 0)
            await stack.enter_async_context(server)
            target = server.sockets[0].getsockname()[1]
            internet.append(Address(host=host, port=port, target=target))
        provider = await stack.enter_async_context(open_cloud(name, internet, tmp_path))
        network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=LISTS[name])
        spec = SandboxSpec(network=network)
        sandbox = await stack.enter_async_context(open_sandbox(provider, spec))
        for kind in KINDS:
            dials = [dial_of(one) for one in BYPASSES if one.kind == kind]
            said = [(to.host, to.port, [one.hex() for one in to.pieces]) for to in dials]
            argv = ["python3", "-c", DIAL]
            done = await sandbox.exec(argv, timeout_s=120, stdin=json.dumps(said).encode())
            assert done.exit_code == 0, done.text
            others = [sent for host, port, sent in arrived if not is_listed(name, host, port)]
            reached[kind] = Reached(listed=len(arrived) - len(others), others=len(others))
            named = [await name_in(hello) for hello in others]
            assert all(is_listed(name, host, 443) for host in named), named
            arrived.clear()
    assert reached == REACHED[name]


@pytest.mark.parametrize("name", get_args(Cloud))
async def test_no_way_leads_around_the_list(name: Cloud, tmp_path: Path) -> None:
    """Nothing that a program sends to this machine arrives there, and no name is looked up."""
    arrived: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.read(65536))
        writer.close()

    abstract, host = f"orion-{tmp_path.name}", own_address()
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=LISTS[name])
    async with (
        await asyncio.start_server(hear, host, 0) as server,
        await asyncio.start_unix_server(hear, f"\0{abstract}"),
        open_cloud(name, [], tmp_path) as provider,
        open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
    ):
        port = server.sockets[0].getsockname()[1]
        argv = ["python3", "-c", AROUND, host, str(port), "/run/other", abstract]
        done = await sandbox.exec(argv, timeout_s=60)
    lines = done.text.splitlines()
    assert (done.exit_code, len(lines)) == (0, attempts_of(AROUND)), done.text
    assert [line for line in lines if not line.endswith(" fails")] == []
    assert arrived == []


async def test_vercel_knows_no_ports(tmp_path: Path) -> None:
    """A host with one of its own is refused, instead of being let through at all of them."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{port}", hosts=(f"{LISTED}:8443",))
    async with open_cloud("vercel", [], tmp_path) as provider:
        with pytest.raises(SandboxError, match="knows no ports") as caught:
            await provider.create(SandboxSpec(network=network))
    assert caught.value.code is SandboxErrorCode.UNSUPPORTED

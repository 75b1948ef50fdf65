"""The named network at Vercel and Deno, whose own policies let hosts through: judged by what arrives at them."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from agent_scripts.reaching import parse_tries, reach_command
from app.cli.commands.egress import describe_try
from app.compose.egress import CANARIES, try_hosts
from app.egress.hello import HelloError, read_hello
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
from sandbox_runtime.task_group import TaskGroup, open_task_group
from tests.certificates import Authority
from tests.contract.sandbox_runtime.deno_emulator import open_organisation, settings_for
from tests.contract.sandbox_runtime.vercel_service import VercelService
from tests.egress.around import AROUND, attempts_of
from tests.egress.at_clouds import (
    KINDS,
    LISTS,
    ORIGINS,
    REACHED,
    Cloud,
    dial_of,
    is_listed,
)
from tests.egress.bypasses import BYPASSES
from tests.emulators.machine_network import TLS, Address, in_clear, inside_addresses
from tests.emulators.vercel.server import run_vercel
from tests.ports import own_address

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines, pytest.mark.timeout(240)]

LISTED, WILD, APEX, OTHER = "api.example.com", "a.wild.example", "wild.example", "evil.example"
HOSTS = (LISTED, "*.wild.example")
BROKER_PORT = 8080


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


DIAL = """
import json, socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for host, port, name, pieces in json.load(sys.stdin):
    try:
        with socket.create_connection((host, port), 2) as client:
            client.settimeout(0.5)
            if name is not None:
                client = context.wrap_socket(client, server_hostname=name)
                pieces = [f"GET /{name} HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode().hex()]
            for piece in pieces:
                client.sendall(bytes.fromhex(piece))
            client.recv(1)
    except (OSError, ValueError, OverflowError):
        pass
"""
"""Sends pieces, or with a name of a server a request in a whole TLS connection of a client that asks for no certificate."""


async def name_in(pieces: Sequence[bytes]) -> str | None:
    """The name in the beginning of TLS; None: it is none, or has no name."""
    reader = asyncio.StreamReader()
    reader.feed_eof()
    try:
        return (await read_hello(reader, b"".join(pieces)))[0]
    except HelloError:
        return None


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A server that hears one request of each connection, within TLS where that is spoken."""

    certificate: ssl.SSLContext
    is_ended: bool
    """Whether the cloud's network speaks the TLS: what is in it is judged then."""
    hear: Callable[[], None]
    group: TaskGroup
    """Of its connections."""

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.group.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            first = await reader.read(1)
            if first and not (first == TLS and self.is_ended):
                self.hear()
            if first == TLS:
                async with in_clear(first, (reader, writer), self.certificate) as clear:
                    if await clear[0].read(65536) and self.is_ended:
                        self.hear()
                    clear[1].write(_ANSWER)
            else:
                writer.write(_ANSWER)
        writer.close()


_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def open_origins(
    cloud: str, origins: Sequence[tuple[str, int]], listed: Callable[[str, int], bool]
) -> AsyncIterator[tuple[Sequence[Address], list[tuple[str, int]]]]:
    """An internet, and whoever heard something there; who is not listed shows a certificate of its own for one who is."""
    web, rogue = Authority(), Authority()
    internet: list[Address] = []
    heard: list[tuple[str, int]] = []
    async with open_task_group() as group, AsyncExitStack() as stack:
        for host, port in origins:
            origin = Origin(
                certificate=web.server(host) if listed(host, port) else rogue.server(LISTED),
                is_ended=cloud == "vercel",
                hear=partial(heard.append, (host, port)),
                group=group,
            )
            server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
            await stack.enter_async_context(server)
            target = server.sockets[0].getsockname()[1]
            internet.append(Address(host=host, port=port, target=target, trusted=web.pem))
        yield internet, heard


@pytest.mark.parametrize("name", ["vercel", "deno"])
async def test_hosts_of_the_list_are_reached_and_no_others(name: str, tmp_path: Path) -> None:
    """Vercel goes by the name in TLS, whatever is dialled, and ends it: who is there must have that name's certificate."""
    tried = [(LISTED, LISTED), (WILD, WILD), (APEX, APEX), (OTHER, OTHER), (OTHER, LISTED)]
    origins = [(host, 443) for host in (LISTED, WILD, APEX, OTHER)]
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=HOSTS)
    async with (
        open_origins(name, origins, lambda host, _: host in (LISTED, WILD)) as (internet, heard),
        open_cloud(name, internet, tmp_path) as provider,
        open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
    ):
        sent = json.dumps([(host, 443, said, []) for host, said in tried]).encode()
        done = await sandbox.exec(["python3", "-c", DIAL], timeout_s=60, stdin=sent)
    assert done.exit_code == 0, done.text
    assert heard == [(LISTED, 443), (WILD, 443)]


PROGRAMS = (
    f"curl --silent --show-error https://{LISTED}/",
    f"python3 -c 'import urllib.request as r; r.urlopen(\"https://{LISTED}/\")'",
    f'node -e \'require("https").get("https://{LISTED}/", () => process.exit())\'',
    f"python3 -c 'from pip._vendor import requests as r; r.get(\"https://{LISTED}/\")'",
)


async def test_programs_trust_what_vercel_ends(tmp_path: Path) -> None:
    """By the authority that its network puts into the environment, which each command of an agent has."""
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=HOSTS)
    async with (
        open_origins("vercel", [(LISTED, 443)], lambda *_: True) as (internet, heard),
        open_cloud("vercel", internet, tmp_path) as provider,
        open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
    ):
        for program in PROGRAMS:
            done = await sandbox.exec(["sh", "-c", program], timeout_s=60)
            assert done.exit_code == 0, done.text
    assert len(heard) == len(PROGRAMS)


@pytest.mark.parametrize(("name", "became"), [("vercel", "failed: 502"), ("deno", "failed: ")])
async def test_a_try_tells_that_a_listed_name_leads_nowhere_else(
    name: str, became: str, tmp_path: Path
) -> None:
    """What doctor tries, from inside: Vercel's network finds nobody of that name there, Deno's lets nobody there."""
    origins = [(LISTED, 443), (OTHER, 443)]
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=HOSTS)
    async with (
        open_origins(name, origins, lambda host, _: host == LISTED) as (internet, heard),
        open_cloud(name, internet, tmp_path) as provider,
        open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
    ):
        inside = inside_addresses(internet)
        hosts = [f"{LISTED}:443@{inside[host]}" for host, _ in origins]
        command = reach_command(hosts, agent_paths(sandbox.paths), sandbox.paths.broker)
        files = {file.path: file.data for file in command.files}
        trusted = {}
        if name == "deno":  # where the host's own certificate is seen
            trusted["SSL_CERT_FILE"] = f"{sandbox.paths.work}/trusted.pem"
            files[trusted["SSL_CERT_FILE"]] = internet[0].trusted.encode()
        await sandbox.write_files(files)
        done = await sandbox.exec(command.argv, timeout_s=60, env=trusted)
    assert done.exit_code == 0, done.text
    own, other = parse_tries(done.text)
    assert own.direct == f"failed: leads to {LISTED} itself"
    assert other.direct.startswith(became)
    assert heard == [(LISTED, 443)] * 2


async def test_hosts_are_tried_by_listed_names_too(tmp_path: Path) -> None:
    """At the address of a host on no list, where this emulator of Vercel finds nobody of the listed name."""

    async def look_up(name: str, port: int) -> Sequence[str]:
        assert (name, port) == (f"{CANARIES[0]}.", 443)
        return [inside_addresses(internet)[CANARIES[0]]]

    given = {"orion_state_dir": tmp_path, "orion_public_url": f"http://127.0.0.1:{BROKER_PORT}"}
    settings = load_settings(env_file=None, given=given)
    listed = [HostEntry(name="wild.example", is_wildcard=True), HostEntry(name=LISTED)]
    async with (
        open_origins("vercel", [(CANARIES[0], 443)], lambda *_: False) as (internet, heard),
        open_cloud("vercel", internet, tmp_path) as provider,
    ):
        canaries, tried = await try_hosts(settings, provider, listed, look_up=look_up)
    assert [describe_try(one).partition(":")[0] for one in tried] == [LISTED]
    assert [one.is_reached for one in canaries] == [False, False]
    assert describe_try(canaries[1]) == f"127.1.0.1, by {LISTED}:443 in TLS: failed: 502"
    assert heard == []


@pytest.mark.long
@pytest.mark.parametrize("name", get_args(Cloud))
async def test_no_attempt_of_the_table_reaches_another_host(name: Cloud, tmp_path: Path) -> None:
    """Tried from inside without a proxy, by kinds; those that reach a host of the list are as many as the document says.

    What begins like a client of TLS goes on as one, with a request: Vercel ends the TLS itself, and that is what it passes on.
    """
    reached: dict[str, int] = {}
    network = BrokeredNetwork(endpoint=f"http://127.0.0.1:{BROKER_PORT}", hosts=LISTS[name])
    async with (
        open_origins(name, ORIGINS, partial(is_listed, name)) as (internet, heard),
        open_cloud(name, internet, tmp_path) as provider,
        open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
    ):
        for kind in KINDS:
            dials = [dial_of(one) for one in BYPASSES if one.kind == kind]
            names = [await name_in(to.pieces) for to in dials]
            said = [
                (to.host, to.port, named, [one.hex() for one in to.pieces])
                for to, named in zip(dials, names, strict=True)
            ]
            argv = ["python3", "-c", DIAL]
            done = await sandbox.exec(argv, timeout_s=120, stdin=json.dumps(said).encode())
            assert done.exit_code == 0, done.text
            assert all(is_listed(name, *origin) for origin in heard), heard
            reached[kind] = len(heard)
            heard.clear()
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

"""What the way by the proxy costs: a download over TLS from inside a local sandbox, against the same without any of it.

Where client and server take all of a small machine, whatever passes their bytes on takes from them: two bare forwarders in a row,
which do nothing else within the kernel, tell how much. A host that sends as quickly as a network would leaves room.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from inspect import getsource
from pathlib import Path
from statistics import median

from agent_scripts.inside import relay
from app.aio import open_task_group
from app.egress.hosts import HostEntry
from app.egress.proxy import EgressGrant, EgressProxy, dial
from app.egress.tally import Tally
from app.egress.upstream import Upstream
from sandbox_runtime import BrokeredNetwork, Sandbox, SandboxSpec, open_sandbox
from sandbox_runtime.providers.local.provider import LocalProvider
from tests.bench.processes import BenchError
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.egress.bypasses import PUBLIC_ADDRESS

NAME, BYTES = "files.example.com", 62_000_000
PACED_BYTES_S = 312_500_000
"""2.5 Gbit/s."""
PACED = "paced"
TRIES = 5
LEAST_SHARE, LATER_MS = 0.8, 5.0
CURL = "curl --silent --insecure --output /dev/null --write-out '%{speed_download} %{time_starttransfer}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    mb_s: float
    first_byte_s: float


async def measure_egress(bench: Bench) -> Sequence[Row]:
    """By turns, medians; curl is the client of both, and the server is a process's of its own.

    Raises:
        BenchError: curl has failed.
    """
    directory = bench.directory / "egress"
    directory.mkdir(mode=0o711)
    async with (
        open_origin(directory) as port,
        _serving(_FORWARDER, f"127.0.0.1:{port}", f"{directory}/forwarded") as path,
        _serving(_FORWARDER, path, "127.0.0.1:0") as forwarded,
        open_place(directory, port) as sandbox,
    ):
        inside = ["python3", "-I", f"{sandbox.paths.work}/relay.py", sandbox.paths.broker]
        found: defaultdict[tuple[str, str], list[Download]] = defaultdict(list)
        for _ in range(TRIES):
            for page in ("", PACED):
                url = f"https://{NAME}/{page}"
                for way, to in (("direct", port), ("forwarded", forwarded)):
                    by_hand = f"{CURL} --connect-to {NAME}:443:127.0.0.1:{to} {url}"
                    found[way, page].append(_read(await _run(by_hand)))
                done = await sandbox.exec([*inside, "sh", "-c", f"{CURL} {url}"], timeout_s=60)
                found["by proxy", page].append(_read(done.text))
    mb_s = {key: median(one.mb_s for one in tries) for key, tries in found.items()}
    first_ms = {
        key: 1000 * median(one.first_byte_s for one in tries) for key, tries in found.items()
    }
    network = f"of a host that sends {8 * PACED_BYTES_S / 1e9} Gbit/s"
    return (
        _speed("local sandbox (baseline: direct)", mb_s, "direct", ""),
        _speed("the same (baseline: by two bare forwarders)", mb_s, "forwarded", ""),
        _speed(f"{network} (baseline: direct)", mb_s, "direct", PACED),
        Row(
            figure="its first byte after (baseline: direct)",
            unit="ms",
            orion=first_ms["by proxy", ""],
            baseline=first_ms["direct", ""],
            target=first_ms["direct", ""] + LATER_MS,
        ),
    )


def _speed(what: str, mb_s: Mapping[tuple[str, str], float], baseline: str, page: str) -> Row:
    return Row(
        figure=f"download of 62 MB by the proxy, {what}",
        unit="MB/s",
        orion=mb_s["by proxy", page],
        baseline=mb_s[baseline, page],
        sign=">=",
        target=LEAST_SHARE * mb_s[baseline, page],
    )


@asynccontextmanager
async def open_origin(directory: Path) -> AsyncIterator[int]:
    """A server of `BYTES` over TLS; yields its port."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    await _run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN={NAME} 2>&1"
    )
    given = (str(certificate), str(key), str(BYTES), f"/{PACED}", str(PACED_BYTES_S))
    async with _serving(_ORIGIN, *given) as port:
        yield int(port)


@asynccontextmanager
async def _serving(script: str, *given: str) -> AsyncIterator[str]:
    """A process of Python's; yields the line that it prints when it serves."""
    process = await asyncio.create_subprocess_exec(
        "python3", "-c", script, *given, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


_ORIGIN = """
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
size = int(sys.argv[3])
so_max_pacing_rate = 47
piece = b"x" * 65536
def serve(connection):
    with context.wrap_socket(connection, server_side=True) as client:
        if client.recv(65536).split()[1].decode() == sys.argv[4]:
            client.setsockopt(socket.SOL_SOCKET, so_max_pacing_rate, int(sys.argv[5]))
        client.sendall(f"HTTP/1.1 200 OK\\r\\nContent-Length: {size}\\r\\n\\r\\n".encode())
        left = size
        while left > 0:
            left -= client.send(piece[:left])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

_FORWARDER = """
import contextlib, os, socket, sys, threading
dialled, served = sys.argv[1:]
def address(text):
    host, _, port = text.partition(":")
    return (socket.AF_INET, (host, int(port))) if port else (socket.AF_UNIX, text)
def pass_on(source, target):
    out, into = os.pipe()
    while size := os.splice(source.fileno(), into, 1 << 20):
        while size:
            size -= os.splice(out, target.fileno(), size)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
def serve(client):
    family, where = address(dialled)
    with client, socket.socket(family) as host:
        host.connect(where)
        upward = threading.Thread(target=pass_on, args=(client, host))
        upward.start()
        pass_on(host, client)
        upward.join()
family, where = address(served)
listener = socket.socket(family)
listener.bind(where)
listener.listen()
print(listener.getsockname()[1] if family == socket.AF_INET else served, flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@asynccontextmanager
async def open_place(directory: Path, port: int) -> AsyncIterator[Sandbox]:
    """A local sandbox whose proxy leads to the origin."""

    async def look_up(name: str, _port: int) -> Sequence[str]:
        del name
        return [PUBLIC_ADDRESS]

    async def dial_origin(_address: str, _port: int) -> Upstream:
        return await dial("127.0.0.1", port)

    door = directory / "door"
    door.mkdir(mode=0o711)
    grant = EgressGrant(run_id="bench", entries=[HostEntry(name=NAME)], tally=Tally())
    network = BrokeredNetwork(endpoint=str(door / "sock"))
    async with (
        LocalProvider(directory / "state") as provider,
        open_task_group() as group,
        EgressProxy(group, look_up=look_up, dial=dial_origin).listen(
            door / "egress", lambda: grant
        ),
        open_sandbox(provider, SandboxSpec(network=network)) as sandbox,
    ):
        await sandbox.write_files({f"{sandbox.paths.work}/relay.py": getsource(relay).encode()})
        yield sandbox


async def _run(command: str) -> str:
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise BenchError(
            f"{command.split(maxsplit=1)[0]} ended with {process.returncode}: {out.decode()}"
        )
    return out.decode()


def _read(text: str) -> Download:
    try:
        speed, first = text.split()
        return Download(mb_s=float(speed) / 1e6, first_byte_s=float(first))
    except ValueError as exc:
        raise BenchError(f"curl says {text!r}") from exc

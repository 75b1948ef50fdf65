"""What the way by the proxy costs: a download over TLS from inside a local sandbox, against the same without any of it.

Where client and server take all of a small machine, whatever passes their bytes on takes from them: two bare forwarders in a row,
which do nothing else within the kernel, tell how much. A host that sends as quickly as a network would leaves room, and so
does pip, for whom the way is.
"""

import asyncio
import shlex
import zipfile
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
from tests.certificates import issue
from tests.egress.bypasses import PUBLIC_ADDRESS

NAME, BYTES = "files.example.com", 62_000_000
PACED_BYTES_S = 312_500_000
"""2.5 Gbit/s."""
PACED = "paced"
WHEEL = "sent-1.0-py3-none-any.whl"
TRIES = 5
LEAST_SHARE, LATER_MS = 0.8, 5.0
CURL = "curl --silent --insecure --output /dev/null --write-out '%{speed_download} %{time_starttransfer}'"
PIP = "v/bin/pip --isolated --quiet --disable-pip-version-check download --no-deps --no-cache-dir --dest downloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    mb_s: float
    first_byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How clients come to the origin."""

    host: str
    """That they ask for, possibly with a port."""
    directory: Path
    """Of programs that run outside."""
    sandbox: Sandbox | None = None
    """Where programs run by the relay; None = outside."""

    async def download(self, page: str) -> Download:
        """Raises: BenchError: curl has failed."""
        return _read(await self.run(f"{CURL} https://{self.host}/{page}"))

    async def install_s(self) -> float:
        """Raises: BenchError: pip has failed."""
        pip = f"{PIP} --trusted-host {self.host} https://{self.host}/{WHEEL}"
        printed = await self.run(f"bash -c 'TIMEFORMAT=%R; time {pip}' 2>&1")
        try:
            return float(printed)
        except ValueError as exc:
            raise BenchError(f"pip says {printed!r}") from exc

    async def run(self, command: str) -> str:
        """Returns what a command of a shell has printed. Raises: BenchError: it has failed."""
        if self.sandbox is None:
            return await _run(f"cd {self.directory} && {command}")
        paths = self.sandbox.paths
        argv = ["python3", "-I", f"{paths.work}/relay.py", paths.broker, "sh", "-c", command]
        done = await self.sandbox.exec(argv, timeout_s=60)
        if done.exit_code:
            raise BenchError(f"{shlex.split(command)[0]} ended with {done.exit_code}: {done.text}")
        return done.text


async def measure_egress(bench: Bench) -> Sequence[Row]:
    """By turns, medians; curl and pip are the clients of each way, and the server is a process's of its own.

    Raises:
        BenchError: one of them has failed.
    """
    directory = bench.directory / "egress"
    directory.mkdir(mode=0o711)
    async with (
        open_origin(directory) as port,
        _serving(_FORWARDER, f"127.0.0.1:{port}", f"{directory}/forwarded") as path,
        _serving(_FORWARDER, path, "127.0.0.1:0") as forwarded,
        open_place(directory, port) as sandbox,
    ):
        ways = {
            "direct": Way(host=f"127.0.0.1:{port}", directory=directory),
            "forwarded": Way(host=f"127.0.0.1:{forwarded}", directory=directory),
            "by proxy": Way(host=NAME, directory=directory, sandbox=sandbox),
        }
        for way in ways.values():
            await way.run("test -d v || python3 -m venv v")
        found: defaultdict[tuple[str, str], list[Download]] = defaultdict(list)
        installed_s: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(TRIES):
            for name, way in ways.items():
                for page in ("", PACED):
                    found[name, page].append(await way.download(page))
                installed_s[name].append(await way.install_s())
    mb_s = {key: median(one.mb_s for one in tries) for key, tries in found.items()}
    first_ms = {
        key: 1000 * median(one.first_byte_s for one in tries) for key, tries in found.items()
    }
    pip_s = {name: median(tries) for name, tries in installed_s.items()}
    network = f"of a host that sends {8 * PACED_BYTES_S / 1e9} Gbit/s"
    return (
        _speed("local sandbox (baseline: direct)", mb_s, "direct", ""),
        _speed("the same (baseline: by two bare forwarders)", mb_s, "forwarded", ""),
        _speed(f"{network} (baseline: direct)", mb_s, "direct", PACED),
        Row(
            figure="pip's download of the same by the proxy (baseline: direct)",
            unit="s",
            orion=pip_s["by proxy"],
            baseline=pip_s["direct"],
            target=pip_s["direct"] / LEAST_SHARE,
        ),
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
    """A server of a wheel of some `BYTES` over TLS; yields its port."""
    issued = await issue(directory, NAME)
    with zipfile.ZipFile(directory / WHEEL, "w") as wheel:
        for name, text in _WHEEL_FILES.items():
            wheel.writestr(name, text)
        wheel.writestr("sent.bin", bytes(BYTES))
    given = [str(issued.certificate), str(issued.key), str(directory / WHEEL)]
    given += [f"/{PACED}", str(PACED_BYTES_S)]
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


_WHEEL_FILES = {
    "sent-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sent\nVersion: 1.0\n",
    "sent-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "sent-1.0.dist-info/RECORD": "",
}

_ORIGIN = """
import pathlib, socket, ssl, sys, threading
certificate, key, wheel, paced, rate = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
content = memoryview(pathlib.Path(wheel).read_bytes())
so_max_pacing_rate = 47
def serve(connection):
    with context.wrap_socket(connection, server_side=True) as client:
        if client.recv(65536).split()[1].decode() == paced:
            client.setsockopt(socket.SOL_SOCKET, so_max_pacing_rate, int(rate))
        client.sendall(f"HTTP/1.1 200 OK\\r\\nContent-Length: {len(content)}\\r\\n\\r\\n".encode())
        for start in range(0, len(content), 65536):
            client.sendall(content[start : start + 65536])
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

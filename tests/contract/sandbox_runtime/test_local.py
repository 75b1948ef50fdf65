# ruff: noqa: ASYNC240, PTH208, S607  # short looks at the host, in tests
"""What only the local provider promises: nothing outlives a crash, little is copied, the host's settings pass as agreed."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandbox_runtime import (
    BrokeredNetwork,
    OpenNetwork,
    Sandbox,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    SandboxStats,
    open_sandbox,
)
from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.inside.kill import kill_processes
from sandbox_runtime.providers.local.processes import mark_of
from sandbox_runtime.providers.local.provider import IsolationKind, LocalProvider
from sandbox_runtime.providers.local.store import LocalStore, SandboxRecord

pytestmark = pytest.mark.bubblewrap

_REPOSITORY = Path(__file__).parents[3]
_KINDS = ("bubblewrap", "none")

_VICTIM = """
import asyncio, sys
from pathlib import Path
from sandbox_runtime import SandboxSpec
from sandbox_runtime.providers.local.provider import LocalProvider

async def main():
    async with LocalProvider(Path(sys.argv[1]), isolation=sys.argv[2]) as provider:
        sandbox = await provider.create(SandboxSpec(environment_writable=True))
        process = await sandbox.spawn(["sh", "-c", "trap '' TERM; sleep " + sys.argv[3] + " & setsid sleep " + sys.argv[3] + " & echo up; wait"])
        async for _ in process.events():
            print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def provider(state_dir: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(state_dir) as provider:
        yield provider


def _sleepers(seconds: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _disk_bytes(path: Path) -> int:
    return int(
        subprocess.run(["du", "-sB1", path], check=True, capture_output=True).stdout.split()[0]
    )


async def test_probe_says_what_holds(provider: LocalProvider) -> None:
    """The probe really runs a sandbox and names what holds."""
    found = await provider.probe()
    assert "namespaces hold" in found
    assert "no capabilities" in found


async def test_probe_names_a_missing_program(state_dir: Path) -> None:
    """Without bubblewrap the probe says what to install."""
    async with LocalProvider(state_dir, host_env={"PATH": "/nowhere"}) as provider:
        with pytest.raises(SandboxError, match="install") as caught:
            await provider.probe()
    assert caught.value.code is SandboxErrorCode.ISOLATION_UNAVAILABLE


async def test_probe_of_a_bubblewrap_that_fails(state_dir: Path, tmp_path: Path) -> None:
    """A bubblewrap that cannot start is told apart from a command that exits with 1, and quoted."""
    programs = tmp_path / "bin"
    programs.mkdir()
    broken = programs / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    async with LocalProvider(state_dir, host_env={"PATH": path}) as provider:
        with pytest.raises(SandboxError, match="No permissions to create new namespace") as caught:
            await provider.probe()
    assert caught.value.code is SandboxErrorCode.ISOLATION_UNAVAILABLE


async def test_user_namespace_differs(provider: LocalProvider) -> None:
    """Users inside are not those of the host, whatever their numbers."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        inside = await sandbox.exec(["readlink", "/proc/self/ns/user"], timeout_s=5)
    assert inside.text.strip() not in ("", os.readlink("/proc/self/ns/user"))  # noqa: PTH115


async def test_vanished_sandbox_is_unavailable(provider: LocalProvider, state_dir: Path) -> None:
    """A sandbox whose files are gone is an error, not a failed command."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        (state_dir / "sandboxes" / sandbox.id / "run").rmdir()
        with pytest.raises(SandboxError, match="bubblewrap could not start") as caught:
            await sandbox.exec(["true"], timeout_s=5)
    assert caught.value.code is SandboxErrorCode.UNAVAILABLE


async def test_restoring_an_environment_copies_nothing(
    provider: LocalProvider, state_dir: Path
) -> None:
    """A sandbox on an environment of 24 MB writes less than 1 MB, and so does its own snapshot."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/large", os.urandom(24_000_000))
        ref = await sandbox.snapshot()
    before = _disk_bytes(state_dir)
    assert before > 20_000_000
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        assert _disk_bytes(state_dir / "sandboxes" / sandbox.id) < 1_000_000
        assert _disk_bytes(state_dir) - before < 1_000_000
        size = await sandbox.exec(
            ["stat", "-c", "%s", f"{sandbox.paths.environment}/large"], timeout_s=5
        )
        assert size.text == "24000000\n"
        await sandbox.snapshot()
        assert _disk_bytes(state_dir) - before < 1_000_000


@pytest.mark.parametrize("kind", _KINDS)
def test_killed_service_leaves_no_process(state_dir: Path, kind: str) -> None:
    """When the service dies by SIGKILL, bubblewrap takes everything along; what is left is swept at the next start."""
    seconds = f"{60 + os.getpid() % 1000}.{'17' if kind == 'none' else '18'}"
    argv = [sys.executable, "-c", _VICTIM, str(state_dir), kind, seconds]
    env = {"PYTHONPATH": str(_REPOSITORY), "PATH": os.defpath}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd=_REPOSITORY) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        assert _until(lambda: len(_sleepers(seconds)) == 2, timeout_s=5)
        victim.kill()
    if kind == "bubblewrap":
        assert _until(lambda: not _sleepers(seconds), timeout_s=5)
    for pid in _sleepers(seconds):
        os.kill(pid, signal.SIGKILL)
    assert len(list((state_dir / "sandboxes").iterdir())) == 1
    assert len(list((state_dir / "environments").iterdir())) == 1

    async def start() -> None:
        async with LocalProvider(state_dir, isolation="none"):
            for name in ("sandboxes", "environments", "trash"):
                assert list((state_dir / name).iterdir()) == []

    asyncio.run(start())


def test_start_kills_what_outlived_a_dead_owner(state_dir: Path) -> None:
    """As bubblewrap does when its parent dies before it asked to die with it; a living owner's processes go on."""
    store = LocalStore(state_dir, base="")
    store.prepare({})
    here = Owner.of()
    owners = {"dead": replace(here, started="1@other-boot"), "living": here}
    left: dict[str, subprocess.Popen[bytes]] = {}
    for name, owner in owners.items():
        store.claim(
            SandboxRecord(
                id=name,
                owner=owner,
                created_at=datetime.now(UTC),
                labels={},
                environment=None,
                host_uid=None,
            ),
            uids=None,
        )
        variable, _, value = mark_of(name).partition("=")
        left[name] = subprocess.Popen(["/bin/sleep", "60"], env={variable: value})

    async def start() -> None:
        async with LocalProvider(state_dir, isolation="none"):
            pass

    try:
        asyncio.run(start())
        assert left["dead"].wait(timeout=5) == -signal.SIGKILL
        assert left["living"].poll() is None
    finally:
        for process in left.values():
            process.kill()
            process.wait(timeout=5)


@pytest.mark.parametrize("kind", _KINDS)
async def test_commands_of_a_sandbox_are_marked(state_dir: Path, kind: IsolationKind) -> None:
    """By the mark they are found when nobody else knows them any more."""
    async with (
        LocalProvider(state_dir, isolation=kind) as provider,
        open_sandbox(provider, SandboxSpec()) as sandbox,
    ):
        process = await sandbox.spawn(["sh", "-c", "echo up; sleep 60"])
        async with asyncio.timeout(10):
            events = process.events()
            await anext(events)
            assert kill_processes(mark_of(sandbox.id).encode()) > 0
            assert [event async for event in events] != []


async def test_living_owner_is_not_swept(provider: LocalProvider, state_dir: Path) -> None:
    """A second process on the same state directory leaves the first one's sandboxes alone."""
    async with open_sandbox(provider, SandboxSpec(labels={"of": "first"})) as sandbox:
        async with LocalProvider(state_dir) as second:
            (info,) = await second.list({"of": "first"})
            assert info.running
        assert (await sandbox.exec(["echo", "alive"], timeout_s=5)).text == "alive\n"


async def test_leaving_destroys_what_is_left(state_dir: Path) -> None:
    """Leaving the provider destroys sandboxes and their processes that nobody destroyed."""
    seconds = f"{60 + os.getpid() % 1000}.19"
    async with LocalProvider(state_dir) as provider:
        sandbox = await provider.create(SandboxSpec())
        await sandbox.spawn(["sleep", seconds])
        async with asyncio.timeout(5):
            while not _sleepers(seconds):
                await asyncio.sleep(0.01)
    assert not _sleepers(seconds)
    assert list((state_dir / "sandboxes").iterdir()) == []


async def test_no_descriptor_or_zombie_stays(provider: LocalProvider) -> None:
    """Execs, kills and timeouts leave neither open files nor zombies."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        await _use(sandbox)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await _use(sandbox)
        # Earlier tests' may be closed meanwhile.
        assert len(os.listdir("/proc/self/fd")) <= before
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    states = {
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children
    }
    assert "Z" not in states


async def _use(sandbox: Sandbox) -> None:
    await sandbox.exec(["cat"], timeout_s=5, stdin=b"x" * 100_000)
    process = await sandbox.spawn(["yes"])
    async for _ in process.events():
        break
    await process.kill()
    with pytest.raises(SandboxError):
        await sandbox.exec(["sleep", "9"], timeout_s=0.05)


@pytest.fixture
def wheels() -> Iterator[Path]:
    """Outside of the temporary directory, which is each sandbox's own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:  # see above
        path = Path(directory)
        path.chmod(0o755)
        yield path


async def test_open_network_shares_installer_settings(
    state_dir: Path, tmp_path: Path, wheels: Path
) -> None:
    """An open sandbox gets proxies, indexes and CA files of the host, read-only, and nothing else of its environment."""
    bundle = tmp_path / "ca.pem"
    (wheels / "demo.whl").write_text("wheel")
    bundle.write_text("certificate")
    host_env = {
        "PATH": "/usr/bin:/bin",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "PIP_FIND_LINKS": f"{wheels}",
        "SLACK_BOT_TOKEN": "xoxb-secret",
        "UV_PUBLISH_TOKEN": "secret",
    }
    script = 'cat "$PIP_FIND_LINKS/demo.whl" "$SSL_CERT_FILE"; touch "$PIP_FIND_LINKS/x"; env'
    async with LocalProvider(state_dir, host_env=host_env, ca_bundle=bundle) as provider:
        async with open_sandbox(provider, SandboxSpec(network=OpenNetwork())) as sandbox:
            found = await sandbox.exec(["sh", "-c", script], timeout_s=5)
        async with open_sandbox(provider, SandboxSpec()) as sandbox:
            closed = await sandbox.exec(["sh", "-c", script], timeout_s=5)
    assert found.text.startswith("wheelcertificate")
    assert "HTTPS_PROXY=http://127.0.0.1:9" in found.text
    assert "secret" not in found.text
    assert not (wheels / "x").exists()
    assert closed.text.startswith("certificate")
    assert "HTTPS_PROXY" not in closed.text
    assert "PIP_FIND_LINKS" not in closed.text


async def test_open_network_reaches_the_host(provider: LocalProvider) -> None:
    """An open sandbox is on the host's network."""
    greeted = asyncio.Event()

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.set()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        async with open_sandbox(provider, SandboxSpec(network=OpenNetwork())) as sandbox:
            assert (await sandbox.exec(["python3", "-c", code], timeout_s=10)).exit_code == 0
    assert greeted.is_set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes run as another host user")
async def test_broker_directory_must_be_passable(provider: LocalProvider, tmp_path: Path) -> None:
    """A broker's directory that the sandbox user could never enter is refused at create."""
    closed = tmp_path / "broker"
    closed.mkdir(mode=0o700)
    with pytest.raises(SandboxError, match="0711") as caught:
        await provider.create(SandboxSpec(network=BrokeredNetwork(endpoint=f"{closed}/socket")))
    assert caught.value.code is SandboxErrorCode.CREATE_FAILED


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_ordinary_user() -> None:
    """An ordinary user gets the same isolation, with a system Python of its own."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from sandbox_runtime.providers.local.provider import LocalProvider\n"
        "from sandbox_runtime.testing.conformance import FACTS, ISOLATION_FACTS\n"
        "async def main():\n"
        "    async with LocalProvider(Path(sys.argv[1])) as provider:\n"
        "        print(await provider.probe())\n"
        "        for fact in (*FACTS, *ISOLATION_FACTS):\n"
        "            if fact.needs is None or fact.needs in provider.capabilities:\n"
        "                await fact.check(provider)\n"
        "                print(fact.name)\n"
        "asyncio.run(main())\n"
    )
    library = Path(tempfile.gettempdir(), f"sandbox-user-{os.getpid()}")
    subprocess.run(["mkdir", "-m", "0777", library], check=True)
    try:
        packages = Path(sys.modules["tenacity"].__path__[0]).parent
        for source in (
            _REPOSITORY / "sandbox_runtime",
            packages / "tenacity",
            packages / "typing_extensions.py",
        ):
            subprocess.run(["cp", "-r", source, library], check=True)
        subprocess.run(["chmod", "-R", "a+rX", library], check=True)
        argv = [
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            script,
        ]
        done = subprocess.run(
            [*argv, str(library / "state")],
            env={"PYTHONPATH": str(library), "PATH": os.defpath},
            cwd=library,
            capture_output=True,
            timeout=55,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", library], check=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert b"bubblewrap as the service's own user" in done.stdout


async def test_what_a_sandbox_uses_is_told(state_dir: Path) -> None:
    """Of processes that live, also to another provider on the same directory; nothing of a sandbox that is gone."""
    async with (
        LocalProvider(state_dir) as provider,
        LocalProvider(state_dir) as other,
    ):
        async with open_sandbox(provider, SandboxSpec()) as sandbox:
            assert await other.stats(sandbox.id) == SandboxStats(cpu_s=0.0, memory_bytes=0)
            busy = await sandbox.spawn(["python3", "-c", _HOLDING])
            async with asyncio.timeout(30):
                while ((await other.stats(sandbox.id)).memory_bytes or 0) < _HELD_BYTES:
                    await asyncio.sleep(0.05)
                while ((await other.stats(sandbox.id)).cpu_s or 0) < 0.3:
                    await asyncio.sleep(0.05)
            await busy.kill()
        assert await provider.stats(sandbox.id) == SandboxStats()


_HELD_BYTES = 60 * 1024 * 1024
_HOLDING = f"held = b'x' * {_HELD_BYTES}\nwhile True: pass"

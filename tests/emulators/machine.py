"""A virtual machine for emulators of clouds: one bubblewrap with a disk, users, processes and a network of its own.

The disk is a directory on this host, the system below it this host's /usr, read-only. Its root is not this host's: numbers
of users inside are mapped to others outside, and processes are counted for each machine. Needs to run as root.

async with boot(directory, image=MachineImage(), internet=(Address(host="127.0.0.1", port=port),)) as machine:
    machine.network.policy = Policy(hosts={"127.0.0.1": None})
    assert (await machine.run(["id", "-un"], user="ubuntu")).stdout == b"ubuntu\n"
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_runtime.host import python_prefixes, search_path
from sandbox_runtime.task_group import open_task_group
from tests.emulators.machine_disk import (
    FIRST_HOST_UID,
    ROOT,
    SUDO_DIRECTORY,
    MachineImage,
    User,
    copy,
    install,
)
from tests.emulators.machine_network import Address, Network

BOOT_S, STOP_S = 10.0, 10.0
_HERE = Path(__file__).parent
_GUEST = (_HERE / "machine_guest.py").read_text("utf-8")
_ETC = ("alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "ssl/certs", "ssl/openssl.cnf")  # fmt: skip
# SYS_ADMIN and SYS_RESOURCE until its PID 1 has set it up.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_CHROOT", "SYS_RESOURCE")  # fmt: skip
_MESSAGE_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    code: int
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)


class MachineProcess:
    """A command that was started. Its output must be read, or it waits at a full pipe."""

    def __init__(self, machine: "Machine", number: int) -> None:
        self._machine = machine
        self._number = number
        self._ended = asyncio.Event()
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()

    async def wait(self) -> int:
        """Its exit code, 128 + n after signal n."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def signal(self, number: int, *, group: bool = False) -> None:
        """To it alone, as clouds do, or to its process group."""
        if self.returncode is None:
            self._machine.tell({"id": self._number, "signal": number, "group": group})

    def end(self, code: int) -> None:
        """Called by its machine."""
        if self.returncode is None:
            self.returncode = code
            self._ended.set()


class Machine:
    """Made by `boot`."""

    def __init__(
        self, directory: Path, *, image: MachineImage, internet: Sequence[Address]
    ) -> None:
        self.root = directory
        self.image = image
        self.network = Network(internet)
        self._internet = internet
        self._bwrap: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._processes: dict[int, MachineProcess] = {}
        self._count = 0

    @property
    def is_running(self) -> bool:
        return self._control is not None

    async def start(
        self,
        argv: Sequence[str],
        *,
        user: str,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> MachineProcess:
        """A command with `image.env`, HOME, USER, PATH and `env` around it. Raises: ConnectionError: it is stopped."""
        control = self._control
        if control is None:
            raise ConnectionError("the machine is stopped")
        found, path = self._user(user), f"{SUDO_DIRECTORY}:{search_path()}"
        own = {"HOME": found.home, "USER": user, "LOGNAME": user}
        body = {
            "argv": list(argv),
            "cwd": cwd,
            "env": {"PATH": path, "LANG": "C.UTF-8", **self.image.env, **own, **(env or {})},
            "uid": found.uid,
            "gid": found.uid,
        }
        self._count += 1
        number = self._count
        process = self._processes[number] = MachineProcess(self, number)
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            request = os.memfd_create("request")
            stack.callback(os.close, request)
            os.write(request, json.dumps(body).encode())
            theirs = [request]
            if stdin:
                read, write = os.pipe()
                theirs.append(read)
                transport, protocol = await loop.connect_write_pipe(
                    lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
                    os.fdopen(write, "wb", buffering=0),
                )
                process.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
            else:
                theirs.append(os.open("/dev/null", os.O_RDONLY))
            stack.callback(os.close, theirs[1])
            for reader in (process.stdout, process.stderr):
                read, write = os.pipe()
                theirs.append(write)
                stack.callback(os.close, write)
                await loop.connect_read_pipe(
                    lambda reader=reader: asyncio.StreamReaderProtocol(reader),  # type: ignore[misc]  # bound now
                    os.fdopen(read, "rb", buffering=0),
                )
            socket.send_fds(control, [json.dumps({"id": number}).encode()], theirs)
        return process

    async def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        data: bytes = b"",
    ) -> Completed:
        """A command to its end."""
        process = await self.start(argv, user=user, cwd=cwd, env=env, stdin=True)
        async with open_task_group() as group:
            outputs = [group.create_task(r.read()) for r in (process.stdout, process.stderr)]
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.close()
            code = await process.wait()
        return Completed(code=code, stdout=outputs[0].result(), stderr=outputs[1].result())

    def tell(self, message: Mapping[str, object]) -> None:
        """To PID 1."""
        if self._control is not None:
            with suppress(OSError):
                self._control.send(json.dumps(message).encode())

    async def save(self, directory: Path) -> None:
        """Copy the disk to a directory that does not exist yet; best when the machine is stopped."""
        await copy(self.root, directory)

    async def stop(self) -> None:
        """End all that runs. The disk stays. Idempotent."""
        if self._control is None or self._bwrap is None:
            return
        self.network.close()
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        self._bwrap.kill()
        await asyncio.to_thread(self._bwrap.wait, STOP_S)
        for process in self._processes.values():
            process.end(128 + signal.SIGKILL)
        self._processes.clear()

    async def power_on(self) -> None:
        """Called by `boot`; after `stop`, boots again from the same disk."""
        (self.root / "run").mkdir(exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        info_read, info_write = os.pipe()
        block_read, block_write = os.pipe()
        with theirs, ExitStack() as stack:
            for fd in (info_write, block_read):
                stack.callback(os.close, fd)
            fds = (theirs.fileno(), info_write, block_read)
            # From this thread: the kernel ties the end of a child to that of the thread that started it.
            self._bwrap = subprocess.Popen(  # noqa: ASYNC220  # same
                self._argv(*fds), pass_fds=fds, stdin=subprocess.DEVNULL, env={}, cwd="/"
            )
        block = os.fdopen(block_write, "wb", buffering=0)
        try:
            async with asyncio.timeout(BOOT_S):
                pid = await asyncio.to_thread(_read_pid, info_read)
                _map_users(pid)
                block.close()
                # Until its PID 1 runs, its network may have no address yet.
                ours.settimeout(BOOT_S)
                await asyncio.to_thread(ours.recv, _MESSAGE_BYTES)
        except BaseException:
            ours.close()
            self._bwrap.kill()
            raise
        finally:
            block.close()
        ours.settimeout(0)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        await self.network.serve(pid)

    def _hear(self) -> None:
        while self._control is not None:
            try:
                data = self._control.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._control)
                return
            message = json.loads(data)
            if "exit" in message:
                self._processes.pop(message["id"]).end(message["exit"])

    def _user(self, name: str) -> User:
        return next(user for user in (ROOT, *self.image.users) if user.name == name)

    def _argv(self, control: int, info: int, block: int) -> list[str]:
        bwrap = shutil.which("bwrap") or "bwrap"
        binds = [Path("/usr"), *(Path("/etc", name) for name in _ETC)]
        binds += [*python_prefixes(), *self.image.binds]
        sudoers = [str(self._user(name).uid) for name in self.image.sudoers]
        return [
            *(bwrap, "--bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"),
            *(text for path in binds for text in ("--ro-bind-try", str(path), str(path))),
            *("--tmpfs", "/dev/shm", "--unshare-user", "--unshare-pid", "--unshare-ipc"),  # noqa: S108
            *("--unshare-uts", "--unshare-net", "--hostname", "machine", "--clearenv"),
            *("--userns-block-fd", str(block), "--info-fd", str(info)),
            *("--die-with-parent", "--new-session", "--as-pid-1", "--chdir", "/"),
            *(text for name in _CAPABILITIES for text in ("--cap-add", f"CAP_{name}")),
            *("--setenv", "PATH", search_path()),
            *("python3", "-I", "-S", "-c", _GUEST, str(control), *sudoers),
        ]


@asynccontextmanager
async def boot(
    directory: Path,
    *,
    image: MachineImage | None = None,
    saved: Path | None = None,
    internet: Sequence[Address] = (),
) -> AsyncIterator[Machine]:
    """A running machine whose disk is `directory`, new or a copy of a saved one, until the end of the block.

    The disk is left there: `discard` it.
    """
    machine = Machine(directory, image=image or MachineImage(), internet=internet)
    if saved is None:
        install(machine.image, directory, internet)
    else:
        await copy(saved, directory)
    try:
        await machine.power_on()
        yield machine
    finally:
        await machine.stop()


def _map_users(pid: int) -> None:
    for kind in ("uid", "gid"):
        users = f"0 0 1\n1 {FIRST_HOST_UID + 1} 65533\n"
        Path(f"/proc/{pid}/{kind}_map").write_text(users, encoding="ascii")


def _read_pid(info: int) -> int:
    with os.fdopen(info, "rb") as file:
        found = json.load(file)
    return int(found["child-pid"])

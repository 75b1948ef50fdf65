"""Conformance of providers that isolate: the host, its network and other sandboxes are out of reach."""

# ruff: noqa: ASYNC240  # short looks at the host, in checks

import asyncio
import os
import secrets
import socket
import tempfile
from pathlib import Path

from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.testing.expectations import (
    TIMEOUT_S,
    Fact,
    expect,
    expect_equal,
    expect_raises,
    fact,
    fresh,
    python,
    sandbox_fact,
    sh,
)
from sandbox_runtime.types import BrokeredNetwork, Capability, SandboxLimits, SandboxSpec

_MAX_PROCESSES = 20
_MAX_OWN_PROCESSES = 6
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


async def check_network_is_closed(sandbox: Sandbox) -> None:
    """A listener on the host's loopback cannot be reached, nor anything be resolved."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = await python(sandbox, _CONNECT, "127.0.0.1", str(port))
    expect("Connection refused" in result.error_text, result.error_text)
    interfaces = await sh(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")
    expect_equal(interfaces.text.split(), ["lo"])


async def check_loopback_works(sandbox: Sandbox) -> None:
    """Servers inside can be reached from inside."""
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); c.sendall(b'x'); print(s.accept()[0].recv(1))"
    )
    expect_equal((await python(sandbox, code)).text, "b'x'\n")


async def check_abstract_sockets_are_closed(sandbox: Sandbox) -> None:
    """Abstract unix sockets of the host cannot be reached."""
    name = f"\0{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])"
        result = await python(sandbox, code, name[1:])
    expect("Connection refused" in result.error_text, result.error_text)


async def check_broker_is_reached(provider: SandboxProvider) -> None:
    """A brokered sandbox reaches its one endpoint, also after the broker came back, and nothing else."""
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "s.sendall(b'ping'); print(s.recv(100).decode())"
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"answer to " + await reader.read(100))
        await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory() as parent:
        endpoint = Path(parent, "broker", "socket")
        endpoint.parent.mkdir()
        endpoint.parent.chmod(0o755)
        spec = SandboxSpec(network=BrokeredNetwork(endpoint=str(endpoint)))
        async with fresh(provider, spec) as sandbox:
            for _ in range(2):
                endpoint.unlink(missing_ok=True)
                async with await asyncio.start_unix_server(answer, endpoint):
                    endpoint.chmod(0o666)
                    result = await python(sandbox, code, sandbox.paths.broker)
                expect_equal(result.text, "answer to ping\n")
            await check_network_is_closed(sandbox)


_OPEN_OTHERS = """
import ctypes, mmap, os, platform, socket, struct

for family in (socket.AF_VSOCK, 38, socket.AF_PACKET, 31, 44):  # 38: ALG; 31: BLUETOOTH; 44: XDP
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
            print(f"socket of family {family}")
        except OSError:
            pass
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
if libc.syscall(425, 4, parameters) >= 0:
    print("io_uring")
numbers = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219), "riscv64": (217, 218, 219)}
for number in numbers.get(platform.machine(), ()):
    if libc.syscall(number, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in (1, 38):  # EPERM, ENOSYS
        print(f"keyrings by system call {number}")
if platform.machine() == "x86_64":
    if libc.syscall(41 | 0x40000000, 40, 1, 0) >= 0:
        print("vsock by x32")
    # Below 2 GiB, where a call with 32-bit addresses finds its arguments. 0x40: MAP_32BIT.
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40,
                     mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[2048:2060] = struct.pack("<III", 40, 1, 0)
    for name, number, first, second in (("socket", 359, 40, 1), ("socketcall", 102, 1, address + 2048)):
        print(end="", flush=True)
        if os.fork() == 0:  # a kernel without 32-bit calls ends who tries
            # push rbx; mov eax, number; mov ebx, first; mov ecx, second; xor edx, edx; int 0x80; pop rbx; ret
            code = (b"\\x53\\xb8" + struct.pack("<I", number) + b"\\xbb" + struct.pack("<I", first)
                    + b"\\xb9" + struct.pack("<I", second) + b"\\x31\\xd2\\xcd\\x80\\x5b\\xc3")
            page[: len(code)] = code
            if ctypes.CFUNCTYPE(ctypes.c_int)(address)() >= 0:
                print(f"vsock by i386 {name}", flush=True)
            os._exit(0)
        os.wait()
"""


async def check_no_other_kinds_of_sockets(sandbox: Sandbox) -> None:
    """What a network namespace does not cover, such as AF_VSOCK, cannot be opened by any way to call the kernel, nor io_uring, nor the kernel's keyrings."""
    result = await python(sandbox, _OPEN_OTHERS)
    expect_equal((result.text, result.error_text), ("", ""))


async def check_ordinary_sockets_work(sandbox: Sandbox) -> None:
    """Those of programs can be made, in pairs too, and asyncio and netlink work."""
    code = (
        "import asyncio, socket\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX): socket.socket(family)\n"
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\n"
        "a, b = socket.socketpair(); a.send(b'x')\n"
        "async def echo(r, w): w.write(await r.read(1)); w.close()\n"
        "async def main():\n"
        "    async with await asyncio.start_server(echo, '127.0.0.1', 0) as server:\n"
        "        r, w = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
        "        w.write(b.recv(1)); print((await r.read()).decode(), [i[1] for i in socket.if_nameindex()])\n"
        "asyncio.run(main())"
    )
    expect_equal((await python(sandbox, code)).text, "x ['lo']\n")


async def check_host_files_are_hidden(sandbox: Sandbox) -> None:
    """Files of the host are absent, whoever the service runs as."""
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(b"of the host")
        file.flush()
        for path in (
            file.name,
            "/etc/shadow",
            "/etc/ssl/private/key.pem",
            str(Path.home() / ".bashrc"),
        ):
            with expect_raises(FileNotFoundError, PermissionError):
                await sandbox.read_file(path)


async def check_planted_symlink_stays_inside(sandbox: Sandbox) -> None:
    """A link to a file of the host leads nowhere, for reading and for writing below it."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        secret = Path(directory, "secret")
        secret.write_bytes(b"of the host")
        await sh(sandbox, 'ln -s "$1" file; ln -s "$2" directory', str(secret), directory)
        with expect_raises(FileNotFoundError):
            await sandbox.read_file("file")
        with expect_raises(OSError):
            await sandbox.write_file("directory/planted", b"from inside")
        expect_equal((secret.read_bytes(), os.listdir(directory)), (b"of the host", ["secret"]))  # noqa: PTH208


async def check_permissions(sandbox: Sandbox) -> None:
    """What the sandbox's user may not touch raises PermissionError."""
    await sh(sandbox, "echo x > closed; chmod 0 closed; mkdir -m 0 shut")
    with expect_raises(PermissionError):
        await sandbox.read_file("closed")
    with expect_raises(PermissionError):
        await sandbox.read_file("shut/file")
    for path in ("shut/file", "/usr/planted", "/planted", "/etc/planted"):
        with expect_raises(PermissionError):
            await sandbox.write_file(path, b"")


async def check_system_is_read_only(sandbox: Sandbox) -> None:
    """Nothing can be written beside the sandbox's own directories."""
    for path in ("/", "/usr", "/usr/bin", "/etc", sandbox.paths.environment):
        expect((await sh(sandbox, 'touch "$1/planted"', path)).exit_code != 0, path)


async def check_environment_is_read_only(provider: SandboxProvider) -> None:
    """A prepared environment cannot be changed from inside."""
    async with fresh(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file(f"{sandbox.paths.environment}/tool", b"tool")
        ref = await sandbox.snapshot()
    async with fresh(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        path = f"{sandbox.paths.environment}/tool"
        script = 'chmod 777 "$1"; echo x > "$1"; rm -f "$1"; mv "$1" "$1.old"'
        await sh(sandbox, script, path)
        expect_equal(await sandbox.read_file(path), b"tool")


async def check_user_is_not_root(sandbox: Sandbox) -> None:
    """Commands run as the user `agent`, with no way to root."""
    result = await sh(
        sandbox, "id -u; id -un; su -c id 2>/dev/null || sudo -n id 2>/dev/null || echo none"
    )
    uid, *rest = result.text.split()
    expect(uid != "0" and rest == ["agent", "none"], result.text)


async def check_no_capabilities(sandbox: Sandbox) -> None:
    """No capability is held or can be got."""
    result = await sh(sandbox, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    found = dict(line.split(":\t") for line in result.text.splitlines())
    expect_equal(found.pop("NoNewPrivs"), "1")
    expect_equal(set(found.values()), {"0000000000000000"})


async def check_namespaces_differ(sandbox: Sandbox) -> None:
    """None of the host's namespaces is shared, but that of users where the sandbox's user is nobody on the host."""
    for kind in ("pid", "ipc", "uts", "mnt", "net"):
        inside = (await sh(sandbox, f"readlink /proc/self/ns/{kind}")).text.strip()
        expect(inside and inside != str(Path(f"/proc/self/ns/{kind}").readlink()), kind)


async def check_no_nested_user_namespace(sandbox: Sandbox) -> None:
    """A further user namespace, where capabilities would return, is refused."""
    expect((await sh(sandbox, "unshare -U true")).exit_code != 0, "a nested user namespace")


async def check_no_mounting(sandbox: Sandbox) -> None:
    """Mounting and unmounting are refused."""
    expect((await sh(sandbox, "mount -t tmpfs none /tmp; umount /proc")).exit_code != 0, "mounted")


async def check_no_host_process_is_visible(sandbox: Sandbox) -> None:
    """/proc shows only the sandbox's own processes."""
    result = await sh(sandbox, "cat /proc/[0-9]*/comm")
    expect(
        len(result.text.split()) <= _MAX_OWN_PROCESSES and "python" not in result.text, result.text
    )


async def check_no_secret_in_any_environment(sandbox: Sandbox) -> None:
    """What the service has in its environment shows in none of the processes inside, their arguments or open files."""
    secret = secrets.token_hex(16)
    os.environ["ORION_CANARY"] = secret  # noqa: TID251  # planted to be looked for
    try:
        result = await sh(
            sandbox, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; env; ls -l /proc/[0-9]*/fd"
        )
    finally:
        del os.environ["ORION_CANARY"]  # noqa: TID251
    expect("PATH=" in result.text, result.text)
    expect(secret not in result.text and "ORION_CANARY" not in result.text, "the canary")


async def check_env_is_not_on_the_host_command_line(sandbox: Sandbox) -> None:
    """A token given to a command cannot be read by other users of the host with `ps`."""
    token = secrets.token_hex(16)
    process = await sandbox.spawn(["sh", "-c", "echo up; sleep 30"], env={"TOKEN": token})
    async with asyncio.timeout(TIMEOUT_S):
        async for _ in process.events():
            break
    try:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                expect(token not in path.read_text(errors="replace"), path)
            except (FileNotFoundError, ProcessLookupError):
                continue
    finally:
        await process.kill()


async def check_process_limit(provider: SandboxProvider) -> None:
    """Forking beyond the limit fails, and the next command works again."""
    spec = SandboxSpec(limits=SandboxLimits(max_processes=_MAX_PROCESSES))
    async with fresh(provider, spec) as sandbox:
        code = (
            "import os, time\n"
            "for n in range(100):\n"
            "    try:\n        pid = os.fork()\n"
            "    except BlockingIOError:\n        print(n); break\n"
            "    if pid == 0: time.sleep(10); os._exit(0)\n"
        )
        result = await python(sandbox, code)
        expect(0 < int(result.text or 0) <= _MAX_PROCESSES, result)
        expect_equal((await sh(sandbox, "echo alive")).text, "alive\n")


async def check_sandboxes_do_not_see_each_others_processes(provider: SandboxProvider) -> None:
    """A process of one sandbox is invisible in another."""
    async with fresh(provider) as one, fresh(provider) as other:
        process = await one.spawn(["sh", "-c", "echo up; sleep 30"])
        async with asyncio.timeout(TIMEOUT_S):
            async for _ in process.events():
                break
        expect("sleep" not in (await sh(other, "cat /proc/[0-9]*/comm")).text, "sleep")
        await process.kill()


async def check_tmp_is_private(provider: SandboxProvider) -> None:
    """The directory for temporary files is the sandbox's own, lasts between its commands, and is not the host's."""
    async with fresh(provider) as one, fresh(provider) as other:
        await sh(one, "echo x > /tmp/of-one")
        expect_equal((await sh(one, "ls -A /tmp")).text, "of-one\n")
        expect_equal((await sh(other, "ls -A /tmp")).text, "")


ISOLATION_FACTS: tuple[Fact, ...] = (
    *map(
        sandbox_fact,
        (
            check_network_is_closed,
            check_loopback_works,
            check_abstract_sockets_are_closed,
            check_no_other_kinds_of_sockets,
            check_ordinary_sockets_work,
            check_host_files_are_hidden,
            check_planted_symlink_stays_inside,
            check_permissions,
            check_system_is_read_only,
            check_user_is_not_root,
            check_no_capabilities,
            check_namespaces_differ,
            check_no_nested_user_namespace,
            check_no_mounting,
            check_no_host_process_is_visible,
            check_no_secret_in_any_environment,
            check_env_is_not_on_the_host_command_line,
        ),
    ),
    fact(check_broker_is_reached),
    fact(check_environment_is_read_only, needs=Capability.SNAPSHOT),
    fact(check_process_limit),
    fact(check_sandboxes_do_not_see_each_others_processes),
    fact(check_tmp_is_private),
)

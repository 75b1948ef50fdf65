"""Which system calls sandboxes on this machine do without: they reach past the namespaces that hold everything else.

A network namespace does not cover AF_VSOCK, by which a virtual machine talks to its host, nor AF_ALG, the kernel's crypto
(CVE-2026-31431 made its user root), and an io_uring does what a filter of system calls would have refused. So of all kinds
of sockets those four are left that programs use, and there is no io_uring: libuv and Go do the same by other calls then. No
namespace holds the kernel's keyrings: a sandbox would read and write the keys of the session in which Orion was started, and have the
host look names up by `request_key`.

Source: vsock(7), keyrings(7); moby/moby#44562, #52501; docker documentation, "Seccomp security profiles", read 2026-11.
"""

import errno
import json
import platform
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from sandbox_runtime.errors import SandboxError, SandboxErrorCode

SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Kinds of sockets that may be made."""
_IO_URING = (425, 426, 427)
"""io_uring_setup, _enter and _register: the same on all architectures. Source: Linux, include/uapi/asm-generic/unistd.h."""

# Source: Linux, include/uapi/linux/{bpf_common,filter,seccomp}.h; struct seccomp_data is nr, arch, instruction, arguments.
_LOAD, _AND, _JUMP_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_X32_BIT = 0x40000000

_Instruction = tuple[int, int, int, int]
"""Code, how many to skip if true and if false, operand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abi:
    """One way to call the kernel. Source: Linux, include/uapi/linux/audit.h and each architecture's table of system calls."""

    audit: int
    sockets: tuple[int, int]
    """socket and socketpair."""
    keys: tuple[int, int, int]
    """add_key, request_key and keyctl."""
    multiplexed: tuple[int, ...] = ()
    """socketcall, whose arguments lie in memory where no filter can see them."""


_X86_64 = _Abi(audit=0xC000003E, sockets=(41, 53), keys=(248, 249, 250))
_I386 = _Abi(audit=0x40000003, sockets=(359, 360), keys=(286, 287, 288), multiplexed=(102,))
_AARCH64 = _Abi(audit=0xC00000B7, sockets=(198, 199), keys=(217, 218, 219))
_ARM = _Abi(audit=0x40000028, sockets=(281, 288), keys=(309, 310, 311), multiplexed=(102,))
_RISCV64 = _Abi(audit=0xC00000F3, sockets=(198, 199), keys=(217, 218, 219))

_ABIS: Mapping[str, Sequence[_Abi]] = {
    "x86_64": (_X86_64, _I386),
    "i686": (_I386,),
    "aarch64": (_AARCH64, _ARM),
    "armv7l": (_ARM,),
    "riscv64": (_RISCV64,),
}


def filter_program(machine: str | None = None) -> bytes:
    """Returns the filter as classic BPF, as bwrap(1) takes it by `--seccomp`; `machine` as uname(1) names it.

    Assembled here: libseccomp, which every binding needs, is not on every host, and of its many rules these need few.

    Raises:
        SandboxError: ISOLATION_UNAVAILABLE for a kind of machine whose system calls are not known here.
    """
    machine = machine or platform.machine()
    if machine not in _ABIS:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"no filter of system calls is known for machines of the kind {machine}: use Docker",
        )
    program: list[_Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE)]
    for abi in _ABIS[machine]:
        rules = _rules(abi)
        program += [(_JUMP_EQUAL, 0, len(rules), abi.audit), *rules]
    program.append(_refuse(errno.EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _rules(abi: _Abi) -> list[_Instruction]:
    sockets = [
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *(
            step
            for family in SOCKET_FAMILIES
            for step in _if_equal(family, (_RETURN, 0, 0, _ALLOW))
        ),
        _refuse(errno.EPERM),
    ]
    rules: list[_Instruction] = [(_LOAD, 0, 0, _NUMBER)]
    if abi is _X86_64:
        rules.append((_AND, 0, 0, ~_X32_BIT & 0xFFFFFFFF))
    for number in (*_IO_URING, *abi.keys, *abi.multiplexed):
        rules += _if_equal(number, _refuse(errno.ENOSYS))
    for number in abi.sockets:
        rules += _if_equal(number, *sockets)
    return [*rules, (_RETURN, 0, 0, _ALLOW)]


def _if_equal(value: int, *steps: _Instruction) -> list[_Instruction]:
    return [(_JUMP_EQUAL, 0, len(steps), value), *steps]


def _refuse(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def engine_profile() -> str:
    """Returns the filter as a Docker engine takes it: Moby's own default profile, with these kinds of sockets alone.

    Written out, because an engine makes AF_VSOCK sockets with the profile that it comes with before 23.0, and Debian's
    20.10.24 does (seen). `moby-seccomp.json` is https://github.com/moby/profiles, seccomp/default.json, at cd3bed8:
    copyright the Moby authors, Apache License 2.0.
    """
    profile = json.loads((files("sandbox_runtime.providers") / "moby-seccomp.json").read_text())
    made_here = {"socket", "socketpair", "socketcall"}
    others = [
        {**rule, "names": names}
        for rule in profile["syscalls"]
        if (names := [name for name in rule["names"] if name not in made_here])
    ]
    ours: list[dict[str, object]] = [
        {
            "names": ["socket", "socketpair"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": int(family), "op": "SCMP_CMP_EQ"}],
        }
        for family in SOCKET_FAMILIES
    ]
    # Said, not only left out: where `socket` is allowed libseccomp allows it by i386's `socketcall`, too, of any kind (seen).
    # On s390x libc knows no other way to make one.
    if platform.machine() == "s390x":
        ours.append({"names": ["socketcall"], "action": "SCMP_ACT_ALLOW"})
    else:
        ours.append({"names": ["socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS})
    return json.dumps({**profile, "syscalls": [*others, *ours]}, separators=(",", ":"))

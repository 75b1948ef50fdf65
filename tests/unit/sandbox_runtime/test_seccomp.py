"""The filter of system calls, run as the kernel would run it, for each kind of machine."""

import errno
import json
import struct
from collections.abc import Sequence

import pytest

from sandbox_runtime import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.seccomp import engine_profile, filter_program

_ALLOW = 0x7FFF0000
_UNIX, _INET, _PACKET, _ALG, _VSOCK = 1, 2, 17, 38, 40
_AUDIT = {
    "x86_64": 0xC000003E,
    "i386": 0x40000003,
    "aarch64": 0xC00000B7,
    "arm": 0x40000028,
    "riscv64": 0xC00000F3,
}


def _run(program: bytes, *, audit: int, number: int, argument: int = 0) -> int:
    """What the filter says of one call: 0 or an errno."""
    data = struct.pack("<IIQQ", number, audit, 0, argument)
    steps = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                value &= operand
            case 0x15:
                at += if_true if value == operand else if_false
            case 0x06:
                return 0 if operand == _ALLOW else operand & 0xFFFF
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@pytest.mark.parametrize(
    ("machine", "abi", "socket", "pair"),
    [
        ("x86_64", "x86_64", 41, 53),
        ("x86_64", "x86_64", 41 | 0x40000000, 53 | 0x40000000),  # x32
        ("x86_64", "i386", 359, 360),
        ("aarch64", "aarch64", 198, 199),
        ("aarch64", "arm", 281, 288),
        ("riscv64", "riscv64", 198, 199),
        ("i686", "i386", 359, 360),
        ("armv7l", "arm", 281, 288),
    ],
)
def test_sockets(machine: str, abi: str, socket: int, pair: int) -> None:
    """Those of programs pass, the others are refused, whatever stands in the upper half of the argument."""
    program, audit = filter_program(machine), _AUDIT[abi]
    for number in (socket, pair):
        for family in (_UNIX, _INET, 10, 16, _INET | 1 << 40):
            assert _run(program, audit=audit, number=number, argument=family) == 0
        for family in (0, _PACKET, _ALG, _VSOCK, 44, _VSOCK | 1 << 40, 0xFFFFFFFF):
            assert _run(program, audit=audit, number=number, argument=family) == errno.EPERM


@pytest.mark.parametrize(
    ("machine", "abi"),
    [("x86_64", "x86_64"), ("x86_64", "i386"), ("aarch64", "aarch64"), ("aarch64", "arm")],
)
def test_io_uring(machine: str, abi: str) -> None:
    """It is said not to exist, so that programs do the same by other calls; what is no socket passes."""
    program, audit = filter_program(machine), _AUDIT[abi]
    for number in (425, 426, 427):
        assert _run(program, audit=audit, number=number) == errno.ENOSYS
    for number in (0, 1, 56, 59, 424, 428, 435):
        assert _run(program, audit=audit, number=number) == 0


@pytest.mark.parametrize(
    ("machine", "abi", "keys"),
    [
        ("x86_64", "x86_64", (248, 249, 250)),
        ("x86_64", "x86_64", (248 | 0x40000000, 249 | 0x40000000, 250 | 0x40000000)),
        ("x86_64", "i386", (286, 287, 288)),
        ("aarch64", "aarch64", (217, 218, 219)),
        ("aarch64", "arm", (309, 310, 311)),
        ("riscv64", "riscv64", (217, 218, 219)),
    ],
)
def test_keyrings(machine: str, abi: str, keys: Sequence[int]) -> None:
    """They are no namespace's."""
    program, audit = filter_program(machine), _AUDIT[abi]
    for number in keys:
        assert _run(program, audit=audit, number=number) == errno.ENOSYS


def test_hidden_arguments() -> None:
    """A call whose arguments no filter can see is refused, as is every call of an unknown kind."""
    assert _run(filter_program("x86_64"), audit=_AUDIT["i386"], number=102) == errno.ENOSYS
    assert _run(filter_program("x86_64"), audit=_AUDIT["x86_64"], number=102) == 0
    assert _run(filter_program("x86_64"), audit=_AUDIT["aarch64"], number=1) == errno.EPERM


def test_unknown_machine() -> None:
    """Where no filter is known there is no local isolation, rather than one with a hole."""
    with pytest.raises(SandboxError, match="machines of the kind s390x") as caught:
        filter_program("s390x")
    assert caught.value.code is SandboxErrorCode.ISOLATION_UNAVAILABLE


def test_engine_profile() -> None:
    """All that is not allowed is refused: io_uring, 32-bit socketcall and other kinds of sockets are in no rule."""
    profile = json.loads(engine_profile())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    names = {name for rule in allowed for name in rule["names"]}
    assert {"read", "execve", "socket", "socketpair"} <= names
    assert names.isdisjoint({"io_uring_setup", "io_uring_enter", "io_uring_register", "socketcall"})
    assert names.isdisjoint({"add_key", "request_key", "keyctl"})
    rules = [rule for rule in profile["syscalls"] if {"socket", "socketpair"} & {*rule["names"]}]
    assert [rule["args"][0]["value"] for rule in rules] == [1, 2, 10, 16]
    assert all(rule["args"][0]["op"] == "SCMP_CMP_EQ" for rule in rules)

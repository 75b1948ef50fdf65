"""Which addresses a listed name may lead to."""

import pytest

from app.egress.addresses import is_public, is_this_machine, may_be_private

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]
PRIVATE = ["10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12:3456::1", "::ffff:10.1.2.3"]
NEVER = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",  # noqa: S104 - an address that is refused
    "169.254.169.254",
    "169.254.1.1",
    "100.100.100.200",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:42::42",
    "fd00:c1::a9fe:a9fe",
    "0.1.2.3",
    "ff02::1",
    "ff0e::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "2002:7f00:1::",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "::7f00:1",
    "168.63.129.16",
    "64:ff9b:1::a9fe:a9fe",
    "::ffff:0:7f00:1",
    "fec0::1",
]
NOT_PUBLIC = [
    *PRIVATE,
    *NEVER,
    "198.18.0.1",
    "192.0.2.1",
    "2001:db8::1",
    "2001::1",
    "64:ff9b::a01:203",
    "3fff::1",
    "5f00::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_companys_own(address: str) -> None:
    assert may_be_private(address)


@pytest.mark.parametrize("address", NEVER)
def test_never(address: str) -> None:
    assert not may_be_private(address)


def test_this_machine() -> None:
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("192.0.2.1")

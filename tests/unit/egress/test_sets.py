"""What package tools say of where they install from, as they are asked on this machine."""

import asyncio
import os
from pathlib import Path

import pytest

from app.egress.hosts import HostSet, read_items
from app.egress.sets import SetError, ask_tool
from tests.ports import free_port


def tool(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose programs are found first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    return tmp_path


async def hosts_of(name: str) -> list[tuple[str, int]]:
    return [(one.name, one.port) for one in await ask_tool(HostSet(name=name))]


async def test_sources_that_are_no_hosts_are_passed_over(tools: Path) -> None:
    """A directory, a disc and a mirror's list keep nobody from starting."""
    tool(
        tools,
        "apt-get",
        "echo 'file:/srv/deb http://deb.test/debian cdrom:[x]/ mirror+file:/etc/m https://sec.test/d'",
    )
    assert await hosts_of("apt") == [("deb.test", 80), ("sec.test", 443)]


async def test_a_tool_that_says_nothing(tools: Path) -> None:
    tool(tools, "npm", "echo undefined")
    with pytest.raises(SetError, match="npm names no host"):
        await hosts_of("npm")


def test_packages_stands_for_what_most_machines_have() -> None:
    named = read_items(["packages"])
    assert [str(one) for one in named] == ["@apt", "@npm", "@pip", "@uv"]


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("pnpm", 'test "$*" = "config get registry" && echo https://index.test/'),
        (
            "yarn",
            'case "$*" in --version) echo 1.22.22;; "config get registry") echo https://index.test/;; esac',
        ),
        (
            "yarn",
            'case "$*" in --version) echo 4.18.1;; "config get npmRegistryServer") echo https://index.test/;; esac',
        ),
    ],
    ids=["pnpm", "yarn 1", "yarn 4"],
)
async def test_registries_of_npms_kind(tools: Path, name: str, script: str) -> None:
    """Each tool has one of its own, whose files may be elsewhere."""
    tool(tools, name, script)
    wanted = "view --registry https://index.test/ semver dist.tarball"
    tool(tools, "npm", f'test "$*" = "{wanted}" && echo https://files.test/semver.tgz')
    assert await hosts_of(name) == [("index.test", 443), ("files.test", 443)]


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        ("https://proxy.test,direct\nsum.test", [("proxy.test", 443), ("sum.test", 443)]),
        ("https://one.test|https://two.test:8443\noff", [("one.test", 443), ("two.test", 8443)]),
        ("https://proxy.test\nsum.test+a1b2+Ac3/+x=", [("proxy.test", 443), ("sum.test", 443)]),
        ("direct\nsum.test https://mirror.test", [("mirror.test", 443)]),
    ],
)
async def test_go(tools: Path, said: str, hosts: list[tuple[str, int]]) -> None:
    """Modules come from its proxies, and what they must be from its database of checksums."""
    tool(tools, "go", f"printf '{said}\\n'")
    assert await hosts_of("go") == hosts


async def test_go_without_either(tools: Path) -> None:
    tool(tools, "go", "printf 'direct\\noff\\n'")
    with pytest.raises(SetError, match="go names no host"):
        await hosts_of("go")


async def _index_of_crates(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    said = b'{"dl": "https://crates.test/{crate}/{version}", "api": "https://api.test"}'
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(said))
    writer.write(said)
    await writer.drain()
    writer.close()


async def test_cargo(tools: Path) -> None:
    """It tells its index while it asks it, and the index where its files are."""
    server = await asyncio.start_server(_index_of_crates, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asks = f"0.03s DEBUG network: fetch http://localhost:{port}/index/config.json"
    tool(
        tools,
        "cargo",
        f'case "$1" in new) mkdir -p "$8";; add) echo "{asks}" >&2;; esac',
    )
    async with server:
        assert await hosts_of("cargo") == [("localhost", port), ("crates.test", 443)]


async def test_cargo_whose_index_does_not_answer(tools: Path) -> None:
    port = free_port()
    tool(
        tools,
        "cargo",
        f'test "$1" = new && mkdir -p "$8" || echo fetch http://localhost:{port}/config.json',
    )
    with pytest.raises(SetError, match="cargo's index does not say where its files are"):
        await hosts_of("cargo")

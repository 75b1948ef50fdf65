"""What package tools say of where they install from, as they are asked on this machine."""

import os
from pathlib import Path

import pytest

from app.egress.hosts import HostSet
from app.egress.sets import SetError, ask_tool


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

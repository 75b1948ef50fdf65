"""Agents in a developer's own directory, and in a copy of it."""

import json
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import open_world, text_of
from tests.e2e.test_sandbox_shell import name_of, script

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

OWNER = 54_321
"""Where the tests run as root: a developer who is not."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "sub").mkdir(parents=True)
    (directory / "theirs").write_text("of the host\n")
    (directory / "sub" / "tool").write_text("#!/bin/sh\necho ran\n")
    (directory / "sub" / "tool").chmod(0o755)
    if os.geteuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, OWNER, OWNER)
    return directory


@pytest.mark.long
async def test_in_the_directory_itself(start_orion: OpenOrion, project: Path) -> None:
    """What is done is done; the changes are told; start, doctor and record say so loudly."""
    async with open_world() as world, start_orion(world, ORION_MOUNT_DIR=str(project)) as stage:
        ts = await stage.client.say("@Orion run: cat theirs; sub/tool; echo changed >> theirs")
        answer = await stage.answer(ts)
        assert "of the host\nran" in text_of(answer)
        assert "1 file changed +1 \u22120" in str(answer["blocks"])
        assert (project / "theirs").read_text() == "of the host\nchanged\n"
        (line,) = stage.orion.log_lines("sandbox.mounted")
        assert f"{project} itself" in line["says"]
        _code, said = await stage.cli("sandboxes", "list", "--json")
        assert {row["mount_dir"] for row in json.loads(said)} == {str(project)}
        code, said = await script(stage, await name_of(stage), "cat theirs; echo by hand > hand")
        assert code == 0
        assert "changed\n" in said
        assert (project / "hand").read_text() == "by hand\n"
        _code, said = await stage.cli("doctor")
        assert f"{project} itself" in said


@pytest.mark.long
async def test_in_a_copy(start_orion: OpenOrion, project: Path) -> None:
    """The directory stays as it is; the thread goes on with its copy, the patch says what changed, another thread begins anew."""
    async with (
        open_world() as world,
        start_orion(world, ORION_MOUNT_DIR=str(project), ORION_MOUNT_OVERLAY="true") as stage,
    ):
        ts = await stage.client.say("@Orion run: sub/tool; echo changed >> theirs; rm -r sub")
        answer = await stage.answer(ts)
        assert "ran" in text_of(answer)
        assert "2 files changed +1 \u22122" in str(answer["blocks"])
        _code, patch = await stage.cli("runs", "show", stage.run_id(ts), "--patch")
        assert "+changed\n" in patch
        assert "-echo ran\n" in patch
        second = await stage.client.say("@Orion run: cat theirs; ls", thread_ts=ts)
        assert "of the host\nchanged\ntheirs" in text_of(await stage.answer(second, thread_ts=ts))
        other = await stage.client.say("@Orion run: cat theirs; sub/tool")
        assert "of the host\nran" in text_of(await stage.answer(other))
        assert (project / "theirs").read_text() == "of the host\n"
        assert (project / "sub" / "tool").exists()


async def test_verify(start_orion: OpenOrion, project: Path) -> None:
    """`orion verify --mount` says where it works; a directory that no agent may have is a usage error."""
    async with open_world() as world, start_orion(world) as stage:
        code, said = await stage.cli("verify", "--mount", str(project), "--overlay")
        assert code == 0, said
        assert f"! agents get a copy of {project}" in said
        code, said = await stage.cli("verify", "--mount", "/")
        assert code == 2
        assert "--mount: the whole machine" in said

"""A new thread in a repository begins where the operator's set-up has run already."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.web.hosting import serve
from tests.e2e.clouds import CLOUDS, open_stage_at
from tests.e2e.docker_world import open_docker_orion, prepared_image
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.git_server import TOKEN, GitServer, git

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

PREPARED_WITHIN_S = 60.0
FAILED = 1


@asynccontextmanager
async def _stage(
    tmp_path: Path, prepared: Path, server: GitServer, setup: str, **settings: str
) -> AsyncIterator[Stage]:
    state_dir = new_state_dir(tmp_path)
    async with serve(server.app()) as url, open_world() as world:
        github = {"GITHUB_TOKEN": TOKEN, "ORION_GITHUB_URL": url}
        opened = open_orion(world, state_dir, prepared, **github, **settings)
        async with opened as stage:
            await _restart_with(stage, setup)
            yield stage


async def _until_prepared(stage: Stage, times: int) -> None:
    await stage.orion.until_logged("repository.prepared", times, timeout_s=PREPARED_WITHIN_S)


@pytest.mark.long
async def test_a_new_thread_finds_what_was_installed(prepared: Path, tmp_path: Path) -> None:
    """The first one begins without and has it made; the next has it, and the newest commit; what is to be installed changes, and is."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"README": "one\n", "uv.lock": "1\n"})
    setup = '["mkdir deps", "cp uv.lock deps; env > deps/env"]'
    async with _stage(tmp_path, prepared, server, setup) as stage:
        first = await stage.client.say("@Orion repo=acme/api run: ls")
        assert "README" in text_of(await stage.answer(first))
        assert "deps" not in (await stage.record(first)).result.answer
        await _until_prepared(stage, 1)

        _commit(server, bare, "README", "two\n")
        second = await stage.client.say(
            "@Orion repo=acme/api run: cat README deps/uv.lock deps/env; git status --short; git log --format=%s; touch mine"
        )
        told = text_of(await stage.answer(second))
        answer = (await stage.record(second)).result.answer
        assert "two\n1\n" in answer
        assert "next\nfirst" in answer
        assert "deps/" not in answer.partition("PATH=")[2].replace("/deps", "")
        assert "1 file changed" in told
        assert TOKEN not in answer
        trace = str(await stage.world.whole_trace((await stage.record(second)).trace_id))
        assert "'is_prepared': True" in trace or '"is_prepared": true' in trace
        assert len(stage.orion.log_lines("repository.prepared")) == 1

        _commit(server, bare, "uv.lock", "2\n")
        third = await stage.client.say("@Orion repo=acme/api run: cat uv.lock deps/uv.lock")
        await stage.answer(third)
        assert "2\n1" in (await stage.record(third)).result.answer
        await _until_prepared(stage, 2)
        fourth = await stage.client.say("@Orion repo=Acme/API run: cat uv.lock deps/uv.lock")
        await stage.answer(fourth)
        assert "2\n2" in (await stage.record(fourth)).result.answer

        again = await stage.client.say("@Orion run: ls mine deps", thread_ts=second)
        await stage.answer(again, thread_ts=second)
        assert "uv.lock" in (await stage.record(again)).result.answer


@pytest.mark.long
async def test_a_set_up_that_fails_is_told_once(prepared: Path, tmp_path: Path) -> None:
    """Threads go on without it; it is not tried again at once; what it said is told, and which hosts it was refused."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"README": "one\n"})
    setup = '["true", "curl -sS https://example.com; echo no such package >&2; exit 7"]'
    async with _stage(tmp_path, prepared, server, setup) as stage:
        assert "one" in await stage.ask("@Orion repo=acme/api run: cat README")
        await stage.orion.until_logged("repository.not_prepared", 1, timeout_s=PREPARED_WITHIN_S)
        told = await stage.ask("@Orion repo=acme/api run: cat README")
        assert "acme/api could not be prepared: line 2" in told
        assert "exit code 7" in told
        assert "example.com" in told
        assert "no such package" in told
        assert "could not be prepared" not in await stage.ask("@Orion repo=acme/api run: ls")
        assert len(stage.orion.log_lines("repository.not_prepared")) == 1


@pytest.mark.long
async def test_the_commands(prepared: Path, tmp_path: Path) -> None:
    """Prepared by hand beside the service, whose next thread begins with it; listed and removed."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"README": "one\n"})
    async with _stage(tmp_path, prepared, server, '["mkdir deps; date > deps/made"]') as stage:
        code, said = await stage.cli("repositories", "list")
        assert (code, said.split()[:2]) == (0, ["acme/api", "missing"])
        code, said = await stage.cli("repositories", "prepare", "acme/api")
        assert code == 0, said
        assert "mkdir deps; date > deps/made" in said
        assert "deps/made" in await stage.ask("@Orion repo=acme/api run: ls deps/made")
        code, said = await stage.cli("repositories", "list", "--json")
        (row,) = json.loads(said)
        assert (row["repository"], row["state"], row["agent"]) == (
            "acme/api",
            "prepared",
            "anthropic",
        )
        code, said = await stage.cli("repositories", "rm", "acme/api")
        assert (code, said) == (0, f"{row['name']}: removed\n")
        code, said = await stage.cli("repositories", "rm", "acme/api")
        assert (code, said) == (FAILED, "nothing is prepared of 'acme/api'\n")
        code, said = await stage.cli("repositories", "prepare", "acme/other")
        assert (code, said) == (
            FAILED,
            "orion.toml has no setup of 'acme/other'; it has of: acme/api\n",
        )
        toml = '[repositories."acme/api"]\nsetup = ["exit 3"]\n'
        (stage.orion.directory / "orion.toml").write_text(toml)
        code, said = await stage.cli("repositories", "prepare", "acme/api")
        assert code == FAILED
        assert "FAIL line 1, `exit 3`: exit code 3" in said


@pytest.mark.long
@pytest.mark.machines
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CLOUDS)
async def test_at_a_cloud(name: str, tmp_path: Path) -> None:
    """The same in a cloud's machines, whose clone comes by Orion's public address."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"README": "one\n"})
    async with serve(server.app()) as url:
        settings = {"GITHUB_TOKEN": TOKEN, "ORION_GITHUB_URL": url}
        async with open_stage_at(name, tmp_path / "x", has_broker=True, **settings) as (stage, _):
            await _restart_with(stage, '["mkdir deps; env > deps/env"]')
            first = await stage.client.say("@Orion repo=acme/api run: ls")
            await stage.answer(first, timeout_s=150)
            await stage.orion.until_logged("repository.prepared", 1, timeout_s=150)
            second = await stage.client.say("@Orion repo=acme/api run: cat README deps/env")
            await stage.answer(second, timeout_s=60)
            answer = (await stage.record(second)).result.answer
            assert "one\n" in answer
            assert "PATH=" in answer
            assert TOKEN not in answer


@pytest.mark.long
@pytest.mark.docker
async def test_in_docker(tmp_path: Path) -> None:
    """The same in containers; removed, it leaves none with a copy of it."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"README": "one\n"})
    image = await asyncio.to_thread(prepared_image)
    async with (
        serve(server.app()) as url,
        open_world() as world,
        open_docker_orion(
            world, new_state_dir(tmp_path), image, GITHUB_TOKEN=TOKEN, ORION_GITHUB_URL=url
        ) as stage,
    ):
        await _restart_with(stage, '["mkdir deps; env > deps/env"]')
        assert "README" in await stage.ask("@Orion repo=acme/api run: ls")
        await _until_prepared(stage, 1)
        answer = await stage.ask("@Orion repo=acme/api run: cat README deps/env")
        assert "one\n" in answer
        assert "PATH=" in answer
        code, said = await stage.cli("repositories", "rm", "acme/api")
        assert code == 0, said


async def _restart_with(stage: Stage, setup: str) -> None:
    assert await stage.orion.terminate() == 0
    toml = f'[repositories."acme/api"]\nsetup = {setup}\n'
    (stage.orion.directory / "orion.toml").write_text(toml)
    await stage.orion.start()


def _commit(server: GitServer, bare: Path, name: str, text: str) -> None:
    work = server.root / "work-acme-api"
    (work / name).write_text(text)
    git(work, "add", "-A", "--", ".")
    git(work, "commit", "-q", "-m", "next")
    git(work, "push", "-q", str(bare), "main")

"""A repository in a container: worked in, followed across a crash, proposed; nobody keeps git's token."""

import asyncio
from pathlib import Path

import pytest

from app.runs.testing import Resumption
from app.web.hosting import serve
from tests.e2e.docker_world import open_docker_orion, prepared_image
from tests.e2e.harness import open_world, text_of
from tests.e2e.orion_process import POLL_S, new_state_dir
from tests.git_server import TOKEN, GitServer, git, settings_for

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def image() -> str:
    return prepared_image()


async def test_a_crash_in_the_middle_is_followed_to_the_pull_request(
    image: str, tmp_path: Path
) -> None:
    """The agent works on in its container; the next process sees its change, pushes it once and tells the link. The token that the agent's git had is void afterwards."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"README": "one\n"})
    async with (
        serve(server.app()) as url,
        open_world() as world,
        open_docker_orion(
            world,
            new_state_dir(tmp_path),
            image,
            **settings_for(url),
        ) as stage,
    ):
        asked = len(await world.model_requests())
        ts = await stage.client.say(
            "@Orion repo=acme/api pr=yes run: echo two >> README; sleep 12; cat README; env; git config -l; env | grep ^GIT_CONFIG_VALUE_.*=Authorization > ../kept"
        )
        async with asyncio.timeout(60):
            while len(await world.model_requests()) == asked:
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(1)
        await stage.orion.kill9()
        await stage.orion.start()
        told = text_of(await stage.answer(ts, timeout_s=90))
        run = await stage.record(ts)
        assert (run.attempt, run.result.resumed) == (2, Resumption.ATTACHED)
        assert "1 file changed +1" in told
        assert "Pull request: https://github.test/acme/api/pull/1" in told
        (pull,) = server.pulls
        assert git(bare, "show", f"{pull['head']}:README") == "one\ntwo"
        assert git(bare, "rev-list", "--count", f"main..{pull['head']}") == "1"
        assert TOKEN not in run.result.answer
        assert TOKEN not in stage.orion.log

        late = await stage.client.say(
            '@Orion run: env "$(cat ../kept)" git ls-remote origin 2>&1; git ls-remote origin',
            thread_ts=ts,
        )
        said = text_of(await stage.answer(late, thread_ts=ts))
        assert "could not read Username" in said  # it was refused (401), and may ask nobody
        assert "refs/heads/main" in said

"""A repository in a cloud's machine: it reaches Orion alone, which reaches the repository; the token never leaves Orion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.web.hosting import serve
from tests.e2e.clouds import CLOUDS, open_stage_at
from tests.e2e.harness import text_of
from tests.git_server import TOKEN, GitServer, git, settings_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("name", CLOUDS)
async def test_a_change_becomes_a_pull_request(name: str, tmp_path: Path) -> None:
    """The next message works in what was saved; without Orion's address there the message is told what is missing."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"README": "one\n"})
    async with serve(server.app()) as url:
        settings = settings_for(url)
        async with open_stage_at(name, tmp_path / "with", has_broker=True, **settings) as (
            stage,
            cloud,
        ):
            ts = await stage.client.say(
                "@Orion repo=acme/api pr=yes run: echo two >> README; env; git config -l"
            )
            told = text_of(await stage.answer(ts, timeout_s=150))
            assert "1 file changed +1" in told
            assert "Pull request: https://github.test/acme/api/pull/1" in told
            (pull,) = server.pulls
            assert git(bare, "show", f"{pull['head']}:README") == "one\ntwo"
            second = await stage.client.say("@Orion run: cat README; git status -s", thread_ts=ts)
            assert "two" in text_of(await stage.answer(second, thread_ts=ts, timeout_s=60))
            assert TOKEN not in (await stage.record(ts)).result.answer
            assert TOKEN.encode() not in cloud.sent()
        async with open_stage_at(name, tmp_path / "without", has_broker=False, **settings) as (
            stage,
            _,
        ):
            ts = await stage.client.say("@Orion repo=acme/api hello")
            told = text_of(await stage.answer(ts, timeout_s=150))
            assert "need the operator's ORION_PUBLIC_URL" in told

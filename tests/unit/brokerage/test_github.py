"""What GitHub's refusals become."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response

from app.brokerage.git import GitRemotes
from app.brokerage.github import TIMEOUT_S, GitHub
from app.runs.testing import NothingToProposeError, Proposal
from app.web.hosting import serve


async def _open(answer: Mapping[str, object]) -> str:
    async with _served(JSONResponse(answer, status_code=422)) as url:
        return await _open_at(url)


@asynccontextmanager
async def _served(answer: Response) -> AsyncIterator[str]:
    app = FastAPI()
    app.add_api_route("/repos/acme/api/pulls", lambda: answer, methods=["POST"])
    async with serve(app) as url:
        yield url


async def _open_at(url: str, *, timeout_s: float = TIMEOUT_S) -> str:
    remotes = GitRemotes(github_url="https://github.test", token="ghp_x")
    proposal = Proposal(
        url="https://github.test/acme/api.git", branch="orion/x", base="main", title="t", body=""
    )
    return await GitHub(remotes=remotes, api_url=url, timeout_s=timeout_s).open_pull_request(
        proposal
    )


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (
            [{"message": "Base is locked"}, {"message": "x" * 500}],
            "Validation Failed: Base is locked: x",
        ),
        (
            [{"resource": "PullRequest", "field": "base", "code": "invalid"}],
            "Validation Failed: base invalid",
        ),
        (["must be one of"], "Validation Failed: must be one of"),
        (None, "Validation Failed"),
        (7, "Validation Failed"),
    ],
)
async def test_the_reasons_are_told(errors: object, reason: str) -> None:
    """All of them, cut at some length."""
    with pytest.raises(ConnectionError) as caught:
        await _open({"message": "Validation Failed", "errors": errors})
    told = str(caught.value)
    assert f"(HTTP 422): {reason}" in told
    assert len(told) < 300


async def test_no_commits_between() -> None:
    """Is nothing that went wrong."""
    errors = [{"message": "No commits between main and orion/x"}]
    with pytest.raises(NothingToProposeError):
        await _open({"message": "Validation Failed", "errors": errors})


@pytest.mark.parametrize(
    "answer", [HTMLResponse("<p>Sign in</p>", 201), JSONResponse({}, 201), JSONResponse([], 201)]
)
async def test_another_server_than_githubs_is_named(answer: Response) -> None:
    """By its host; the person who asked knows none of our classes."""
    async with _served(answer) as url:
        with pytest.raises(ConnectionError) as caught:
            await _open_at(url)
    host = url.removeprefix("http://")
    assert str(caught.value) == f"the server at {host} gave no answer of GitHub's API"


async def test_a_server_that_is_not_there_is_named() -> None:
    """By its host."""
    async with _served(Response()) as url:
        pass
    with pytest.raises(ConnectionError) as caught:
        await _open_at(url)
    host = url.removeprefix("http://")
    assert str(caught.value) == f"the server at {host} could not be reached"


async def test_a_server_that_is_silent_is_named() -> None:
    """By its host."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError) as caught:
            await _open_at(f"http://{host}", timeout_s=0.1)
    assert str(caught.value) == f"the server at {host} did not answer in time"

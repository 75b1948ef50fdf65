"""What GitHub's refusals become."""

import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from app.accounts.records import GITHUB, Account, Owner, TokenPair
from app.accounts.tokens import AccountTokens
from app.aio import open_task_group
from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.github import GitHub
from app.brokerage.github_api import TIMEOUT_S
from app.runs.testing import Author, NothingToProposeError, Proposal
from app.store.accounts import MemoryAccountStore
from app.web.hosting import serve

ANN = Owner(team="T1", person="U1")


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
    github = GitHub(credentials=GitCredentials(remotes=remotes), api_url=url, timeout_s=timeout_s)
    proposal = Proposal(
        url="https://github.test/acme/api.git", branch="orion/x", base="main", title="t", body=""
    )
    return await github.open_pull_request(proposal)


async def _never(tokens: TokenPair) -> TokenPair:
    raise AssertionError(tokens)


async def _admit(status: int, *, url: str = "") -> tuple[Author | None, MemoryAccountStore, str]:
    """A person whose account is linked asks for a repository of a server that answers so."""
    app, store, asked = FastAPI(), MemoryAccountStore(), []

    def answer(request: Request) -> Response:
        asked.append(request.headers["authorization"])
        return Response(status_code=status)

    app.add_api_route("/acme/api.git/info/refs", answer)
    account = Account(service=GITHUB, id="7", login="ann", tokens=TokenPair(access="ghu_ann"))
    await store.link(ANN, account)
    async with serve(app) as own, open_task_group() as group:
        tokens = AccountTokens(
            store, GITHUB, group=group, refresh=_never, now=lambda: datetime.now(UTC)
        )
        remotes = GitRemotes(github_url=own, token="ghp_x")
        github = GitHub(
            credentials=GitCredentials(remotes=remotes, accounts=tokens),
            api_url="http://127.0.0.1:1",
        )
        try:
            return await github.admit(url or f"{own}/acme/api.git", ANN), store, ""
        except ConnectionError as exc:
            assert asked == ["Basic " + b64encode(b"x-access-token:ghu_ann").decode()]
            return None, store, str(exc)


async def test_who_may_read_it_is_named_as_github_names_them() -> None:
    author, _, _ = await _admit(200)
    assert author == Author(name="ann", email="7+ann@users.noreply.127.0.0.1")


@pytest.mark.parametrize(
    ("status", "told", "is_kept"),
    [
        (401, "does not take what your account has given any more", False),
        (403, "account ann may not read", True),
        (404, "account ann may not read", True),
        (500, "gave HTTP 500", True),
    ],
)
async def test_who_may_not_read_it_is_told_why(status: int, told: str, *, is_kept: bool) -> None:
    """The deployment's token is not tried; one that GitHub does not take is forgotten."""
    author, store, said = await _admit(status)
    assert author is None
    assert told in said
    assert (await store.get(ANN, GITHUB) is not None) is is_kept


async def test_elsewhere_nobody_has_an_account() -> None:
    author, _, said = await _admit(500, url="https://git.example/acme/api.git")
    assert (author, said) == (None, "")


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

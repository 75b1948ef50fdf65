"""The deployment as a GitHub App: a token for each repository, for an hour, and never another right instead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from app.aio import open_task_group
from app.brokerage.credentials import CredentialError, GitCredentials, GitRemotes
from app.brokerage.github_app import AppTokens
from app.web.hosting import serve
from tests.github_accounts import CLIENT_ID
from tests.github_app import PRIVATE_KEY, GitHubApp

NAME, URL = "acme/api", "https://github.test/acme/api.git"


@dataclass
class World:
    github: GitHubApp
    tokens: AppTokens

    @property
    def credentials(self) -> GitCredentials:
        remotes = GitRemotes(github_url="https://github.test", token="ghp_of_the_operator")
        return GitCredentials(remotes=remotes, app=self.tokens)


@asynccontextmanager
async def open_world(*repositories: str, client_id: str = CLIENT_ID) -> AsyncIterator[World]:
    github = GitHubApp(set(repositories or (NAME, "acme/web")))
    async with serve(github.app()) as url:
        yield World(
            github,
            AppTokens(
                client_id=client_id,
                private_key=PRIVATE_KEY,
                api_url=url,
                now=lambda: github.now,
            ),
        )


async def test_a_token_is_a_repositorys_own_and_kept_for_most_of_an_hour() -> None:
    """However its name is written; asked for by many at once, it is one."""
    async with open_world() as world:
        async with open_task_group() as group:
            asked = [group.create_task(world.tokens.of(NAME)) for _ in range(20)]
        (token,) = {task.result() for task in asked}
        assert world.github.tokens == {token: NAME}
        assert await world.tokens.of("Acme/API") == token
        assert await world.tokens.of("acme/web") != token
        world.github.now += timedelta(minutes=50)
        assert await world.tokens.of(NAME) == token
        world.github.now += timedelta(minutes=6)
        assert await world.tokens.of(NAME) != token


async def test_where_it_is_not_installed_nothing_else_is_tried() -> None:
    """What is public is read without a token; all else says why, and is looked for again after a minute."""
    async with open_world("acme/web") as world:
        assert await world.credentials.headers_for(URL, None) == {}
        with pytest.raises(CredentialError, match="not installed for acme/api"):
            await world.credentials.token_for(NAME, None)
        assert world.github.looks == 1
        world.github.repositories.add(NAME)
        world.github.now += timedelta(minutes=2)
        assert (await world.credentials.token_for(NAME, None)).startswith("ghs_")
        headers = await world.credentials.headers_for(URL, None)
        assert headers["authorization"].startswith("Basic ")
        assert await world.credentials.headers_for("https://git.test/acme/api.git", None) == {}


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_what_github_refuses_is_told_without_a_secret(status: int) -> None:
    async with open_world() as world:
        world.github.status = status
        with pytest.raises(CredentialError, match=f"HTTP {status}") as caught:
            await world.credentials.token_for(NAME, None)
        assert "BEGIN" not in str(caught.value)
        world.github.status = 0
        assert await world.tokens.of(NAME)


async def test_another_apps_key() -> None:
    async with open_world(client_id="Iv23liAnother") as world:
        with pytest.raises(ConnectionError, match="HTTP 401"):
            await world.tokens.of(NAME)


async def test_a_server_that_is_not_there() -> None:
    tokens = AppTokens(client_id=CLIENT_ID, private_key=PRIVATE_KEY, api_url="http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match="ConnectError"):
        async with asyncio.timeout(20):
            await tokens.of(NAME)

"""Work in a repository by the right of whoever asks: linked by a code that they alone are shown, pushed and proposed as them, never by another's right."""

import asyncio
import re
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import COLLEAGUE, YOU
from tests.e2e.harness import Stage, text_of
from tests.e2e.orion_process import POLL_S
from tests.e2e.repositories import open_with_repositories
from tests.git_server import APP, TOKEN, GitServer, git
from tests.github_accounts import CLIENT_ID, GitHubAccounts
from tests.github_app import PRIVATE_KEY, GitHubApp

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]


async def _link(stage: Stage, accounts: GitHubAccounts, *, user: str, login: str) -> None:
    """A person asks for a code, types it in at GitHub, and is told by Orion, alone."""
    told = str((await stage.client.command("/orion link", user=user))["text"])
    found = re.search(r"type in `([^`]+)`", told)
    assert found, told
    again = str((await stage.client.command("/orion link", user=user))["text"])
    assert found[1] in again  # no second code goes about
    accounts.authorize(found[1], login=login, number=len(login))
    async with asyncio.timeout(60):
        while not any(
            f"is linked: {login}" in one["text"]
            for one in await stage.client.messages(user=user)
            if one["ephemeral_to"] == user
        ):
            await asyncio.sleep(POLL_S)


@pytest.mark.long
async def test_what_is_pushed_for_a_person_is_theirs(prepared: Path, tmp_path: Path) -> None:
    accounts = GitHubAccounts()
    server = GitServer(
        root=tmp_path / "git", accounts=accounts, readers={"acme/api": {"ann"}, "acme/web": {"bob"}}
    )
    bare = server.filled("acme/api", {"README": "one\n"})
    server.filled("acme/web", {"README": "one\n"})
    async with open_with_repositories(
        tmp_path,
        prepared,
        server,
        ORION_GITHUB_APP_CLIENT_ID=CLIENT_ID,
        ORION_GITHUB_IDENTITY="person",
        ORION_OWN_KEYS_SECRET="secret-of-the-tests-for-accounts-4711",
    ) as stage:
        unlinked = await stage.client.say("@Orion repo=acme/api run: cat README")
        assert "our GitHub account is not linked" in text_of(await stage.answer(unlinked))
        assert (await stage.record(unlinked)).result.error_code is ErrorCode.REPO_UNAVAILABLE
        assert server.requests == []

        await _link(stage, accounts, user=YOU, login="ann")
        ts = await stage.client.say("@Orion repo=acme/api pr=yes run: echo two >> README; env")
        assert "Pull request: " in text_of(await stage.answer(ts))
        (pull,) = server.pulls
        assert (pull["user"], server.pushes) == ({"login": "ann"}, ["ann"])
        told = git(bare, "log", "-1", "--format=%an <%ae>%n%B", pull["head"])
        assert told.startswith("ann <3+ann@users.noreply.127.0.0.1>\n")
        assert "Co-authored-by: Orion <" in told
        record = await stage.record(ts)
        tokens = [*accounts.tokens, TOKEN]
        assert not any(token in record.result.answer for token in tokens)

        # A colleague may not read it: neither from the clone that is there, nor before and after they have linked.
        for login in ("", "bob"):
            if login:
                await _link(stage, accounts, user=COLLEAGUE, login=login)
            other = await stage.client.say("@Orion run: cat README", thread_ts=ts, user=COLLEAGUE)
            why = "account bob may not read" if login else "our GitHub account is not linked"
            assert why in text_of(await stage.answer(other, thread_ts=ts))
        assert server.pushes == ["ann"]

        # Taken back at GitHub: the next turn is refused, and the deployment's token is not tried in its place.
        accounts.revoke("ann")
        later = await stage.client.say("@Orion run: echo three >> README", thread_ts=ts)
        assert "does not take" in text_of(await stage.answer(later, thread_ts=ts))
        again = str((await stage.client.command("/orion link"))["text"])
        assert "type in `" in again
        forgotten = str((await stage.client.command("/orion unlink", user=COLLEAGUE))["text"])
        assert "is forgotten here" in forgotten
        assert server.pushes == ["ann"]
        log = stage.orion.log_path.read_text()
        assert not any(token in log for token in tokens)


@pytest.mark.long
async def test_the_deployment_acts_as_its_app(prepared: Path, tmp_path: Path) -> None:
    """By tokens of the repository alone; where the App is not installed, GITHUB_TOKEN is not tried instead."""
    app = GitHubApp({"acme/api"})
    server = GitServer(root=tmp_path / "git", github_app=app)
    server.filled("acme/api", {"README": "one\n"})
    server.filled("acme/web", {"README": "one\n"})
    async with open_with_repositories(
        tmp_path,
        prepared,
        server,
        ORION_GITHUB_APP_CLIENT_ID=CLIENT_ID,
        ORION_GITHUB_APP_PRIVATE_KEY=PRIVATE_KEY.replace("\n", "\\n"),
    ) as stage:
        ts = await stage.client.say("@Orion repo=acme/api pr=yes run: echo two >> README; env")
        told = text_of(await stage.answer(ts))
        assert "Pull request: " in told
        (pull,) = server.pulls
        assert (pull["user"], server.pushes) == ({"login": APP}, [APP])
        other = await stage.client.say("@Orion repo=acme/web run: cat README")
        assert "acme/web" in text_of(await stage.answer(other))
        assert (await stage.record(other)).result.error_code is ErrorCode.REPO_UNAVAILABLE
        log = stage.orion.log_path.read_text()
        secrets = [*app.tokens, TOKEN, "BEGIN RSA"]
        answers = told + (await stage.record(ts)).result.answer
        assert not any(secret in text for secret in secrets for text in (log, answers))

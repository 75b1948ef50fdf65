"""An MCP server at which each person has an account of their own, in the whole service: linked by what they alone are shown, and asked as nobody else."""

import asyncio
import html
import json
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from mcp.server.mcpserver import MCPServer

from app.playground.slack.types import COLLEAGUE, YOU
from app.web.hosting import serve
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.github_accounts import CLIENT_ID
from tests.oauth_accounts import SECRET, OAuthAccounts
from tests.plain_http import NO_TLS
from tests.ports import free_port
from tests.waiting import pauses

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]


async def _link(stage: Stage, accounts: OAuthAccounts, *, user: str, login: str) -> None:
    told = str((await stage.client.command("/orion link crm", user=user))["text"])
    if page := re.search(r"<([^|>]+)\|Say yes at crm>", told):
        address = await accounts.say_yes(html.unescape(page[1]), login=login)
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as browser:
            ended = (await browser.get(address)).text
        shown = re.search(r"<code>(.*)</code>", ended)
        assert shown, ended
        await stage.client.command(html.unescape(shown[1]), user=user)
    else:
        found = re.search(r"type in `([^`]+)`", told)
        assert found, told
        accounts.authorize(found[1], login=login, number=len(login))
    for pause_s in pauses():  # until the test's own limit
        said = [one for one in await stage.client.messages(user=user) if one["ephemeral_to"]]
        if any("Your crm account is linked" in one["text"] for one in said):
            assert {one["ephemeral_to"] for one in said} == {user}
            return
        await asyncio.sleep(pause_s)


async def _told(stage: Stage, words: str, *, user: str = YOU) -> str:
    ts = await stage.client.say(f"@Orion {words}", user=user)
    return text_of(await stage.answer(ts, timeout_s=60))


@pytest.mark.parametrize(
    ("flow", "path"), [("device_authorization_url", "device"), ("authorization_url", "authorize")]
)
async def test_each_uses_it_as_themselves(
    flow: str, path: str, prepared: Path, tmp_path: Path
) -> None:
    """Who has linked no account hears how, from the agent; nobody's token is seen by it."""
    accounts, notes = OAuthAccounts(), list[str]()
    server = MCPServer("crm", log_level="WARNING")

    @server.tool()
    def note(text: str) -> str:
        """Keep a note."""
        notes.append(f"{accounts.reached_by[-1]}: {text}")
        return f"kept {text}"

    logins = FastAPI()
    accounts.add_to(logins)
    file = tmp_path / "mcp.json"
    async with (
        serve(logins) as login_url,
        serve(accounts.guard(server.streamable_http_app())) as url,
        open_world() as world,
    ):
        client = {
            flow: f"{login_url}/{path}",
            "token_url": f"{login_url}/token",
            "client_id": CLIENT_ID,
            "client_secret": "${CRM_SECRET}",
        }
        port = free_port()
        accounts.redirect_url = f"http://localhost:{port}/linked/crm"
        file.write_text(json.dumps({"mcpServers": {"crm": {"url": f"{url}/mcp", "oauth": client}}}))
        async with open_orion(
            world,
            new_state_dir(tmp_path),
            prepared,
            ORION_MCP_CONFIG_FILE=str(file),
            ORION_PORT=str(port),
            ORION_OWN_KEYS_SECRET="secret-of-the-tests-for-accounts-4711",
            CRM_SECRET=SECRET,
        ) as stage:
            assert "/orion link crm" in await _told(stage, "call: how_to_link {}")
            await _link(stage, accounts, user=YOU, login="ann")
            assert "kept one" in await _told(stage, 'call: note {"text": "one"}')
            assert "/orion link crm" in await _told(stage, "call: how_to_link {}", user=COLLEAGUE)
            await _link(stage, accounts, user=COLLEAGUE, login="bob")
            assert "kept two" in await _told(stage, 'call: note {"text": "two"}', user=COLLEAGUE)
            assert notes == ["ann: one", "bob: two"]
            seen = await _told(stage, "run: env; cat /orion/*/mcp.json; ls -R ~ /tmp")
            assert not [token for token in accounts.tokens if token in seen]

            accounts.revoke("ann")
            await _told(stage, 'call: note {"text": "three"}')
            assert "/orion link crm" in await _told(stage, "call: how_to_link {}")
            assert len(notes) == 2

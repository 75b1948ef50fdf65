"""An MCP server that is asked as whoever asked: linked at its authorization server, by either flow, refreshed, taken back; by nobody else's right."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from mcp.server.mcpserver import MCPServer

from app.accounts.links import LinkError, Waiting
from app.accounts.records import Account, Owner, TokenPair, mcp_service
from app.accounts.tokens import AccountTokens
from app.brokerage.code_flow import CodeFlow
from app.brokerage.device_flow import DeviceFlow
from app.brokerage.mcp import McpBroker, McpServer
from app.brokerage.mcp_login import McpLogin
from app.brokerage.oauth import OAuthClient
from app.brokerage.registry import GrantRegistry
from app.runs.broker import GrantHooks, ModelGrant
from app.runs.model import SystemClock
from app.runs.request import RunId
from app.store.accounts import MemoryAccountStore
from app.web.hosting import serve
from sandbox_runtime.task_group import open_task_group
from tests.github_accounts import CLIENT_ID
from tests.oauth_accounts import REDIRECT_URL, SECRET, OAuthAccounts
from tests.plain_http import NO_TLS

ANN, BEN = Owner(team="T1", person="U1"), Owner(team="T1", person="U2")


@dataclass
class World:
    accounts: OAuthAccounts
    login: McpLogin
    store: MemoryAccountStore
    registry: GrantRegistry
    url: str
    """Of the broker."""
    notes: list[str]
    effects: list[str] = field(default_factory=list)
    before_effect: Callable[[], Awaitable[object]] | None = None

    async def link(self, owner: Owner, name: str) -> Account:
        code, brought = await self.login.begin(), ""
        if self.login.returns_to:
            brought = await self.accounts.say_yes(code.verification_url, login=name)
        else:
            assert await self.login.ask(code, "") == Waiting(interval_s=5)
            self.accounts.authorize(code.user_code, login=name, number=len(name))
        tokens = await self.login.ask(code, brought)
        assert isinstance(tokens, TokenPair)
        account = await self.login.account_of(tokens)
        await self.store.link(owner, account)
        return account

    async def call(self, owner: Owner | None, tool: str, **arguments: str) -> Mapping[str, Any]:
        return await self.ask(owner, "tools/call", name=tool, arguments=arguments)

    async def ask(self, owner: Owner | None, method: str, **params: Any) -> Mapping[str, Any]:
        """What the server says to an agent of this person's."""
        expires_at = datetime.now(UTC) + timedelta(minutes=5)
        grant = ModelGrant(run_id=RunId("r1"), models=("m",), expires_at=expires_at, asker=owner)

        async def noted() -> None:
            self.effects.append(method)
            if self.before_effect is not None:
                await self.before_effect()

        hooks = GrantHooks(on_call=lambda _call: None, on_effect=noted)
        with self.registry.open_grant(grant, hooks) as token:
            async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
                answer = await http.post(
                    f"{self.url}/broker/mcp/crm",
                    json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
                    headers={
                        "authorization": f"Bearer {token}",
                        "accept": "application/json, text/event-stream",
                    },
                )
        found: Mapping[str, Any] = answer.json()
        return {"status": answer.status_code, **found}


@pytest.fixture(params=["device", "code"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with open_world(request.param) as world:
        yield world


@asynccontextmanager
async def open_world(flow: str) -> AsyncIterator[World]:
    accounts, notes = OAuthAccounts(), list[str]()
    server = MCPServer("crm", log_level="WARNING")

    @server.tool()
    def note(text: str) -> str:
        """Keep a note."""
        notes.append(text)
        return f"kept {text}"

    app = server.streamable_http_app(json_response=True, stateless_http=True)
    async with (
        serve(accounts.app()) as login_url,
        serve(accounts.guard(app)) as server_url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
        open_task_group() as group,
    ):
        client = OAuthClient(
            title="crm",
            token_url=f"{login_url}/token",
            client_id=CLIENT_ID,
            client_secret=SECRET,
            resource=f"{server_url}/mcp",
        )
        pages = CodeFlow(client, url=f"{login_url}/authorize?lang=en", redirect_url=REDIRECT_URL)
        codes = DeviceFlow(client, url=f"{login_url}/device")
        login, store = McpLogin(pages if flow == "code" else codes), MemoryAccountStore()
        tokens = AccountTokens(
            store,
            login.service,
            group=group,
            refresh=login.refresh,
            now=lambda: datetime.now(UTC),
        )
        registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
        crm = McpServer(url=f"{server_url}/mcp", headers={}, is_personal=True, accounts=tokens)
        broker = McpBroker(registry=registry, servers={"crm": crm}, http=http)
        api = FastAPI(openapi_url=None)
        api.include_router(broker.router())
        async with serve(api) as url:
            yield World(accounts, login, store, registry, url, notes)


async def test_each_acts_as_themselves(world: World) -> None:
    """Their tokens are asked for that server, and reach it and nothing in the sandbox."""
    await world.link(ANN, "ann")
    await world.link(BEN, "ben")
    for owner, name in ((ANN, "ann"), (BEN, "ben")):
        world.accounts.reached_by.clear()
        said = await world.call(owner, "note", text=f"of {name}")
        assert said["result"]["content"][0]["text"] == f"kept of {name}"
        assert set(world.accounts.reached_by) == {name}
    assert world.effects == ["tools/call"] * 2
    (resource,) = world.accounts.resources
    assert resource.endswith("/mcp")


@pytest.mark.parametrize("owner", [BEN, None])
async def test_who_has_no_account_is_told_how_to_link_one(
    world: World, owner: Owner | None
) -> None:
    """By a server that stands in for it; another person's account is not used, nor is anything in the record."""
    await world.link(ANN, "ann")
    began = await world.ask(owner, "initialize", protocolVersion="2025-06-18")
    assert began["result"]["serverInfo"]["name"] == "crm"
    (tool,) = (await world.ask(owner, "tools/list"))["result"]["tools"]
    assert "`/orion link crm`" in tool["description"]
    said = await world.call(owner, str(tool["name"]))
    assert "`/orion link crm`" in said["result"]["content"][0]["text"]
    assert "error" in await world.call(owner, "note", text="as nobody")
    assert (world.notes, world.accounts.reached_by, world.effects) == ([], [], [])


async def test_tokens_are_refreshed(world: World) -> None:
    """Before they expire; the pair before is dead then."""
    world.accounts.lifetime_s = 60
    old = await world.link(ANN, "ann")
    world.accounts.lifetime_s = 3600
    said = await world.call(ANN, "note", text="later")
    assert said["result"]["content"][0]["text"] == "kept later"
    kept = await world.store.get(ANN, mcp_service("crm"))
    assert kept is not None
    assert kept.tokens != old.tokens
    assert old.tokens.access not in world.accounts.tokens


async def test_a_token_that_was_replaced_while_people_were_asked(world: World) -> None:
    """The new one is sent, and the account is still there."""
    await world.link(ANN, "ann")

    async def replace() -> None:
        world.accounts.revoke("ann")
        await world.link(ANN, "anew")

    world.before_effect = replace
    said = await world.call(ANN, "note", text="after a yes")
    assert said["result"]["content"][0]["text"] == "kept after a yes"
    assert set(world.accounts.reached_by) == {"anew"}


async def test_who_unlinks_while_people_are_asked_is_not_acted_for(world: World) -> None:
    """Nor is the server asked as nobody, with what the operator has it sent."""
    await world.link(ANN, "ann")
    world.before_effect = lambda: world.store.unlink(ANN, mcp_service("crm"))
    assert (await world.call(ANN, "note", text="no"))["status"] == 403
    assert (world.notes, world.accounts.reached_by) == ([], [])


async def test_what_is_taken_back_is_forgotten(world: World) -> None:
    """At the first refusal; from then on it is told how to link it."""
    await world.link(ANN, "ann")
    world.accounts.revoke("ann")
    assert (await world.call(ANN, "note", text="no"))["status"] == 401
    assert await world.store.get(ANN, mcp_service("crm")) is None
    (tool,) = (await world.ask(ANN, "tools/list"))["result"]["tools"]
    assert tool["name"] == "how_to_link"
    assert world.notes == []


async def test_a_refresh_that_is_refused(world: World) -> None:
    world.accounts.lifetime_s = 60
    await world.link(ANN, "ann")
    world.accounts.revoke("ann")
    (tool,) = (await world.ask(ANN, "tools/list"))["result"]["tools"]
    assert tool["name"] == "how_to_link"
    assert await world.store.get(ANN, mcp_service("crm")) is None


async def test_an_authorization_server_that_is_away_unlinks_nobody(world: World) -> None:
    world.accounts.lifetime_s = 60
    account = await world.link(ANN, "ann")
    world.accounts.is_down = True
    said = await world.call(ANN, "note", text="no")
    assert said["status"] == 502
    assert "whose account at crm" in str(said)
    assert await world.store.get(ANN, mcp_service("crm")) == account


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("access_denied", "you have said no to it at crm"),
        ("something_new", "crm did not give a token .something_new."),
    ],
)
async def test_why_it_is_not_linked(error: str, words: str) -> None:
    async with open_world("device") as world:
        code = await world.login.begin()
        world.accounts.refuse(code.user_code, error)
        with pytest.raises(LinkError, match=words):
            await world.login.ask(code, "")


async def test_what_is_brought_back_is_no_good() -> None:
    """No, another person's, another link's, used before, cut, or nothing of the kind: no account comes of it."""
    async with open_world("code") as world:
        code, other = await world.login.begin(), await world.login.begin()
        for address in ("", "crm", "http://[", f"{REDIRECT_URL}?code=1", f"{REDIRECT_URL}?state="):
            with pytest.raises(LinkError, match="not the address"):
                await world.login.ask(code, address)
        no = await world.accounts.say_yes(code.verification_url, login="")
        with pytest.raises(LinkError, match="you have said no to it at crm"):
            await world.login.ask(code, no)
        of_another = await world.accounts.say_yes(other.verification_url, login="ann")
        with pytest.raises(LinkError, match="not the address"):
            await world.login.ask(code, of_another)
        forged = of_another.replace(other.user_code, code.user_code)
        with pytest.raises(LinkError, match="invalid_grant"):
            await world.login.ask(code, forged)
        yes = await world.accounts.say_yes(code.verification_url, login="ann")
        as_slack_has_it = f"<{yes.replace('&', '&amp;')}>"
        assert isinstance(await world.login.ask(code, as_slack_has_it), TokenPair)
        with pytest.raises(LinkError, match="invalid_grant"):
            await world.login.ask(code, yes)
        assert code.secret not in repr(code) + code.verification_url

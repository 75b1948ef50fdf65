"""How long a push may take, and until when it may change something."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from app.approvals.rules import Deed, DeedKind
from app.brokerage.broker import create_broker_app
from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.git import GitBroker, GitTimings
from app.brokerage.registry import GrantRegistry, RequestKind
from app.runs.testing import (
    Before,
    GrantHooks,
    ModelCall,
    ModelGrant,
    NotApprovedError,
    RepositoryGrant,
    RunApprovals,
    RunId,
    StillWaitingError,
    SystemClock,
    git_token,
)
from app.web.hosting import serve
from tests.plain_http import NO_TLS

OWN = "orion/quick-fox"
LINE = f"{'0' * 40} {'2' * 40} refs/heads/{OWN}\0report-status".encode()
COMMANDS = f"{len(LINE) + 4:04x}".encode() + LINE + b"0000"


@dataclass
class World:
    registry: GrantRegistry
    broker: str
    grant: ModelGrant
    slug: str
    pushed: list[bytes]
    """What came to the server."""
    calls: list[ModelCall] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)

    async def on_effect(self) -> None:
        self.effects.append("noted")

    @asynccontextmanager
    async def pushing(
        self, token: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A push that has said nothing yet."""
        url = httpx.URL(self.broker)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"POST /broker/git/{self.slug}/git-receive-pack HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {git_token(token)}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        try:
            yield reader, writer
        finally:
            writer.close()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@asynccontextmanager
async def open_world(timings: GitTimings | None = None) -> AsyncIterator[World]:
    pushed: list[bytes] = []
    server = FastAPI()

    @server.post("/acme/api.git/git-receive-pack")
    async def receive(request: Request) -> Response:
        pushed.append(await request.body())
        return Response(b"0000")

    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with serve(server) as url, httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        repository = RepositoryGrant(url=f"{url}/acme/api.git", branch=OWN)
        grant = ModelGrant(
            run_id=RunId("run_1"),
            models=("m",),
            expires_at=datetime.now(UTC) + timedelta(minutes=5),
            repository=repository,
        )
        credentials = GitCredentials(remotes=GitRemotes(github_url=url))
        broker = GitBroker(
            registry=registry,
            credentials=credentials,
            http=http,
            max_bytes=1000,
            timings=timings or GitTimings(),
        )
        slug = repository.url.removeprefix("http://")
        async with serve(create_broker_app(broker.router())) as address, asyncio.timeout(10):
            yield World(registry=registry, broker=address, grant=grant, slug=slug, pushed=pushed)


@pytest.mark.parametrize("timings", [GitTimings(max_silence_s=0.2), GitTimings(max_passage_s=0.2)])
@pytest.mark.parametrize(("said", "status"), [(b"", b"408"), (_chunk(COMMANDS), b"502")])
async def test_a_push_that_does_not_go_on_is_not_waited_for(
    timings: GitTimings, said: bytes, status: bytes
) -> None:
    """Neither before it has said what it changes nor after; it keeps no place."""
    async with open_world(timings) as world:
        with world.registry.open_grant(
            world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
        ) as token:
            async with world.pushing(token) as (reader, writer):
                writer.write(said)
                assert (await reader.readline()).startswith(b"HTTP/1.1 " + status)
        assert world.pushed == []


async def test_a_push_that_was_begun_in_time_changes_nothing_after_its_run(world: World) -> None:
    """git is told no; in time, the same passes."""
    with world.registry.open_grant(
        world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
    ) as token:
        async with world.pushing(token) as (reader, writer):
            writer.write(_chunk(COMMANDS) + _chunk(b"PACK") + _chunk(b""))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert (world.pushed, world.effects) == ([COMMANDS + b"PACK"], ["noted"])
    with ExitStack() as going:
        grant = world.registry.open_grant(
            world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
        )
        token = going.enter_context(grant)
        async with world.pushing(token) as (reader, writer):
            writer.write(_chunk(COMMANDS[:9]))
            while not world.registry._live[world.grant.run_id].in_flight[RequestKind.GIT]:
                await asyncio.sleep(0.01)
            going.close()
            writer.write(_chunk(COMMANDS[9:]) + _chunk(b"PACK") + _chunk(b""))
            await reader.readuntil(b"the run is over")
    assert (len(world.pushed), world.effects) == (1, ["noted"])


@pytest.mark.parametrize("answer", [None, StillWaitingError("waiting"), NotApprovedError("no")])
async def test_a_push_waits_for_a_yes(world: World, answer: Exception | None) -> None:
    """For exactly these commits on that branch; without one nothing comes to the server, and git is told why."""
    deeds: list[Deed] = []

    async def approve(deed: Deed, before: Before) -> None:
        deeds.append(deed)
        if answer is not None:
            raise answer
        assert await before()

    async def state_of(kind: DeedKind) -> None:
        """It has asked for nothing."""

    approvals = RunApprovals(approve=approve, covers=bool, state_of=state_of, max_wait_s=0)
    hooks = GrantHooks(on_call=world.calls.append, on_effect=world.on_effect, approvals=approvals)
    with world.registry.open_grant(world.grant, hooks) as token:
        async with world.pushing(token) as (reader, writer):
            writer.write(_chunk(COMMANDS) + b"0\r\n\r\n")
            said = await reader.read(4096)
    assert b"200 OK" in said
    (deed,) = deeds
    assert (deed.kind, deed.target) == ("push", world.slug.removesuffix(".git"))
    assert deed.arguments == {"branch": OWN, "commit": "2" * 40}
    if answer is None:
        assert (world.effects, len(world.pushed)) == (["noted"], 1)
    else:
        assert (world.effects, world.pushed) == ([], [])
        assert f"({answer})".encode() in said or str(answer).encode() in said

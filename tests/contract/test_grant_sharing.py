"""Behind a load balancer: a run token that one process has signed is good at the broker of each other one on the same PostgreSQL."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from fastapi import FastAPI, Request, Response

from app.aio import open_task_group
from app.approvals.rules import Deed, DeedKind
from app.brokerage.registry import (
    LiveGrant,
    RequestKind,
    create_token,
    let_do,
    record_effect,
)
from app.brokerage.sharing import CHECKED_S, TAKE_INTERVAL_S
from app.errors import LeaseLostError
from app.runs.testing import (
    Before,
    Budgets,
    GrantHooks,
    ModelCall,
    ModelGrant,
    NotApprovedError,
    Run,
    RunApprovals,
    RunId,
    RunState,
    Spending,
)
from app.store.runs import open_store
from app.web.hosting import serve
from tests.building import make_run
from tests.postgres import unreachable
from tests.shared_broker import MODEL, OPERATORS_KEY, SECRET, Process, open_process
from tests.waiting import POLL_S, until

pytestmark = pytest.mark.postgresql

COST = 20
"""Micro-dollars of one answer."""
PERSONS_KEY = "sk-of-a-person-22222"


@dataclass
class Model:
    """Answers at once, or what says "think" when it is let go."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    thinking: int = 0
    keys: list[str] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/messages", self.answer, methods=["POST"])
        return app

    async def answer(self, request: Request) -> Response:
        self.keys.append(request.headers["x-api-key"])
        if b"think" in await request.body():
            self.thinking += 1
            await self.released.wait()
        usage = '{"input_tokens":10,"output_tokens":10}'
        return Response(
            f'{{"type":"message","usage":{usage}}}', headers={"content-type": "application/json"}
        )


@dataclass(kw_only=True)
class World:
    one: Process
    other: Process
    model: Model
    url: str
    model_url: str
    run: Run


@asynccontextmanager
async def open_world(url: str, budgets: Budgets | None = None) -> AsyncIterator[World]:
    model = Model()
    async with (
        serve(model.app()) as model_url,
        open_process(url, model_url, budgets=budgets) as one,
        open_process(url, model_url, budgets=budgets) as other,
    ):
        run = replace(make_run(), attempt=1)
        await one.store.add(run)
        yield World(one=one, other=other, model=model, url=url, model_url=model_url, run=run)


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    async with open_world(postgres_url) as world:
        yield world


def grant_of(run: Run, *, max_calls: int = 1000, protocol: str = "") -> ModelGrant:
    return ModelGrant(
        run_id=run.id,
        models=(MODEL,),
        expires_at=datetime.now(UTC) + timedelta(minutes=5),
        max_calls=max_calls,
        own_key=PERSONS_KEY if protocol else "",
        own_key_protocol=protocol,
    )


@dataclass(kw_only=True)
class Executed:
    """A run that a process executes, and what it hears of it."""

    spending: Spending
    calls: list[ModelCall] = field(default_factory=list)
    effects: int = 0
    is_lost: bool = False
    """Another process has taken the run over."""

    def count(self, call: ModelCall) -> None:
        self.calls.append(self.spending.count(call))

    async def note_effect(self) -> None:
        self.effects += 1
        if self.is_lost:
            raise LeaseLostError("another process has the run")

    @property
    def hooks(self) -> GrantHooks:
        return GrantHooks(
            on_call=self.count, on_effect=self.note_effect, refusal=self.spending.find_refusal
        )


async def until_so(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(POLL_S)


async def begin(process: Process, run: Run) -> Executed:
    return Executed(spending=await process.ledger.begin_spending(run))


async def test_a_token_is_good_at_the_other_process(world: World) -> None:
    """The model is asked with the operator's key; who executes the run counts the call, once, and charges it."""
    executed = await begin(world.one, world.run)
    async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
        assert (await world.other.ask(token)).status_code == 200
        assert (await world.one.ask(token)).status_code == 200
        await until(lambda: len(executed.calls) == 2, timeout_s=3 * TAKE_INTERVAL_S)
    assert executed.spending.cost == 2 * COST
    await world.one.ledger.write()
    assert len(await world.one.store.spending.of_run(world.run.id)) == 2
    assert world.model.keys == [OPERATORS_KEY, OPERATORS_KEY]
    assert not await _reported(world)


async def test_what_came_by_the_other_process_is_counted_before_the_run_ends(world: World) -> None:
    """Also when it ends as soon as its agent has the answer, and nobody has looked in between."""
    executed = await begin(world.one, world.run)
    async with (
        open_process(world.url, world.model_url, late_s=0.5) as busy,
        world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token,
    ):
        assert (await busy.ask(token)).status_code == 200
    assert [call.cost for call in executed.calls] == [COST]


async def test_a_run_that_is_over_asks_no_more(world: World) -> None:
    """At the other process within two seconds."""
    executed = await begin(world.one, world.run)
    async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
        assert (await world.other.ask(token)).status_code == 200
    await asyncio.sleep(CHECKED_S)
    refused = await world.other.ask(token)
    assert refused.status_code == 401
    assert "the run is over" in refused.text


async def test_tokens_of_another_key_or_of_no_run_are_refused(world: World) -> None:
    """A forged one is not looked up at all; one of a run that nobody executes is of no use."""
    grant = grant_of(world.run)
    executed = await begin(world.one, world.run)
    async with (
        world.one.broker.open_grant(grant, executed.hooks) as token,
        open_process(world.url, world.model_url, key=b"x" * 32) as stranger,
    ):
        assert "not a run token" in (await stranger.ask(token)).text
        assert (await world.other.ask(create_token(b"x" * 32, grant))).status_code == 401
        nobodys = create_token(
            (await world.one.store.installation.load()).signing_key,
            replace(grant, run_id=RunId("run_of_nobody")),
        )
        assert "the run is over" in (await world.other.ask(nobodys)).text
    assert not world.model.keys


async def test_a_call_that_ends_after_its_run_is_charged_all_the_same(world: World) -> None:
    """By the process that let it through, as nobody executes the run any more."""
    executed = await begin(world.one, world.run)
    async with open_task_group() as group:
        async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
            late = group.create_task(world.other.ask(token, "think"))
            await until(lambda: world.model.thinking == 1, timeout_s=5)
        world.model.released.set()
        assert (await late).status_code == 200
    assert not executed.calls

    async def charged() -> bool:
        await world.other.ledger.write()
        return len(await world.one.store.spending.of_run(world.run.id)) == 1

    await until_so(charged)


async def test_a_runs_budget_is_one_for_all_processes(postgres_url: str) -> None:
    """What came by the other one counts, there and here, after some seconds."""
    async with open_world(postgres_url, Budgets(run=2 * COST)) as world:
        executed = await begin(world.one, world.run)
        async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
            for _ in range(2):
                assert (await world.other.ask(token)).status_code == 200
            await until(lambda: len(executed.calls) == 2, timeout_s=3 * TAKE_INTERVAL_S)
            await world.one.ledger.write()
            assert (await world.one.ask(token)).status_code == 403
            await asyncio.sleep(CHECKED_S)
            refused = await world.other.ask(token)
            assert refused.status_code == 403
            assert "that one may cost" in refused.text


async def test_calls_in_flight_at_the_other_process_hold_their_cost(postgres_url: str) -> None:
    """Also when the grant has been looked up again meanwhile: with 429 clients try again."""
    async with open_world(postgres_url, Budgets(run=15)) as world:
        executed = await begin(world.one, world.run)
        async with (
            open_task_group() as group,
            world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token,
        ):
            thinking = group.create_task(world.other.ask(token, "think " * 10))
            await until(lambda: world.model.thinking == 1, timeout_s=5)
            await asyncio.sleep(CHECKED_S)
            assert (await world.other.ask(token)).status_code == 429
            world.model.released.set()
            assert (await thinking).status_code == 200


async def test_the_number_of_calls_is_one_for_all_processes(world: World) -> None:
    executed = await begin(world.one, world.run)
    async with world.one.broker.open_grant(
        grant_of(world.run, max_calls=2), executed.hooks
    ) as token:
        for _ in range(2):
            assert (await world.other.ask(token)).status_code == 200
        await until(lambda: len(executed.calls) == 2, timeout_s=3 * TAKE_INTERVAL_S)
        assert "has used its 2 model calls" in (await world.one.ask(token)).text
        assert "has used its 2 model calls" in (await world.other.ask(token)).text


async def test_a_persons_own_key_is_used_there_too(world: World) -> None:
    """It is read from where people's keys are sealed: it does not stand in the grant's row."""
    request = world.run.request
    keys = {"anthropic": PERSONS_KEY}
    await world.one.store.own_keys([SECRET]).change(request.team, request.user, keys)
    executed = await begin(world.one, world.run)
    grant = grant_of(world.run, protocol="anthropic")
    async with world.one.broker.open_grant(grant, executed.hooks) as token:
        found = await world.other.store.grants.find(world.run.id)
        assert (await world.other.ask(token)).status_code == 200
    assert found == replace(grant, own_key="")
    assert world.model.keys == [PERSONS_KEY]


async def test_an_effect_is_recorded_and_told_to_who_executes_the_run(world: World) -> None:
    """What the other process lets through may change something outside: the run is not repeated after that."""
    executed = await begin(world.one, world.run)
    async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
        live = await _admit(world.other, token)
        assert await record_effect(live)
        record = await world.one.store.get(world.run.id)
        assert record is not None
        assert record.has_outside_effect
        await until(lambda: executed.effects == 1, timeout_s=3 * TAKE_INTERVAL_S)
        await asyncio.sleep(TAKE_INTERVAL_S)
    assert executed.effects == 1
    assert not await record_effect(replace(live, has_effect=False))  # let in while it was going


async def test_who_has_lost_a_run_goes_on_with_others(world: World) -> None:
    """An effect that cannot be recorded any more is let through nowhere, and ends nothing else."""
    executed = await begin(world.one, world.run)
    executed.is_lost = True
    async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
        assert not await record_effect(await _admit(world.one, token))
        await world.other.store.grants.note_effect(world.run.id)
        await until(lambda: executed.effects > 1, timeout_s=3 * TAKE_INTERVAL_S)
        assert (await world.other.ask(token)).status_code == 200
        await until(lambda: len(executed.calls) == 1, timeout_s=3 * TAKE_INTERVAL_S)


@pytest.mark.long
async def test_a_database_that_is_away_ends_no_agent(world: World) -> None:
    """Who was let in before goes on; who is not known is told to try again. What came meanwhile is counted afterwards."""
    executed = await begin(world.one, world.run)
    async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
        assert (await world.other.ask(token)).status_code == 200
        async with open_process(world.url, world.model_url) as fresh:
            with unreachable(world.url):
                await asyncio.sleep(CHECKED_S)
                assert (await world.other.ask(token)).status_code == 200
                assert (await fresh.ask(token)).status_code == 503
            assert (await fresh.ask(token)).status_code == 200
        await until(lambda: len(executed.calls) == 3, timeout_s=10)


async def test_who_takes_a_run_over_hears_what_came_by_others_meanwhile(world: World) -> None:
    """Its first process has died with its grant open: requests are let through until the second opens it, and counted there."""
    grant = grant_of(world.run)
    await world.one.store.grants.open(grant, process="dead")
    key = (await world.one.store.installation.load()).signing_key
    assert (await world.other.ask(create_token(key, grant))).status_code == 200
    await until_so(partial(_reported, world))
    executed = await begin(world.one, replace(world.run, attempt=2))
    async with world.one.broker.open_grant(grant, executed.hooks):
        await until(lambda: len(executed.calls) == 1, timeout_s=3 * TAKE_INTERVAL_S)
        # It was frozen, not dead.
        assert not (await world.one.store.grants.close(grant.run_id, process="dead")).calls
        assert await world.other.store.grants.find(grant.run_id)


async def test_a_grant_is_kept_between_slices_at_every_process(postgres_url: str) -> None:
    """Also when the process of the last slice is gone: the agent notices nothing, and the next slice pays for all of it."""
    async with open_world(postgres_url) as world:
        grant = grant_of(world.run)
        async with open_process(world.url, world.model_url) as first:
            before = await begin(first, world.run)
            async with first.broker.open_grant(grant, before.hooks) as token:
                first.broker.keep(grant.run_id)
            assert (await first.ask(token)).status_code == 200
            assert (await world.other.ask(token)).status_code == 200
        await asyncio.sleep(CHECKED_S)
        assert (await world.other.ask(token)).status_code == 200
        after = await begin(world.one, world.run)
        async with world.one.broker.open_grant(grant, after.hooks):
            await until(lambda: len(after.calls) == 3, timeout_s=3 * TAKE_INTERVAL_S)
        assert not before.calls


@pytest.mark.parametrize("models", [(MODEL,), ()], ids=["models", "tools alone"])
async def test_what_is_not_allowed_is_let_through_nowhere(
    postgres_url: str, models: tuple[str, ...]
) -> None:
    """Rules hold at a process that did not begin the run, also where it had an account of it, and between two slices."""
    asked: list[tuple[RunId, str]] = []

    def approvals_of(run: Run) -> RunApprovals:
        async def approve(deed: Deed, before: Before) -> None:
            del before
            asked.append((run.id, deed.target))
            raise NotApprovedError("not allowed here")

        async def state_of(kind: DeedKind) -> None:
            del kind

        return RunApprovals(
            approve=approve, covers=lambda _deed: True, state_of=state_of, max_wait_s=60
        )

    deed = Deed(kind=DeedKind.TOOL, target="notes.note")
    async with open_world(postgres_url) as world:
        executed, grant = await begin(world.one, world.run), grant_of(world.run)
        grant = replace(grant, models=models)
        asking = partial(open_process, world.url, world.model_url, approvals_of=approvals_of)
        async with asking() as first, asking() as other:
            async with first.broker.open_grant(grant, executed.hooks) as token:
                for _ in range(2):
                    with pytest.raises(NotApprovedError):
                        await let_do(await _admit(other, token), deed)
                    await asyncio.sleep(CHECKED_S)
                first.broker.keep(grant.run_id)
            for process in (first, other):
                with pytest.raises(NotApprovedError):
                    await let_do(await _admit(process, token), deed)
    assert asked == [(world.run.id, "notes.note")] * 4
    record = await _record(postgres_url, world.run.id)
    assert not record.has_outside_effect


@pytest.mark.parametrize("is_same", [True, False], ids=["same process", "other process"])
async def test_what_is_in_flight_when_a_slice_ends_is_counted_by_the_next(
    world: World, *, is_same: bool
) -> None:
    grant = grant_of(world.run)
    following = world.one if is_same else world.other
    before, after = await begin(world.one, world.run), await begin(following, world.run)
    async with open_task_group() as group:
        async with world.one.broker.open_grant(grant, before.hooks) as token:
            asked = group.create_task(world.one.ask(token, "think"))
            await until(lambda: world.model.thinking == 1, timeout_s=5)
            world.one.broker.keep(grant.run_id)
        async with following.broker.open_grant(grant, after.hooks):
            world.model.released.set()
            assert (await asked).status_code == 200
            await until(lambda: len(after.calls) == 1, timeout_s=5)
    assert not before.calls


async def test_a_kept_grant_ends_with_its_run(world: World) -> None:
    """Whoever ended the run, without another slice of it: within two seconds."""
    executed = await begin(world.one, world.run)
    grant = grant_of(world.run)
    async with world.one.broker.open_grant(grant, executed.hooks) as token:
        world.one.broker.keep(grant.run_id)
    assert (await world.other.ask(token)).status_code == 200
    await world.one.store.update(world.run.id, state=RunState.FAILED)
    await asyncio.sleep(CHECKED_S)
    assert (await world.one.ask(token)).status_code == 401
    assert (await world.other.ask(token)).status_code == 401


async def test_a_slice_that_fails_keeps_no_grant(world: World) -> None:
    executed = await begin(world.one, world.run)

    async def fail() -> None:
        async with world.one.broker.open_grant(grant_of(world.run), executed.hooks):
            world.one.broker.keep(world.run.id)
            raise RuntimeError("in its midst")

    with pytest.raises(RuntimeError, match="in its midst"):
        await fail()
    assert await world.other.store.grants.find(world.run.id) is None


async def test_an_ended_process_leaves_nothing_unreported(postgres_url: str) -> None:
    """What it let through last is told before it is gone."""
    async with open_world(postgres_url) as world:
        executed = await begin(world.one, world.run)
        async with world.one.broker.open_grant(grant_of(world.run), executed.hooks) as token:
            began = time.monotonic()
            async with open_process(world.url, world.model_url) as third:
                assert (await third.ask(token)).status_code == 200
            assert time.monotonic() - began < 10
        assert len(executed.calls) == 1


async def _admit(process: Process, token: str) -> LiveGrant:
    request = Request({"type": "http", "headers": [(b"x-api-key", token.encode())], "state": {}})
    async with AsyncExitStack() as held:
        live = await process.registry.admit(request, held, RequestKind.MCP)
    assert isinstance(live, LiveGrant)
    return live


async def _record(url: str, run_id: RunId) -> Run:
    async with open_store(url) as store:
        run = await store.get(run_id)
    assert run is not None
    return run


async def _reported(world: World) -> bool:
    """Whether a call waits to be taken; which does not take it."""
    with world.one.store._database.engine.connect() as connection:
        query = "SELECT count(*) FROM orion_grant_calls"
        return bool(connection.exec_driver_sql(query).scalar_one())

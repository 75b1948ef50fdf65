"""What every store of approvals promises, as two processes have it."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.aio import open_task_group
from app.approvals.records import (
    MAX_WAITING_OF_RUN,
    Approval,
    ApprovalAnswer,
    ApprovalState,
    ApprovalStore,
    TooManyWaitingError,
    Unanswered,
)
from app.approvals.rules import DeedKind
from app.audit.records import AuditQuery
from app.errors import LeaseLostError
from app.runs.testing import RunState
from app.store.memory import MemoryRunStore
from app.store.runs import open_store
from tests.building import make_entry, make_run

T = TypeVar("T")
RUN = make_run()
NOW = datetime.now(UTC)


def asked(**changes: Any) -> Approval:
    wanted = Approval(
        id="",
        run_id=RUN.id,
        team=RUN.request.team,
        channel=RUN.request.channel,
        thread_key=RUN.thread.key,
        thread_ts=RUN.thread.thread_ts,
        asker=RUN.request.user,
        kind=DeedKind.TOOL,
        target="linear.create_issue",
        shown='{\n  "title": "\u00e9\u6f22"\n}',
        digest="d" * 64,
        rule='tool = "linear.*"',
        by=("asker", "U9"),
        people=1,
        asked_at=NOW,
        until=NOW + timedelta(hours=1),
    )
    return replace(wanted, **changes)


def yes(user: str = "U1") -> ApprovalAnswer:
    return ApprovalAnswer(user=user, is_allowed=True, at=NOW)


def no(user: str = "U1") -> ApprovalAnswer:
    return ApprovalAnswer(user=user, is_allowed=False, at=NOW)


async def at_once(*work: Coroutine[None, None, T]) -> list[T]:
    async with open_task_group() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


@dataclass(frozen=True)
class Stores:
    one: ApprovalStore
    other: ApprovalStore
    runs: Any


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        alone = MemoryRunStore()
        await alone.add(RUN)
        yield Stores(alone.approvals, alone.approvals, alone)
        return
    is_sqlite = request.param == "sqlite"
    where = tmp_path / "orion.db" if is_sqlite else request.getfixturevalue("postgres_url")
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(open_store(where)) for _ in range(2)]
        await first.leases.join()
        await first.add(RUN)
        yield Stores(first.approvals, second.approvals, first)


async def test_whoever_asks_for_the_same_again_asks_for_the_same_row(stores: Stores) -> None:
    """Also from another process; what was used is asked for anew, and anything else is a row of its own."""
    first = await stores.one.ask(asked())
    assert (first.number, first.state) == (1, ApprovalState.WAITING)
    assert await stores.other.ask(asked(until=NOW)) == first
    assert await stores.other.get(first.id) == first
    other = await stores.one.ask(asked(digest="e" * 64))
    assert (other.number, other.id != first.id) == (2, True)
    await stores.one.answer(first.id, yes(), is_for_thread=False)
    assert (await stores.other.ask(asked())).id == first.id
    assert await stores.one.use(first.id)
    again = await stores.other.ask(asked())
    assert (again.number, again.state) == (3, ApprovalState.WAITING)
    assert [one.number for one in await stores.other.of_run(RUN.id)] == [1, 2, 3]
    assert await stores.other.of_run("run_other") == []


async def test_an_attempt_that_was_given_up_asks_for_nothing(stores: Stores) -> None:
    """Its process was frozen: another has begun the run anew, and what that asked for may have been done."""
    first = await stores.one.ask(asked(), attempt=RUN.attempt)
    with pytest.raises(LeaseLostError):
        await stores.other.ask(asked(), attempt=RUN.attempt + 1)
    await stores.one.answer(first.id, yes(), is_for_thread=False)
    assert await stores.one.use(first.id)
    await stores.runs.update(RUN.id, attempt=RUN.attempt + 1)
    with pytest.raises(LeaseLostError):
        await stores.other.ask(asked(), attempt=RUN.attempt)
    assert [one.number for one in await stores.one.of_run(RUN.id)] == [1]


async def test_an_answer_that_counts_is_kept_with_why_it_may(stores: Stores) -> None:
    """In one transaction; one that comes too late leaves nothing."""
    row = await stores.one.ask(asked())
    counted, late = make_entry(id="counted"), make_entry(id="late")
    await stores.other.answer(row.id, no(), is_for_thread=False, entry=counted)
    await stores.one.answer(row.id, yes(), is_for_thread=False, entry=late)
    assert await stores.runs.audit.find(AuditQuery()) == [counted]


async def test_a_question_keeps_its_answer(stores: Stores) -> None:
    """Also once its agent knows it, whoever asks for it again."""
    question = asked(
        kind=DeedKind.QUESTION, rule="", options=("\u00e9", "b"), otherwise="c", by=("asker",)
    )
    first = await stores.one.ask(question)
    said = replace(yes(), text="\u6f22\nb")
    answered = await stores.other.answer(first.id, said, is_for_thread=False)
    assert isinstance(answered, Approval)
    assert (answered.state, answered.answers) == (ApprovalState.ALLOWED, (said,))
    assert await stores.one.use(first.id)
    again = await stores.other.ask(question)
    assert (again.id, again.state, again.answers) == (first.id, ApprovalState.USED, (said,))
    assert (again.options, again.otherwise) == (("\u00e9", "b"), "c")


async def test_many_at_once_ask_for_rows_with_numbers_of_their_own(stores: Stores) -> None:
    """And for one row where they want the same."""
    wanted = [asked(digest=f"{number % 4}" * 64) for number in range(12)]
    both = (stores.one, stores.other)
    rows = await at_once(*(both[at % 2].ask(one) for at, one in enumerate(wanted)))
    assert sorted({row.number for row in rows}) == [1, 2, 3, 4]
    assert len({row.id for row in rows}) == 4


async def test_one_run_has_not_more_than_twenty_waiting(stores: Stores) -> None:
    """However many it asks for at once; what has its answer makes room. Whoever waits reads all of theirs together."""
    wanted = [asked(digest=f"{number:064}") for number in range(MAX_WAITING_OF_RUN + 2)]

    async def ask(one: Approval) -> Approval | None:
        try:
            return await stores.one.ask(one)
        except TooManyWaitingError:
            return None

    rows = [row for row in await at_once(*map(ask, wanted)) if row is not None]
    assert len(rows) == MAX_WAITING_OF_RUN
    await stores.other.answer(rows[0].id, no(), is_for_thread=False)
    assert await ask(asked()) is not None
    found = await stores.other.get_all([*(row.id for row in rows), "apv_none"])
    assert set(found) == {row.id for row in rows}
    assert found[rows[0].id].state is ApprovalState.DENIED
    assert len(await stores.one.waiting(RUN.request.team)) == MAX_WAITING_OF_RUN


async def test_a_yes_lets_one_through_once(stores: Stores) -> None:
    """However many want it at the same time."""
    row = await stores.one.ask(asked())
    assert not await stores.one.use(row.id)
    answered = await stores.other.answer(row.id, yes(), is_for_thread=False)
    assert isinstance(answered, Approval)
    assert (answered.state, answered.answers) == (ApprovalState.ALLOWED, (yes(),))
    uses = await at_once(*(store.use(row.id) for store in (stores.one, stores.other) * 4))
    assert sum(uses) == 1
    found = await stores.one.get(row.id)
    assert found is not None
    assert found.state is ApprovalState.USED


async def test_one_no_is_enough_and_the_first_answer_counts(stores: Stores) -> None:
    """A denied one is never used; what comes later changes nothing."""
    row = await stores.one.ask(asked(people=2))
    first = await stores.one.answer(row.id, yes("U1"), is_for_thread=False)
    assert isinstance(first, Approval)
    assert first.state is ApprovalState.WAITING
    assert await stores.other.answer(row.id, yes("U1"), is_for_thread=False) is Unanswered.AGAIN
    denied = await stores.other.answer(row.id, no("U2"), is_for_thread=False)
    assert isinstance(denied, Approval)
    assert (denied.state, denied.ended_at) == (ApprovalState.DENIED, NOW)
    assert await stores.one.answer(row.id, yes("U3"), is_for_thread=False) is Unanswered.OVER
    assert not await stores.one.use(row.id)
    assert (await stores.one.ask(asked(people=2))).state is ApprovalState.DENIED
    assert await stores.one.answer("apv_none", yes(), is_for_thread=False) is Unanswered.UNKNOWN


async def test_two_people_must_say_yes(stores: Stores) -> None:
    """Two who press at once are two."""
    row = await stores.one.ask(asked(people=2))
    said = await at_once(
        stores.one.answer(row.id, yes("U1"), is_for_thread=False),
        stores.other.answer(row.id, yes("U2"), is_for_thread=False),
    )
    states = {one.state for one in said if isinstance(one, Approval)}
    assert states == {ApprovalState.WAITING, ApprovalState.ALLOWED}
    assert await stores.one.use(row.id)


async def test_too_late_is_expired_and_no_refusal(stores: Stores) -> None:
    """By the database's clock; nobody can answer it any more, and its card is to be told."""
    row = await stores.one.ask(asked(until=NOW - timedelta(seconds=1)))
    kept = await stores.one.ask(asked(digest="e" * 64))
    assert await stores.one.answer(row.id, yes(), is_for_thread=False) is Unanswered.OVER
    untold = {one.id: one.state for one in await stores.other.close()}
    assert untold == {row.id: ApprovalState.EXPIRED, kept.id: ApprovalState.WAITING}
    assert not await stores.one.use(row.id)


async def test_what_a_run_leaves_is_withdrawn(stores: Stores) -> None:
    """Allowed or not, it is not done any more; what was denied stays that."""
    waiting = await stores.one.ask(asked())
    allowed = await stores.one.ask(asked(digest="e" * 64))
    await stores.one.answer(allowed.id, yes(), is_for_thread=False)
    denied = await stores.one.ask(asked(digest="f" * 64))
    await stores.one.answer(denied.id, no(), is_for_thread=False)
    await stores.runs.update(RUN.id, state=RunState.STOPPED, ended_at=NOW)
    states = {one.id: one.state for one in await stores.other.close()}
    gone = ApprovalState.WITHDRAWN
    assert states == {waiting.id: gone, allowed.id: gone, denied.id: ApprovalState.DENIED}
    assert not await stores.one.use(allowed.id)


async def test_a_card_is_brought_up_to_date_by_one(stores: Stores) -> None:
    """Until it shows all; an answer that comes while it is shown makes it untold again."""
    row = await stores.one.ask(asked())
    claims = [await store.claim_telling(row.id) for store in (stores.one, stores.other)]
    assert claims == [True, False]
    assert await stores.one.tell(row, card_ts="9.1")
    assert await stores.other.close() == []
    assert await stores.other.claim_telling(row.id)
    shown = await stores.other.get(row.id)
    assert shown is not None
    assert (shown.card_ts, shown.is_told) == ("9.1", True)
    answered = await stores.one.answer(row.id, yes(), is_for_thread=False)
    assert not await stores.other.tell(shown, card_ts="9.1")
    assert isinstance(answered, Approval)
    (untold,) = await stores.one.close()
    assert untold.state is ApprovalState.ALLOWED
    assert await stores.one.tell(untold, card_ts="9.1")
    assert await stores.one.close() == []


async def test_a_yes_for_the_thread_holds_there_for_that_rule_and_target(stores: Stores) -> None:
    """Of what its asker asks; nowhere else."""
    row = await stores.one.ask(asked())
    key = {"asker": row.asker, "rule": row.rule, "target": row.target}
    assert not await stores.other.is_allowed_in(row.thread_key, **key)
    await stores.one.answer(row.id, yes(), is_for_thread=True)
    assert await stores.other.is_allowed_in(row.thread_key, **key)
    await stores.one.use(row.id)
    assert await stores.other.is_allowed_in(row.thread_key, **key)
    assert not await stores.other.is_allowed_in("other", **key)
    for name in key:
        assert not await stores.other.is_allowed_in(row.thread_key, **{**key, name: "x"})


async def test_what_rules_have_decided_is_counted(stores: Stores) -> None:
    """By their words, over all processes."""
    for store in (stores.one, stores.other, stores.one):
        await store.count({'push = "*"': 2, 'own_key = "*"': 1})
    await stores.other.count({'tool = "a.b"': 1})
    counted = {'push = "*"': 6, 'own_key = "*"': 3, 'tool = "a.b"': 1}
    assert dict(await stores.one.hits()) == counted


async def test_what_waits_in_a_team_is_found(stores: Stores) -> None:
    """For its home tab."""
    row = await stores.one.ask(asked())
    done = await stores.one.ask(asked(digest="e" * 64))
    await stores.one.answer(done.id, no(), is_for_thread=False)
    assert [one.id for one in await stores.other.waiting(row.team)] == [row.id]
    assert await stores.other.waiting("T-other") == []

"""What waits beside a run, counted by the database: under load, reading all waiting runs for each new one took half of the process's time."""

from datetime import datetime

import sqlalchemy as sa

from app.errors import ErrorCode
from app.runs.model import (
    STARTED_STATES,
    UNFINISHED_STATES,
    WAITING_STATES,
    QueuePosition,
    QueueStats,
    Run,
)
from app.runs.request import Addressing
from app.store.tables import Now, UtcTime, in_states, processes, runs

REFUSAL_CODES = frozenset({ErrorCode.NOT_ALLOWED, ErrorCode.REQUEST_INVALID, ErrorCode.QUEUE_FULL})
"""Runs that ended in these before they began did not cost anything, so they do not count against a person's hourly limit."""

_UNFINISHED = in_states(runs, UNFINISHED_STATES)


def count_queue(
    connection: sa.Connection, run: Run, *, since: datetime, capacity: int
) -> QueueStats:
    """Returns what `RunStore.queue_stats` does, of a run that is stored; all processes that work have the same capacity."""
    request = run.request
    values = {
        "run_id": run.id,
        "team": request.team,
        "user": request.user,
        "since": since,
        "thread_key": run.thread.key,
        "message_ts": request.message_ts,
    }
    row = connection.execute(_COUNTS, values).one()
    capacity *= max(1, row.working)
    ahead: int = 0
    if row.unfinished > capacity:  # else it waits for nobody elsewhere
        ahead = connection.execute(_COUNT_ELSEWHERE, {"run_id": run.id}).scalar_one()
    return QueueStats(
        runs_of_user=row.of_user,
        unfinished=row.unfinished,
        position=position_of(
            ahead_in_thread=row.in_thread, ahead_elsewhere=ahead, capacity=capacity
        ),
    )


def position_of(*, ahead_in_thread: int, ahead_elsewhere: int, capacity: int) -> QueuePosition:
    """Returns what it waits for. `ahead_elsewhere`: all runs that go or come before it, of which `capacity` may go at once."""
    return QueuePosition(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=max(0, ahead_elsewhere - capacity + 1)
    )


def _counts() -> sa.Select[int, int, int, int]:
    """Selects, for a stored run, its person's runs, all that are unfinished, those before it in its thread, and how many processes work."""
    of_user = (
        (runs.c.team == sa.bindparam("team"))
        & (runs.c.user == sa.bindparam("user"))
        & (runs.c.created_at >= sa.bindparam("since", type_=UtcTime))
        & sa.or_(
            runs.c.error_code.is_(None),
            runs.c.error_code.not_in(REFUSAL_CODES),
            runs.c.attempt > 0,
        )
    )
    addressing = sa.type_coerce(runs.c.request, sa.JSON)["addressing"].as_string()
    in_thread = (
        _UNFINISHED
        # Not what may be for others: nobody shall see that it was looked at.
        & sa.func.coalesce(addressing, "").not_in([Addressing.NONE, Addressing.OTHERS])
        & (runs.c.id != sa.bindparam("run_id"))
        & (runs.c.thread_key == sa.bindparam("thread_key"))
        & (runs.c.message_ts < sa.bindparam("message_ts"))
    )

    lives = processes.c.is_working & (processes.c.alive_until >= Now())
    working = sa.select(sa.func.count()).select_from(processes).where(lives)

    def count(which: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        # Each by an index of its own, which one condition over all of them would not be.
        return sa.select(sa.func.count()).select_from(runs).where(which).scalar_subquery()

    return sa.select(
        count(of_user).label("of_user"),
        count(_UNFINISHED).label("unfinished"),
        count(in_thread).label("in_thread"),
        working.scalar_subquery().label("working"),
    )


def _count_elsewhere() -> sa.Select[int]:
    """Selects the count of runs that go or come before a run when people take turns: as the one in memory counts."""
    own, before = runs.alias("own"), runs.alias("before")
    turn = (
        sa.select(sa.func.count())
        .where(
            in_states(before, UNFINISHED_STATES),
            before.c.team == own.c.team,
            before.c.user == own.c.user,
            _order(before) < _order(own),
        )
        .correlate(own)
        .scalar_subquery()
        .label("turn")
    )
    asker = (
        sa.select(turn, own.c.created_at, in_states(own, STARTED_STATES).label("goes"))
        .where(own.c.id == sa.bindparam("run_id"))
        .cte("asker")
    )
    # By state first, as the index has them: SQLite sorts nothing then, and looks at each run once.
    is_older = runs.c.created_at < sa.select(asker.c.created_at).scalar_subquery()
    alike = (
        sa.select(
            *(runs.c.state, runs.c.team, runs.c.user),
            sa.func.count().label("count"),
            sa.func.count().filter(is_older).label("older"),
        )
        .where(_UNFINISHED)
        .group_by(runs.c.state, runs.c.team, runs.c.user)
        .subquery("alike")
    )
    is_waiting = in_states(alike, WAITING_STATES)

    def add_up(
        counts: sa.ColumnElement[int], which: sa.ColumnElement[bool]
    ) -> sa.ColumnElement[int]:
        return sa.func.coalesce(sa.func.sum(counts).filter(which), 0)

    # Counted by person: ranking every run that waits took most of the time when a thousand did.
    person = (
        sa.select(
            add_up(alike.c.count, ~is_waiting).label("going"),
            add_up(alike.c.count, is_waiting).label("waiting"),
            add_up(alike.c.older, is_waiting).label("longer"),
        )
        .group_by(alike.c.team, alike.c.user)
        .cte("person")
    )
    turns = asker.c.turn - person.c.going
    in_earlier_rounds = sa.case(
        (turns <= 0, 0), (turns < person.c.waiting, turns), else_=person.c.waiting
    )
    in_same_round = sa.case(((turns >= 0) & (person.c.longer > turns), 1), else_=0)
    ahead = sa.func.sum(person.c.going + in_earlier_rounds + in_same_round)
    itself = sa.func.max(sa.case((asker.c.goes, 1), else_=0))
    counted = sa.func.coalesce(ahead - itself, 0)
    return sa.select(counted).select_from(asker.join(person, sa.true()))


def _order(one: sa.FromClause) -> sa.Tuple:
    """Returns by what a person's own runs come one after the other: those that go were the first."""
    is_waiting = sa.case((in_states(one, WAITING_STATES), 1), else_=0)
    return sa.tuple_(is_waiting, one.c.created_at, one.c.id)


_COUNTS, _COUNT_ELSEWHERE = _counts(), _count_elsewhere()
"""Made once: it takes longer to compose them than to carry them out."""

"""Questions about runs that every store answers the same way; pure."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from app.errors import ErrorCode
from app.runs.model import STARTED_STATES, WAITING_STATES, QueuePosition, Run, RunId

REFUSAL_CODES = frozenset({ErrorCode.NOT_ALLOWED, ErrorCode.REQUEST_INVALID, ErrorCode.QUEUE_FULL})
"""Runs that ended in these before they began did not cost anything, so they do not count against a person's hourly limit."""


def position_among(run: Run, unfinished: Iterable[Run], *, capacity: int) -> QueuePosition:
    """What `run` waits for, given the unfinished runs (itself included)."""
    unfinished = list(unfinished)
    ahead_in_thread = sum(
        other.thread == run.thread and other.request.message_ts < run.request.message_ts
        for other in unfinished
    )
    ranks = _ranks(unfinished)
    elsewhere = sum(
        other.state in STARTED_STATES
        or (other.state in WAITING_STATES and ranks[other.id] < ranks[run.id])
        for other in unfinished
        if other.id != run.id
    )
    return position_of(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=elsewhere, capacity=capacity
    )


def _ranks(unfinished: Iterable[Run]) -> dict[RunId, tuple[int, datetime]]:
    """In which round of turns each run goes or went, and since when it waits: a person's runs that go were the first ones.

    A guess at what the dispatcher will do, good enough to tell a person: who was served last is not in the records.
    """
    ranks: dict[RunId, tuple[int, datetime]] = {}
    rounds: Counter[tuple[str, str]] = Counter()
    for run in sorted(
        unfinished, key=lambda run: (run.state in WAITING_STATES, run.created_at, run.id)
    ):
        user = (run.request.team, run.request.user)
        ranks[run.id] = (rounds[user], run.created_at)
        rounds[user] += 1
    return ranks


def position_of(*, ahead_in_thread: int, ahead_elsewhere: int, capacity: int) -> QueuePosition:
    """`ahead_elsewhere`: all runs that go or come before it, of which `capacity` may go at once."""
    return QueuePosition(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=max(0, ahead_elsewhere - capacity + 1)
    )

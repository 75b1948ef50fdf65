"""Questions about runs that every store answers the same way; pure."""

from collections.abc import Iterable

from app.errors import ErrorCode
from app.runs.model import WAITING_STATES, QueuePosition, Run, RunState

REFUSAL_CODES = frozenset({ErrorCode.NOT_ALLOWED, ErrorCode.REQUEST_INVALID, ErrorCode.QUEUE_FULL})
"""Runs that ended in these did not cost anything, so they do not count against a person's hourly limit."""
STARTED_STATES = frozenset({RunState.RUNNING, RunState.ANSWERING})


def position_among(run: Run, unfinished: Iterable[Run], *, capacity: int) -> QueuePosition:
    """What `run` waits for, given the unfinished runs (itself included or not)."""
    others = [other for other in unfinished if other.id != run.id]
    ahead_in_thread = sum(
        other.thread == run.thread and other.request.message_ts < run.request.message_ts
        for other in others
    )
    running = sum(other.state in STARTED_STATES for other in others)
    waiting = sum(
        other.state in WAITING_STATES and other.created_at < run.created_at for other in others
    )
    return position_of(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=running + waiting, capacity=capacity
    )


def position_of(*, ahead_in_thread: int, ahead_elsewhere: int, capacity: int) -> QueuePosition:
    """`ahead_elsewhere`: all runs that go or wait longer, of which `capacity` may go at once."""
    return QueuePosition(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=max(0, ahead_elsewhere - capacity + 1)
    )

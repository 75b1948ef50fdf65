"""Questions about runs that every store answers the same way; pure."""

from collections.abc import Iterable

from app.errors import ErrorCode
from app.runs.model import QueuePosition, Run, RunState

REFUSAL_CODES = frozenset({ErrorCode.NOT_ALLOWED, ErrorCode.REQUEST_INVALID, ErrorCode.QUEUE_FULL})
"""Runs that ended in these did not cost anything, so they do not count against a person's hourly limit."""


def position_among(run: Run, unfinished: Iterable[Run], *, capacity: int) -> QueuePosition:
    """What `run` waits for, given the unfinished runs (itself included or not)."""
    others = [other for other in unfinished if other.id != run.id]
    ahead_in_thread = sum(
        other.thread == run.thread and other.request.message_ts < run.request.message_ts
        for other in others
    )
    running = sum(other.state in (RunState.RUNNING, RunState.ANSWERING) for other in others)
    waiting = sum(
        other.state in (RunState.ACCEPTED, RunState.QUEUED, RunState.PLACED)
        and other.created_at < run.created_at
        for other in others
    )
    return QueuePosition(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=max(0, running + waiting - capacity + 1)
    )

"""A run whose thinking message stands, and what becomes of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from app.runs.testing import Outcome, QueuePosition, Run, RunState

if TYPE_CHECKING:
    from app.slack.connection import SlackConnection

FREE = QueuePosition()
DONE = Outcome(state=RunState.SUCCEEDED, answer="The answer.", duration_s=12, steps=3)


async def place(slack: SlackConnection, run: Run, *, maybe_posted: bool = False) -> Run:
    ts = await slack.replies.place(run, position=FREE, maybe_posted=maybe_posted)
    assert ts is not None
    return dataclasses.replace(run, reply_ts=ts)

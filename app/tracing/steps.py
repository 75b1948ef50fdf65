"""The steps of a run, as its trace has them, kept with its record: what operators see where there is no Langfuse."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from app.aio import TaskGroup
from app.log import get_logger
from app.runs.model import RunFileKind
from app.runs.ports import RunFiles
from app.runs.request import RunId

MAX_STEPS: Final = 500
"""Of a slice, and of a run when it is read; the newest ones."""
MODEL_CALL: Final = "model-call"
"""What a trace calls one; among the steps that are kept it has its model's name."""
SAVE_TIMEOUT_S: Final = 3.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step that is over."""

    name: str
    parent: str = ""
    """The step that it is a part of: tools and model calls are of their agent's."""
    started_at: datetime
    ended_at: datetime
    error: str = ""
    """A code, or what an exception is called; empty = it did not fail."""

    @property
    def duration_s(self) -> float:
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


_STEPS: Final = TypeAdapter(tuple[StepRecord, ...])


def read_steps(kept: str) -> Sequence[StepRecord]:
    """Returns the steps of a kept text, in order: the newest 500 at most; none of an empty one."""
    lines = [_STEPS.validate_json(line) for line in kept.split("\n") if line]
    return [step for line in lines for step in line][-MAX_STEPS:]


def write_steps(steps: Sequence[StepRecord]) -> str:
    """Returns those of one slice as the line that is kept of it."""
    return _STEPS.dump_json(tuple(steps[-MAX_STEPS:])).decode()


class StepKeeper:
    """Keeps steps in the background: a kill may lose those of the last slice, and nothing waits for them."""

    def __init__(self, files: RunFiles, *, group: TaskGroup) -> None:
        """`group`: outlives the runs."""
        self._files = files
        self._group = group

    def keep(self, run_id: RunId, steps: Sequence[StepRecord]) -> None:
        """Adds steps of a slice to those that are kept of its run; returns at once."""
        if steps:
            self._group.create_task(self._add(run_id, steps), name=f"steps-{run_id}")

    async def _add(self, run_id: RunId, steps: Sequence[StepRecord]) -> None:
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await self._files.append(run_id, RunFileKind.STEPS, write_steps(steps))
        except Exception as exc:  # noqa: BLE001 - they are for people who look; nothing of a run may fail for them
            _log.warning("steps.not_kept", run_id=run_id, error=type(exc).__name__)

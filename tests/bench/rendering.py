"""How fast answers become messages, against a Markdown library that only parses them: the gallery, again and again."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from app.runs.delivery import shorten
from app.runs.testing import Outcome, Run, RunState
from app.slack.blocks import render_plain_result, render_result
from app.slack.markdown import tail_markdown
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.building import make_request
from tests.gallery.answers import ANSWERS
from tests.gallery.oracle import PARSER

TARGET_MB_S: Final = 5.0
ROUNDS: Final = 3


async def measure_rendering(bench: Bench) -> Sequence[Row]:
    """In this process, one after the other, by its processor time."""
    del bench
    text = "\n\n".join(ANSWERS.values())
    request = make_request()
    run = Run(id=request.run_id, request=request, created_at=datetime.now(UTC))
    ended = Outcome(state=RunState.SUCCEEDED, answer="", duration_s=12)
    parsed = _speed(PARSER.parse, text, rounds=1)
    works: dict[str, Callable[[str], object]] = {
        "messages of an answer": lambda one: render_result(
            run, dataclasses.replace(ended, answer=one)
        ),
        "the same without blocks": lambda one: render_plain_result(
            run, dataclasses.replace(ended, answer=one)
        ),
        "the end of a growing answer": lambda one: tail_markdown(one, max_chars=3_000),
        "what of it becomes files": shorten,
    }
    return [
        Row(
            figure=f"rendered, {name} (baseline: parsed by markdown-it-py)",
            unit="MB/s",
            orion=_speed(work, text, rounds=ROUNDS),
            baseline=parsed,
            sign=">=",
            target=TARGET_MB_S,
        )
        for name, work in works.items()
    ]


def _speed(work: Callable[[str], object], text: str, *, rounds: int) -> float:
    """Megabytes a second, of the best round."""
    size = len(text.encode())
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        work(text)
        taken.append(time.process_time() - started)
    return size / min(taken) / 1e6

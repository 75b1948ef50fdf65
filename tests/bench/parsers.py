"""How fast what an agent prints is read, against reading its JSON alone: recorded turns with tools, again and again."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from agent_scripts.registry import agent_names, create_adapter
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.unit.agent_scripts.transcripts import recorded

AGENTS: Final = tuple(
    name for name in agent_names() if any(Path("tests/data", name).glob("[0-9]*-tools.jsonl"))
)
"""Of those that were recorded."""
_BYTES: Final = 10_000_000
TARGET_MB_S: Final = 5.0


async def measure_parsers(bench: Bench) -> Sequence[Row]:
    """In this process, one after the other."""
    del bench
    return [_measure(agent) for agent in AGENTS]


def _measure(agent: str) -> Row:
    lines, _ = recorded(agent, "tools")
    adapter = create_adapter(agent)

    def parse() -> None:
        parser = adapter.parser()
        for line in lines:
            parser.feed(line)

    def load() -> None:
        for line in lines:
            json.loads(line)

    size = sum(len(line) for line in lines)
    return Row(
        figure=f"output read, {agent} (baseline: its JSON alone)",
        unit="MB/s",
        orion=_speed(parse, size),
        baseline=_speed(load, size),
        sign=">=",
        target=TARGET_MB_S,
    )


def _speed(work: Callable[[], None], size: int) -> float:
    """Megabytes a second."""
    rounds = max(1, _BYTES // size)
    started = time.perf_counter()
    for _ in range(rounds):
        work()
    return rounds * size / (time.perf_counter() - started) / 1e6

"""How long and how often things are measured: the whole bench takes an hour, its quick form minutes."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    ack_rounds: int = 3
    ack_seconds: float = 10.0
    ack_rate: float = 50.0
    saturation_rounds: int = 3
    saturation_seconds: float = 4.0
    in_flight: int = 32
    placing_seconds: float = 15.0
    placing_rate: float = 2.0
    turn_pairs: int = 5
    idle_seconds: float = 20.0
    crowd: int = 1000
    """Runs in flight at once."""
    crowd_seconds: float = 10.0
    costs_seconds: float = 30.0
    worker_runs: int = 96
    """In the batch that one and three workers do."""
    real_runs: int = 18
    """In the same, of mentions in real sandboxes."""
    at_once_rounds: int = 3
    worker_ends: int = 3
    """Workers killed, and as many ended."""
    stored_runs: int = 100_000
    """In the store that operators look at."""
    looks: int = 5
    """Starts of a terminal program, and first paints of a page."""
    presses: int = 40
    """Of each key."""


FULL = Scale()
QUICK = Scale(
    ack_rounds=1,
    ack_seconds=2.0,
    saturation_rounds=1,
    saturation_seconds=1.0,
    placing_seconds=3.0,
    turn_pairs=2,
    idle_seconds=5.0,
    crowd=50,
    crowd_seconds=2.0,
    costs_seconds=5.0,
    worker_runs=24,
    real_runs=6,
    at_once_rounds=1,
    worker_ends=1,
    stored_runs=2_000,
    looks=2,
    presses=8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every part gets."""

    directory: Path
    """Of this run of the bench; gone after it."""
    scale: Scale

"""What an operator sees of a pool of prepared sandboxes."""

from dataclasses import dataclass

from typing_extensions import override


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """Of one pool, since its start."""

    provider: str
    size: int
    waiting: int
    taken: int
    missed: int
    """Runs that found none and made their own."""
    failed: int
    """Sandboxes that could not be prepared, ended while they waited, or did not take their task."""
    is_stopped: bool
    """Too many failures in a row: it is left alone for a while."""

    @override
    def __str__(self) -> str:
        stopped = ", stopped for a while after failures" if self.is_stopped else ""
        return (
            f"{self.provider}: {self.waiting} of {self.size} wait; taken {self.taken}, "
            f"missed {self.missed}, failed {self.failed}{stopped}"
        )

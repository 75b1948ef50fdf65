"""Has accepted runs placed, and hands out those that wait, by their records alone; after a crash, too."""

__all__ = [
    "dispatcher",
    "lease",
    "slices",
    "vercel_queue",
]

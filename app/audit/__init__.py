"""Who was allowed or refused what, and why: what is kept of each such decision."""

__all__ = [
    "records",
]

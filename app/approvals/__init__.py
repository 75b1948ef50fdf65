"""What an agent needs people for in mid-run: a yes to what it would do outside, by rules, or an answer to its question; and the record of what waits."""

__all__ = [
    "questions",
    "records",
    "rules",
    "showing",
]

"""Accounts that people have linked, in whose name a run acts outside: what is kept of one, and how its tokens stay good."""

__all__ = [
    "links",
    "records",
    "tokens",
]

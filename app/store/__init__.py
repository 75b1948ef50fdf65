"""Where runs, sessions, files and sums are kept, and what people have set."""

__all__ = [
    "engine",
    "memory",
    "migrations",
    "runs",
    "seal",
    "settings",
    "slack_facts",
]

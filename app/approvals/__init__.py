"""What an agent may do outside only after a person has said yes: the rules, and the record of what waits for an answer."""

__all__ = [
    "records",
    "rules",
]

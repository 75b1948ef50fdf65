"""Has accepted runs placed, and makes them move, again after a crash: by a durable engine, or by the records alone."""

__all__ = [
    "durable",
]

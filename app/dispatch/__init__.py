"""Makes runs move, and move again after a crash: the durable engine, and one without memory."""

__all__ = [
    "durable",
]

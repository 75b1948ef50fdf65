"""Which hosts a sandbox may reach beside the broker, and the proxy through which it does."""

__all__ = [
    "addresses",
    "hosts",
    "proxy",
    "sets",
    "tally",
    "upstream",
]

"""Pull requests that Orion has opened, and what of them is news to the thread that they came from."""

__all__ = [
    "news",
    "records",
]

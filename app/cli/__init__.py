"""The command line `orion`."""

from app.cli.root import main

__all__ = ["main"]

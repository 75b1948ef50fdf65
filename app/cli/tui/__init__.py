"""`orion tui`: a deployment in a terminal."""

__all__ = ["board", "office", "windows"]

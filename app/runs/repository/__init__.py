"""The repository that a thread works in: its names, its clone before the agent, its branch and pull request after it."""

__all__ = ["checkout", "names", "preparation", "tasks"]

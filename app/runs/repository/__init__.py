"""The repository that a thread works in: its names, its clone before the agent, its branch and pull request after it, and what becomes of that."""

__all__ = ["checkout", "names", "preparation", "tasks", "watch"]

"""A fake Slack, offline models and a page of traces: Orion without any account, and the server of the tests."""

__all__ = [
    "model",
    "slack",
    "stack",
]

"""A trace of each run, in Langfuse or nowhere."""

__all__ = [
    "langfuse",
    "measured",
    "null",
    "steps",
]

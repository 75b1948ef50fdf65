"""The agents, a folder each, and Claude's models by the short names that people write."""

from collections.abc import Mapping

DEFAULT_MODEL = "claude-sonnet-5-5"
_SHORT_NAMES: Mapping[str, str] = {
    "sonnet": DEFAULT_MODEL,
    "opus": "claude-opus-5-5",
    "haiku": "claude-haiku-5-5",
    "fable": "claude-fable-5-2",
}
"""Ours, so that the run's token can name the model: those of a command line change with its version and its server's flags.

Source: anthropic 2.12.0, types/model.py, read 2026-11.
"""


def claude_model(name: str) -> str:
    """Returns the id that a short name stands for; any other name is its own."""
    return _SHORT_NAMES.get(name.lower(), name)

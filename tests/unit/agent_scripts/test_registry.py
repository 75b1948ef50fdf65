"""The names of the agents."""

import pytest

from agent_scripts.registry import create_adapter


@pytest.mark.parametrize("agent", ["anthropic", "claude", "copilot"])
def test_agents_of_claude_know_its_short_names(agent: str) -> None:
    """People write `model=opus`, whichever of them answers; what is no short name stays as it is."""
    adapter = create_adapter(agent)
    assert adapter.model_id("opus") == "claude-opus-5-5"
    assert adapter.model_id("Sonnet") == adapter.spec.default_model
    assert adapter.model_id("claude-opus-4-1") == "claude-opus-4-1"


def test_unknown_name_lists_the_known() -> None:
    """The error says what would have worked."""
    with pytest.raises(ValueError, match="unknown agent 'clippy'; known: anthropic"):
        create_adapter("clippy")

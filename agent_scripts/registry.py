"""Agent names and where their adapters live; imported on first use."""

from importlib import import_module

from agent_scripts.adapter import AgentAdapter

_ADAPTERS = {
    "anthropic": "agent_scripts.adapters.anthropic_sdk:AnthropicAdapter",
    "claude": "agent_scripts.adapters.claude_code:ClaudeCodeAdapter",
    "codex": "agent_scripts.adapters.codex:CodexAdapter",
    "copilot": "agent_scripts.adapters.copilot:CopilotAdapter",
    "cursor": "agent_scripts.adapters.cursor:CursorAdapter",
    "gemini": "agent_scripts.adapters.gemini:GeminiAdapter",
    "opencode": "agent_scripts.adapters.opencode:OpenCodeAdapter",
}

_AMBIGUOUS = frozenset({"anthropic", "cursor"})


def agent_names() -> tuple[str, ...]:
    """Known agents, sorted."""
    return tuple(sorted(_ADAPTERS))


def ambiguous_names() -> frozenset[str]:
    """Agents whose names developers also write when they mean none: a cursor in a list, Anthropic's SDK."""
    return _AMBIGUOUS


def create_adapter(name: str) -> AgentAdapter:
    """The adapter of that name.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    try:
        module, _, attribute = _ADAPTERS[name].partition(":")
    except KeyError:
        raise ValueError(f"unknown agent {name!r}; known: {', '.join(agent_names())}") from None
    adapter: AgentAdapter = getattr(import_module(module), attribute)()
    return adapter

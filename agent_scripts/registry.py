"""Agent names and where each is described; imported on first use."""

from collections.abc import Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Final

from agent_scripts.adapter import AgentAdapter, AgentSpec

_AGENTS: Final[Mapping[str, str]] = {
    "anthropic": "agent_scripts.agents.anthropic:SPEC",
    "claude": "agent_scripts.agents.claude:SPEC",
    "codex": "agent_scripts.agents.codex:SPEC",
    "copilot": "agent_scripts.agents.copilot:SPEC",
    "cursor": "agent_scripts.agents.cursor:SPEC",
    "gemini": "agent_scripts.agents.gemini:SPEC",
    "opencode": "agent_scripts.agents.opencode:SPEC",
}


def agent_names() -> tuple[str, ...]:
    """Returns the known agents, sorted."""
    return tuple(sorted(_AGENTS))


@cache
def agent_spec(name: str) -> AgentSpec:
    """Returns what is known of the agent of that name. Raises: ValueError: unknown name; the message lists the known ones."""
    try:
        place = _AGENTS[name]
    except KeyError:
        raise ValueError(f"unknown agent {name!r}; known: {', '.join(agent_names())}") from None
    spec: AgentSpec = resolve_name(place)
    return spec


def agent_specs() -> tuple[AgentSpec, ...]:
    """Returns the specs of all known agents, sorted by name."""
    return tuple(map(agent_spec, agent_names()))


def create_adapter(name: str) -> AgentAdapter:
    """Returns the adapter of that name. Raises: ValueError: unknown name; the message lists the known ones."""
    adapter: AgentAdapter = resolve_name(agent_spec(name).adapter)()
    return adapter


def ambiguous_names() -> frozenset[str]:
    """Returns the agents whose names developers also write when they mean none."""
    return frozenset(spec.name for spec in agent_specs() if spec.is_ambiguous)

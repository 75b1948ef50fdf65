"""Which agents this Orion can run, and with which models; made from the settings."""

from collections.abc import Callable, Mapping

from agent_scripts.adapter import ModelProtocol
from agent_scripts.registry import agent_names, create_adapter
from app.config import Settings
from app.runs.choice import AgentOffer, Source

HAS_CREDENTIALS: Mapping[ModelProtocol, Callable[[Settings], bool]] = {
    ModelProtocol.ANTHROPIC: lambda settings: (
        settings.anthropic_api_key is not None or settings.ai_gateway_api_key is not None
    ),
}
"""Whether there is a key for the models of a protocol; those that are not named have none."""


def usable_agents(settings: Settings) -> Mapping[str, AgentOffer]:
    """All agents whose credentials are set, by name; the default one in any case."""
    return {
        name: _offer(settings, name)
        for name in agent_names()
        if name == settings.orion_agent or _has_credentials(settings, name)
    }


def describe_agents(settings: Settings) -> str:
    """One line: the default agent first, each with its model."""
    agents = usable_agents(settings)
    names = sorted(agents, key=lambda name: (name != settings.orion_agent, name))
    shown = [f"{name} with {agents[name].model_id(agents[name].model)}" for name in names]
    default, *others = shown
    return f"{default}; on request: {', '.join(others)}" if others else default


def _has_credentials(settings: Settings, name: str) -> bool:
    found = HAS_CREDENTIALS.get(create_adapter(name).protocol)
    return found is not None and found(settings)


def _offer(settings: Settings, name: str) -> AgentOffer:
    adapter, model = create_adapter(name), settings.model_of(name)
    return AgentOffer(
        model=model or adapter.default_model,
        source=Source.SETTING if model else Source.DEFAULT,
        models=settings.models_of(name),
        model_id=adapter.model_id,
    )

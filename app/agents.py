"""Which agents this Orion can run, and with which models; made from the settings."""

from collections.abc import Mapping

from agent_scripts.adapter import AgentPaths
from agent_scripts.registry import agent_names, create_adapter
from app.config import Settings
from app.model_access import missing_for_agent
from app.runs.choice import AgentOffer, Source


def usable_agents(settings: Settings) -> Mapping[str, AgentOffer]:
    """All agents whose credentials are set, by name; the default one in any case."""
    return {
        name: _offer(settings, name)
        for name in agent_names()
        if name == settings.orion_agent or not missing_for_agent(settings, name)
    }


def describe_agent(name: str) -> str:
    """The agent, and what of it is installed: `codex, @openai/codex 0.169.0`."""
    anywhere = AgentPaths(work="/", home="/", run="/", environment="/")
    product = create_adapter(name).environment(anywhere).product
    return f"{name}, {product or 'the version that its maker gives out'}"


def describe_agents(settings: Settings) -> str:
    """One line: the default agent first, each with its model."""
    agents = usable_agents(settings)
    names = sorted(agents, key=lambda name: (name != settings.orion_agent, name))
    shown = [f"{name} with {agents[name].model_id(agents[name].model)}" for name in names]
    default, *others = shown
    return f"{default}; on request: {', '.join(others)}" if others else default


def _offer(settings: Settings, name: str) -> AgentOffer:
    adapter, model = create_adapter(name), settings.model_of(name)
    return AgentOffer(
        model=model or adapter.default_model,
        source=Source.SETTING if model else Source.DEFAULT,
        models=settings.models_of(name),
        model_id=adapter.model_id,
    )

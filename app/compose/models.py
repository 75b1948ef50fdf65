"""Which agents and models this Orion has, where each protocol's models are, and with which key: the gateway first, where it speaks the protocol, then the provider."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from agent_scripts.adapter import AgentPaths, ModelProtocol
from agent_scripts.registry import agent_names, agent_spec, create_adapter
from app.approvals.rules import Decision, DeedKind
from app.runs.policy import FollowUps
from app.runs.selection import CatalogAgent, Source
from app.settings.agents import ModelsSettings
from app.settings.settings import Settings
from sandbox_runtime.registry import provider_spec

MAX_SLICE_S = 100.0
"""Of a function that may take 300 s: a run that begins late in a slice, and its end, are in it, too."""
GATEWAY_URL = "https://ai-gateway.vercel.sh"
"""Source: Vercel AI Gateway docs, Anthropic-compatible API, read 2026-11."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One provider of models, or the gateway."""

    base_url: str
    key: str = field(repr=False)
    is_gateway: bool


_BY_GATEWAY = frozenset({ModelProtocol.ANTHROPIC, ModelProtocol.OPENAI})
"""Source: Vercel AI Gateway, "Anthropic Messages API" and "OpenAI Responses API" (and Chat Completions); it has no Gemini API.
Read 2026-11."""
_MAKERS: Mapping[ModelProtocol, str] = {
    ModelProtocol.ANTHROPIC: "anthropic/",
    ModelProtocol.OPENAI: "openai/",
}
"""What the gateway puts before the vendors' own names of models."""


def model_source(settings: Settings, protocol: ModelProtocol) -> ModelSource | None:
    """Returns whom requests of that protocol are sent to; None when there is no key for it."""
    gateway = settings.models.ai_gateway_api_key
    if gateway is not None and protocol in _BY_GATEWAY:
        return ModelSource(base_url=GATEWAY_URL, key=gateway.get_secret_value(), is_gateway=True)
    key, _ = _at_vendor(settings, protocol)
    return None if key is None else own_source(settings, protocol, key.get_secret_value())


def key_field(protocol: ModelProtocol) -> str:
    """Returns the field of the settings with the vendor's key."""
    return f"{protocol}_api_key"


def own_source(settings: Settings, protocol: ModelProtocol, key: str) -> ModelSource:
    """Returns where a person's own key is used: the provider itself, past the gateway."""
    _, base_url = _at_vendor(settings, protocol)
    return ModelSource(base_url=base_url, key=key, is_gateway=False)


def _at_vendor(settings: Settings, protocol: ModelProtocol) -> tuple[SecretStr | None, str]:
    match protocol:
        case ModelProtocol.ANTHROPIC:
            return settings.models.anthropic_api_key, settings.models.anthropic_base_url
        case ModelProtocol.OPENAI:
            return settings.models.openai_api_key, settings.models.openai_base_url
        case ModelProtocol.GEMINI:
            return settings.models.gemini_api_key, settings.models.gemini_base_url


def name_at(source: ModelSource, protocol: ModelProtocol, model: str) -> str:
    """Returns what that source calls the model: the operator's names are the gateway's or the vendor's, people's own keys are at the vendor.

    Source: Vercel AI Gateway, "OpenAI Codex" (with `openai/`) and "Claude Code" (with the vendor's names), read 2026-11.
    """
    maker = _MAKERS.get(protocol, "")
    if source.is_gateway:
        is_bare = protocol is ModelProtocol.OPENAI and "/" not in model
        return maker + model if is_bare else model
    is_vendor = source.base_url == ModelsSettings.model_fields[f"{protocol}_base_url"].default
    return model.removeprefix(maker) if is_vendor else model


def injected_headers(protocol: ModelProtocol, key: str) -> Mapping[str, str]:
    """Returns what a sandbox's network adds where there is no broker: each header in which an agent may send what stands in for the key."""
    bearer = f"Bearer {key}"
    match protocol:
        case ModelProtocol.ANTHROPIC:
            return {"x-api-key": key, "authorization": bearer}
        case ModelProtocol.OPENAI:
            return {"authorization": bearer}
        case ModelProtocol.GEMINI:
            return {"x-goog-api-key": key}


def asks_by_itself(agent: str) -> bool:
    """Whether its requests do not pass the broker."""
    return agent_spec(agent).protocol is None


def key_for_sandbox(settings: Settings, agent: str) -> str:
    """Returns the key of an agent that asks by itself, where the operator lets it into the sandbox; otherwise empty."""
    if not asks_by_itself(agent) or missing_for_agent(settings, agent):
        return ""
    key = settings.agents.own_keys.get(agent)
    return key.get_secret_value() if key else ""


def needs_own_key(settings: Settings, agent: str) -> bool:
    """Whether it can only be asked by people who give a key of their own."""
    protocol = agent_spec(agent).protocol
    return protocol is not None and model_source(settings, protocol) is None


def missing_for_agent(settings: Settings, agent: str) -> str:
    """Returns what is not set that the agent needs, as a line; empty when it can work."""
    protocol = agent_spec(agent).protocol
    if protocol is None:
        return settings.agents.missing_for_own_key(agent)
    if model_source(settings, protocol) is not None or settings.models.own_keys_secret is not None:
        return ""
    direct = key_field(protocol).upper()
    names = f"{direct} or AI_GATEWAY_API_KEY" if protocol in _BY_GATEWAY else direct
    return f"{names}: missing; a key for the model"


def follow_up_rules(settings: Settings) -> Collection[FollowUps]:
    """Returns the rules that hold in any channel."""
    return {settings.follow_ups.follow_ups, *settings.toml.channel_follow_ups.values()}


def is_judging(settings: Settings) -> bool:
    """Whether a model judges anywhere for whom replies are."""
    return FollowUps.JUDGED in follow_up_rules(settings)


def missing_for_serving(settings: Settings, *, hears: bool = True) -> tuple[str, ...]:
    """Returns what a process cannot do without, as lines; `hears`: of Slack's events."""
    model = missing_for_agent(settings, settings.agents.default)
    of_functions = _missing_for_functions(settings) if settings.service.is_function else ()
    return (
        *settings.slack.find_missing(hears=hears),
        *([model] if model else []),
        *_missing_for_judging(settings),
        *of_functions,
    )


def _missing_for_judging(settings: Settings) -> Iterator[str]:
    if is_judging(settings) and model_source(settings, ModelProtocol.ANTHROPIC) is None:
        yield "ANTHROPIC_API_KEY or AI_GATEWAY_API_KEY: missing; a key for the model that judges replies (ORION_FOLLOW_UPS=judged)"


def _missing_for_functions(settings: Settings) -> Iterator[str]:
    if not isinstance(settings.database, str):
        yield "ORION_DATABASE_URL: missing; functions share nothing but a PostgreSQL database"
    if settings.slack.app_token is not None:
        yield "SLACK_APP_TOKEN: functions keep no socket open; unset it, and give SLACK_SIGNING_SECRET"
    if settings.limits.slice_s > MAX_SLICE_S:
        yield f"ORION_SLICE_S: functions work {MAX_SLICE_S:g} s at a time at most (is {settings.limits.slice_s:g})"
    name = settings.sandbox.provider
    if name != "auto" and not provider_spec(name).is_cloud:
        yield f"ORION_SANDBOX: functions need a cloud's sandboxes (is {name!r})"
    for rule in settings.toml.approvals:
        if rule.decision is Decision.ASK and rule.kind not in (DeedKind.TOOL, DeedKind.HOST):
            yield f"orion.toml, [[approvals]]: {rule.kind} = {rule.pattern!r} asks people, and a function cannot wait for them; allow or deny it"


def key_headers(protocol: ModelProtocol, source: ModelSource) -> Mapping[str, str]:
    """Returns the headers by which the source is told its key."""
    if source.is_gateway or protocol is ModelProtocol.OPENAI:
        return {"authorization": f"Bearer {source.key}"}
    name = "x-api-key" if protocol is ModelProtocol.ANTHROPIC else "x-goog-api-key"
    return {name: source.key}


def usable_agents(settings: Settings) -> Mapping[str, CatalogAgent]:
    """Returns all agents whose credentials are set, by name; the default one in any case."""
    return {
        name: _catalog_agent(settings, name)
        for name in agent_names()
        if name == settings.agents.default or not missing_for_agent(settings, name)
    }


def models_at(settings: Settings, protocol: ModelProtocol) -> Collection[str]:
    """Returns the ids of the models of the agents that can be used, as who serves that protocol calls them; none where nobody does."""
    source = model_source(settings, protocol)
    agents = usable_agents(settings) if source else {}
    return {
        name_at(source, protocol, agent.model_id(model))
        for name, agent in agents.items()
        if source and agent_spec(name).protocol is protocol
        for model in (agent.model, *agent.models)
    }


def describe_agent(name: str) -> str:
    """Returns the agent, and what of it is installed: `codex, @openai/codex 0.169.0`."""
    anywhere = AgentPaths(work="/", home="/", run="/", environment="/")
    product = create_adapter(name).environment(anywhere).product
    return f"{name}, {product or 'the version that its maker gives out'}"


def describe_agents(settings: Settings) -> str:
    """Returns one line: the default agent first, each with its model."""
    agents = usable_agents(settings)
    names = sorted(agents, key=lambda name: (name != settings.agents.default, name))
    shown = [f"{name} with {agents[name].model_id(agents[name].model)}" for name in names]
    default, *others = shown
    return f"{default}; on request: {', '.join(others)}" if others else default


def _catalog_agent(settings: Settings, name: str) -> CatalogAgent:
    adapter, model = create_adapter(name), settings.model_of(name)
    return CatalogAgent(
        model=model or adapter.spec.default_model,
        source=Source.SETTING if model else Source.DEFAULT,
        models=settings.models_of(name),
        model_id=adapter.model_id,
    )

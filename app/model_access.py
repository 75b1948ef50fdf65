"""Where each protocol's models are, and with which key: the gateway first, where it speaks the protocol, then the provider."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_scripts.adapter import ModelProtocol
from agent_scripts.registry import create_adapter
from app.config import GATEWAY_URL, Settings

_CURSOR = "cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One provider of models, or the gateway."""

    base_url: str
    key: str = field(repr=False)
    is_gateway: bool


DIRECT: Mapping[ModelProtocol, str] = {
    ModelProtocol.ANTHROPIC: "anthropic",
    ModelProtocol.OPENAI: "openai",
    ModelProtocol.GEMINI: "gemini",
}
"""Beginnings of the settings' names: `{name}_api_key`, `{name}_base_url`."""
_BY_GATEWAY = frozenset({ModelProtocol.ANTHROPIC, ModelProtocol.OPENAI})
"""Source: Vercel AI Gateway, "Anthropic Messages API" and "OpenAI Responses API" (and Chat Completions); it has no Gemini API.
Read 2026-11."""
_MAKERS: Mapping[ModelProtocol, str] = {
    ModelProtocol.ANTHROPIC: "anthropic/",
    ModelProtocol.OPENAI: "openai/",
}
"""What the gateway puts before the vendors' own names of models."""


def model_source(settings: Settings, protocol: ModelProtocol) -> ModelSource | None:
    """Whom requests of that protocol are sent to; None when there is no key for it."""
    gateway = settings.ai_gateway_api_key
    if gateway is not None and protocol in _BY_GATEWAY:
        return ModelSource(base_url=GATEWAY_URL, key=gateway.get_secret_value(), is_gateway=True)
    key = getattr(settings, f"{DIRECT[protocol]}_api_key")
    return None if key is None else own_source(settings, protocol, key.get_secret_value())


def own_source(settings: Settings, protocol: ModelProtocol, key: str) -> ModelSource:
    """Where a person's own key is used: the provider itself, past the gateway."""
    base_url = getattr(settings, f"{DIRECT[protocol]}_base_url")
    return ModelSource(base_url=base_url, key=key, is_gateway=False)


def name_at(source: ModelSource, protocol: ModelProtocol, model: str) -> str:
    """What that source calls the model: the operator's names are the gateway's or the vendor's, people's own keys are at the vendor.

    Source: Vercel AI Gateway, "OpenAI Codex" (with `openai/`) and "Claude Code" (with the vendor's names), read 2026-11.
    """
    maker = _MAKERS.get(protocol, "")
    if source.is_gateway:
        is_bare = protocol is ModelProtocol.OPENAI and "/" not in model
        return maker + model if is_bare else model
    is_vendor = source.base_url == Settings.model_fields[f"{DIRECT[protocol]}_base_url"].default
    return model.removeprefix(maker) if is_vendor else model


def injected_headers(protocol: ModelProtocol, key: str) -> Mapping[str, str]:
    """What a sandbox's network adds where there is no broker: each header in which an agent may send what stands in for the key."""
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
    return agent == _CURSOR


def key_for_sandbox(settings: Settings, agent: str) -> str:
    """The key of an agent that asks by itself, where the operator lets it into the sandbox; otherwise empty."""
    if not asks_by_itself(agent) or missing_for_agent(settings, agent):
        return ""
    return settings.cursor_api_key.get_secret_value() if settings.cursor_api_key else ""


def needs_own_key(settings: Settings, agent: str) -> bool:
    """Whether it can only be asked by people who give a key of their own."""
    if asks_by_itself(agent):
        return False
    return model_source(settings, create_adapter(agent).protocol) is None


def missing_for_agent(settings: Settings, agent: str) -> str:
    """What is not set that the agent needs, as a line; empty when it can work."""
    if asks_by_itself(agent):
        if settings.cursor_api_key is None:
            return "CURSOR_API_KEY: missing; the agent cursor asks its maker's own servers"
        if not settings.orion_cursor_key_in_sandbox:
            return "ORION_CURSOR_KEY_IN_SANDBOX: the agent cursor takes its key into the sandbox, where what it runs can read it; set it to true if that may be"
        return ""
    protocol = create_adapter(agent).protocol
    if model_source(settings, protocol) is not None or settings.orion_own_keys_secret is not None:
        return ""
    direct = f"{DIRECT[protocol].upper()}_API_KEY"
    names = f"{direct} or AI_GATEWAY_API_KEY" if protocol in _BY_GATEWAY else direct
    return f"{names}: missing; a key for the model"


def missing_for_serving(settings: Settings) -> tuple[str, ...]:
    """What `serve` cannot do without, as lines."""
    model = missing_for_agent(settings, settings.orion_agent)
    return (*settings.missing_for_slack, *([model] if model else []))


def key_headers(protocol: ModelProtocol, source: ModelSource) -> Mapping[str, str]:
    """How the source is told its key."""
    if source.is_gateway or protocol is ModelProtocol.OPENAI:
        return {"authorization": f"Bearer {source.key}"}
    name = "x-api-key" if protocol is ModelProtocol.ANTHROPIC else "x-goog-api-key"
    return {name: source.key}

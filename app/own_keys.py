"""People's own keys for models, where the settings let them give some: who keeps them, and who takes them."""

from collections.abc import Mapping
from functools import partial

from agent_scripts.adapter import ModelProtocol
from agent_scripts.registry import agent_names, create_adapter
from app.config import Settings
from app.model_access import DIRECT, asks_by_itself
from app.runs.own_keys import NoOwnKeys, OwnKeyStore
from app.slack.connection import SlackConnection
from app.slack.own_keys import KeyDesk, Vendor
from app.store.own_keys import read_secrets
from app.store.sql import SqlRunStore

_NAMES: Mapping[ModelProtocol, str] = {
    ModelProtocol.ANTHROPIC: "Anthropic",
    ModelProtocol.OPENAI: "OpenAI",
    ModelProtocol.GEMINI: "Google Gemini",
}


def create_own_keys(settings: Settings, store: SqlRunStore) -> OwnKeyStore:
    """Where they are kept; where nobody may have any, there are none."""
    if settings.orion_own_keys_secret is None:
        return NoOwnKeys()
    return store.own_keys(read_secrets(settings.orion_own_keys_secret.get_secret_value()))


def create_key_desk(
    settings: Settings, slack: SlackConnection, store: OwnKeyStore
) -> KeyDesk | None:
    """Where people give them."""
    if settings.orion_own_keys_secret is None:
        return None
    return slack.key_desk(
        store, {protocol.value: _vendor(settings, protocol) for protocol in _NAMES}
    )


def _vendor(settings: Settings, protocol: ModelProtocol) -> Vendor:
    adapters = [create_adapter(name) for name in agent_names() if not asks_by_itself(name)]
    agents = ", ".join(one.name for one in adapters if one.protocol is protocol)
    return Vendor(
        name=f"{_NAMES[protocol]} ({agents})",
        find_problem=partial(settings.find_key_problem, f"{DIRECT[protocol]}_api_key"),
    )

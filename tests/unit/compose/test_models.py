"""Whose key is used for which protocol, what is missing for an agent, and keys that cannot be right."""

from dataclasses import dataclass

import pytest

from agent_scripts.adapter import ModelProtocol
from agent_scripts.registry import create_adapter
from app.compose.brokers import create_direct_broker
from app.compose.models import (
    GATEWAY_URL,
    ModelSource,
    injected_headers,
    key_headers,
    missing_for_agent,
    missing_for_serving,
    model_source,
    name_at,
)
from app.runs.testing import SessionId
from app.settings.agents import MODEL_KEYS
from app.settings.group import SettingsError
from app.settings.settings import Settings, load_settings

ANTHROPIC, OPENAI, GEMINI = ModelProtocol.ANTHROPIC, ModelProtocol.OPENAI, ModelProtocol.GEMINI
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-x",
    "OPENAI_API_KEY": "sk-proj-x",
    "GEMINI_API_KEY": "AIzax",
}


def settings_of(monkeypatch: pytest.MonkeyPatch, **values: str) -> Settings:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return load_settings(env_file=None)


@pytest.mark.parametrize(
    ("protocol", "url", "header"),
    [
        (ANTHROPIC, "https://api.anthropic.com", {"x-api-key": "sk-ant-x"}),
        (OPENAI, "https://api.openai.com", {"authorization": "Bearer sk-proj-x"}),
        (GEMINI, "https://generativelanguage.googleapis.com", {"x-goog-api-key": "AIzax"}),
    ],
)
def test_each_protocol_has_its_own_key(
    protocol: ModelProtocol, url: str, header: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the provider itself, in the header that it wants."""
    settings = settings_of(monkeypatch, **KEYS)
    source = model_source(settings, protocol)
    assert source is not None
    assert (source.base_url, source.is_gateway) == (url, False)
    assert key_headers(protocol, source) == header
    assert source.key not in repr(source)


def test_the_gateway_comes_first_where_it_speaks_the_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has Anthropic's and OpenAI's forms, and none of Google's."""
    settings = settings_of(monkeypatch, AI_GATEWAY_API_KEY="vck_1", **KEYS)
    for protocol in (ANTHROPIC, OPENAI):
        source = model_source(settings, protocol)
        assert source is not None
        assert (source.base_url, source.is_gateway) == (GATEWAY_URL, True)
        assert key_headers(protocol, source) == {"authorization": "Bearer vck_1"}
    gemini = model_source(settings, GEMINI)
    assert gemini is not None
    assert gemini.key == "AIzax"
    monkeypatch.delenv("GEMINI_API_KEY")
    assert model_source(load_settings(env_file=None), GEMINI) is None


def test_a_network_adds_what_the_protocols_agents_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker the provider's network puts the key in the place of what stands in for it."""
    settings = settings_of(monkeypatch, OPENAI_BASE_URL="https://models.example.com/", **KEYS)
    endpoint = create_direct_broker(settings, OPENAI).endpoint_for(SessionId("s"))
    assert endpoint.address == "https://models.example.com"
    assert endpoint.headers == {"authorization": "Bearer sk-proj-x"}
    assert endpoint.url("openai") == "{relay}"
    assert injected_headers(GEMINI, "k") == {"x-goog-api-key": "k"}
    assert injected_headers(ANTHROPIC, "k") == {"x-api-key": "k", "authorization": "Bearer k"}


def test_no_key_goes_to_the_network_of_an_agent_that_speaks_no_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cursor asks its maker's servers: the operator's key for OpenAI is none of its business."""
    settings = settings_of(monkeypatch, OPENAI_API_KEY="sk-1", AI_GATEWAY_API_KEY="vck_1")
    protocol = create_adapter("cursor").spec.protocol
    endpoint = create_direct_broker(settings, protocol).endpoint_for(SessionId("s"))
    assert endpoint.headers == {}


def test_what_is_missing_is_named_for_the_chosen_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of another protocol does not help."""
    settings = settings_of(
        monkeypatch,
        GEMINI_API_KEY="AIzax",
        SLACK_BOT_TOKEN="xoxb-1",
        SLACK_APP_TOKEN="xapp-1",
    )
    line = "ANTHROPIC_API_KEY or AI_GATEWAY_API_KEY: missing; a key for the model"
    assert missing_for_serving(settings) == (line,)
    monkeypatch.setenv("AI_GATEWAY_API_KEY", "vck_1")
    assert missing_for_serving(load_settings(env_file=None)) == ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    values: dict[str, str]
    said: str


@pytest.mark.parametrize(
    "asked",
    [
        _Asked(values={}, said="CURSOR_API_KEY: missing"),
        _Asked(values={"CURSOR_API_KEY": "crsr_1"}, said="ORION_CURSOR_KEY_IN_SANDBOX: "),
        _Asked(values={"CURSOR_API_KEY": "crsr_1", "ORION_CURSOR_KEY_IN_SANDBOX": "true"}, said=""),
    ],
    ids=["nothing", "key", "both"],
)
def test_cursor_needs_a_word_of_the_operator(
    asked: _Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key goes where the agent works; nobody has that by accident."""
    settings = settings_of(monkeypatch, **asked.values)
    missing = missing_for_agent(settings, "cursor")
    assert missing.startswith(asked.said)
    assert bool(missing) is bool(asked.said)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OPENAI_API_KEY", "sk-ant-secret1", "this looks like a value for ANTHROPIC_API_KEY"),
        ("ANTHROPIC_API_KEY", "sk-proj-secret1", "this looks like a value for OPENAI_API_KEY"),
        ("AI_GATEWAY_API_KEY", "AIzasecret1", "this looks like a value for GEMINI_API_KEY"),
        ("CURSOR_API_KEY", "vck_secret1", "this looks like a value for AI_GATEWAY_API_KEY"),
        ("GEMINI_API_KEY", "secret1", "such a key starts with AIza or AQ."),
        ("OPENAI_API_KEY", "secret1", "such a key starts with sk-"),
        ("OPENAI_API_KEY", "sk-secret1 x", "white space"),
        ("ANTHROPIC_API_KEY", "sk-ant-secret1\n", "white space"),
        ("COPILOT_GITHUB_TOKEN", "ghp_secret1", "a classic token"),
    ],
)
def test_a_key_that_cannot_be_right_is_named_without_its_value(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, not in the first run."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as failure:
        load_settings(env_file=None)
    assert f"{name}: " in str(failure.value)
    assert said in str(failure.value)
    assert "secret1" not in str(failure.value)


def test_other_servers_have_keys_of_any_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms are those of the vendors' own."""
    values = {"OPENAI_API_KEY": "anything", "OPENAI_BASE_URL": "http://127.0.0.1:9"}
    settings = settings_of(monkeypatch, **values, GEMINI_API_KEY="AQ.x")
    assert settings.models.openai_api_key is not None


def test_every_key_is_known_for_masking(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them reaches a log, a trace or Slack."""
    values = KEYS | {
        "AI_GATEWAY_API_KEY": "vck_1",
        "CURSOR_API_KEY": "crsr_1",
        "COPILOT_GITHUB_TOKEN": "github_pat_1",
    }
    assert {name.lower() for name in values} == set(MODEL_KEYS)
    assert set(settings_of(monkeypatch, **values).secrets) == set(values.values())


@pytest.mark.parametrize(
    ("protocol", "url", "asked", "named"),
    [
        (OPENAI, GATEWAY_URL, "gpt-5.4", "openai/gpt-5.4"),
        (OPENAI, GATEWAY_URL, "openai/gpt-5.4", "openai/gpt-5.4"),
        (OPENAI, GATEWAY_URL, "moonshotai/kimi-k3", "moonshotai/kimi-k3"),
        (OPENAI, "https://api.openai.com", "openai/gpt-5.4", "gpt-5.4"),
        (OPENAI, "https://api.openai.com", "gpt-5.4", "gpt-5.4"),
        (OPENAI, "https://others.example", "openai/gpt-5.4", "openai/gpt-5.4"),
        (ANTHROPIC, GATEWAY_URL, "claude-sonnet-5", "claude-sonnet-5"),
        (ANTHROPIC, "https://api.anthropic.com", "anthropic/claude-sonnet-5", "claude-sonnet-5"),
        (GEMINI, "https://generativelanguage.googleapis.com", "gemini-3-pro", "gemini-3-pro"),
    ],
)
def test_each_source_is_asked_by_its_own_name_of_the_model(
    protocol: ModelProtocol, url: str, asked: str, named: str
) -> None:
    """One name for operator and people, whichever key is used; other servers are asked as it was written."""
    source = ModelSource(base_url=url, key="k", is_gateway=url == GATEWAY_URL)
    assert name_at(source, protocol, asked) == named

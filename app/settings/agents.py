"""Settings of agents, and of the models that they ask."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from agent_scripts.registry import agent_names, agent_spec, agent_specs
from app.runs.options import check_model
from app.runs.policy import split_words
from app.settings.group import SettingsGroup, Url, existing_file, one_of

MODEL_KEYS = (
    *("anthropic_api_key", "openai_api_key", "gemini_api_key", "ai_gateway_api_key"),
    "copilot_github_token",
    *(spec.own_key.lower() for spec in agent_specs() if spec.own_key),
)
"""Fields of the settings."""

# Sources: the vendors' documentation of their keys, and GitHub's list of secret scanning patterns, read 2026-11.
_OWNERS = (
    (re.compile(r"sk-ant-"), "ANTHROPIC_API_KEY"),
    (re.compile(r"sk-(proj|svcacct|admin)-"), "OPENAI_API_KEY"),
    (re.compile(r"AIza"), "GEMINI_API_KEY"),
    (re.compile(r"vck_"), "AI_GATEWAY_API_KEY"),
    *((re.compile(spec.own_key_form), spec.own_key) for spec in agent_specs() if spec.own_key),
    (re.compile(r"gh[opusr]_|github_pat_"), "COPILOT_GITHUB_TOKEN"),
    (re.compile(r"xox[abeoprs]-|xapp-"), "SLACK_BOT_TOKEN or SLACK_APP_TOKEN"),
)
_FORMS = {
    "OPENAI_API_KEY": (re.compile(r"sk-"), "starts with sk-"),
    "GEMINI_API_KEY": (re.compile(r"AIza|AQ\."), "starts with AIza or AQ."),
}
_HEADER_TEXT = re.compile(r"[!-~]+")


def find_key_problem(name: str, key: str, *, is_vendors: bool) -> str:
    """Returns what is wrong with the key of that setting, without its value; empty when nothing is.

    `is_vendors`: it is for the vendor's own servers. Others that speak their protocols have keys of any form.
    """
    if not _HEADER_TEXT.fullmatch(key):
        return "a key has neither blanks nor line ends, nor letters beyond ASCII"
    if name == "COPILOT_GITHUB_TOKEN" and key.startswith("ghp_"):
        return "a classic token (ghp_…) is not accepted; make a fine-grained one with Copilot permission"
    if not is_vendors:
        return ""
    owner = next((owner for form, owner in _OWNERS if form.match(key)), name)
    if owner != name:
        return f"this looks like a value for {owner}"
    form, saying = _FORMS.get(name, (None, ""))
    return f"such a key {saying}" if form is not None and not form.match(key) else ""


MIN_SECRET_CHARS = 32
OWN_KEY = "{own_key}"
"""Stands for the setting with the key of an agent that asks its maker's own servers."""


def _check_arguments(value: str) -> str:
    shlex.split(value)
    return value


def _without_version(version: str) -> AfterValidator:
    """OpenAI's SDK wants the version in its base URL, Anthropic's does not; Orion puts it behind what remains.

    Sources: the vendors' API references, read 2026-11.
    """
    return AfterValidator(lambda url: url.rstrip("/").removesuffix(f"/{version}"))


def _check_secrets(value: SecretStr) -> SecretStr:
    if any(len(part) < MIN_SECRET_CHARS for part in value.get_secret_value().split(",")):
        raise ValueError(f"needs {MIN_SECRET_CHARS} characters or more, as of openssl rand -hex 32")
    return value


_Model = Annotated[str, AfterValidator(check_model)]
_ModelList = Annotated[tuple[_Model, ...], BeforeValidator(split_words)]


def _listed_agents() -> str:
    return ", ".join(
        f"{one.name} ({one.title})" if one.title else one.name for one in agent_specs()
    )


class AgentsSettings(SettingsGroup):
    """In a name `{agent}` stands for each agent."""

    model_config = ConfigDict(title="Agents")

    default: Annotated[str, one_of(agent_names())] = Field(
        "anthropic",
        alias="ORION_AGENT",
        description=f"Which agent answers where nobody asks for another: {_listed_agents()}.",
    )
    model: _Model | None = Field(
        None, alias="ORION_MODEL", description="Model id for ORION_AGENT; default: the agent's own."
    )
    models: Mapping[str, _Model] = Field(
        {},
        alias="ORION_MODEL_{agent}",
        description="Model id for this agent, before ORION_MODEL; of Claude also sonnet, opus, haiku and fable.",
    )
    allowed_models: Mapping[str, _ModelList] = Field(
        {},
        alias="ORION_MODELS_{agent}",
        description="Models that people may ask this agent for; empty = any name.",
    )
    arguments: Annotated[str, AfterValidator(_check_arguments)] = Field(
        "",
        alias="ORION_AGENT_ARGUMENTS",
        description="Put behind the command line of ORION_AGENT (all but anthropic), split as a shell would.",
    )
    mcp_config_file: Annotated[Path, AfterValidator(existing_file)] | None = Field(
        None,
        alias="ORION_MCP_CONFIG_FILE",
        description="MCP servers for the agents: JSON with mcpServers. Commands run in the sandbox; for those with a url Orion keeps headers and OAuth clients outside.",
    )
    system_prompt_file: Annotated[Path, AfterValidator(existing_file)] | None = Field(
        None,
        alias="ORION_SYSTEM_PROMPT_FILE",
        description="Replaces the built-in system prompt; what a channel has is told behind it. claude puts it behind its own.",
    )
    max_output_tokens: int = Field(
        8192,
        ge=1,
        le=200_000,
        alias="ORION_MAX_OUTPUT_TOKENS",
        description="Tokens of one model call's output.",
    )
    max_turns: int = Field(
        40, ge=1, le=1000, alias="ORION_MAX_AGENT_TURNS", description="Model calls per run."
    )

    own_keys: Mapping[str, SecretStr] = Field(
        {},
        alias=OWN_KEY,
        description="Key of an agent that asks its maker's own servers only.",
    )
    keys_in_sandbox: Mapping[str, bool] = Field(
        {},
        alias="ORION_{agent}_KEY_IN_SANDBOX",
        description="This agent's key may be in its sandbox, where everything that it runs can read it, with the host's network open; without this it cannot be used.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_each_agents(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Puts what is said for one agent under the name that stands for all."""
        found = dict(data)
        for alias in (info.alias or "" for info in cls.model_fields.values()):
            if is_for_each_agent(alias):
                names = names_for_agents(alias)
                found[alias] = {agent: data[name] for agent, name in names if name in data}
        return found

    @model_validator(mode="after")
    def _check_own_keys(self) -> "AgentsSettings":
        for agent, key in self.own_keys.items():
            name = agent_spec(agent).own_key
            if problem := find_key_problem(name, key.get_secret_value(), is_vendors=True):
                raise ValueError(f"{name}: {problem}")
        return self

    def model_of(self, agent: str) -> str | None:
        """Returns the model named for an agent; ORION_MODEL is the chosen one's."""
        return self.models.get(agent) or (self.model if agent == self.default else None)

    def missing_for_own_key(self, agent: str) -> str:
        """Returns what is not set of the key of an agent that asks its maker's own servers, as a line; empty when nothing is."""
        if agent not in self.own_keys:
            return f"{agent_spec(agent).own_key}: missing; the agent {agent} asks its maker's own servers"
        if not self.keys_in_sandbox.get(agent):
            return f"ORION_{agent.upper()}_KEY_IN_SANDBOX: the agent {agent} takes its key into the sandbox, where what it runs can read it; set it to true if that may be"
        return ""


def is_for_each_agent(alias: str) -> bool:
    """Whether it stands for one setting for each agent."""
    return "{" in alias


def names_for_agents(alias: str) -> Iterator[tuple[str, str]]:
    """Yields each agent that has such a setting, and what it is called for that agent."""
    for spec in agent_specs():
        if spec.own_key or alias.startswith("ORION_MODEL"):
            yield spec.name, alias.format(agent=spec.name.upper(), own_key=spec.own_key)


class ModelsSettings(SettingsGroup):
    model_config = ConfigDict(title="Models")

    anthropic_api_key: SecretStr | None = Field(
        None,
        alias="ANTHROPIC_API_KEY",
        description="Key for the Anthropic API.",
        json_schema_extra={"is_first": True},
    )
    anthropic_base_url: Annotated[Url, _without_version("v1")] = Field(
        "https://api.anthropic.com",
        alias="ANTHROPIC_BASE_URL",
        description="Any server that speaks the Messages API, with or without /v1.",
    )
    openai_api_key: SecretStr | None = Field(
        None,
        alias="OPENAI_API_KEY",
        description="Key for the OpenAI API: codex, and what else speaks with its models.",
    )
    openai_base_url: Annotated[Url, _without_version("v1")] = Field(
        "https://api.openai.com",
        alias="OPENAI_BASE_URL",
        description="Any server that speaks OpenAI's Responses and Chat Completions, with or without /v1.",
    )
    gemini_api_key: SecretStr | None = Field(
        None, alias="GEMINI_API_KEY", description="Key for the Gemini API: gemini."
    )
    gemini_base_url: Annotated[Url, _without_version("v1beta")] = Field(
        "https://generativelanguage.googleapis.com",
        alias="GEMINI_BASE_URL",
        description="Any server that speaks the Gemini API, with or without /v1beta.",
    )
    ai_gateway_api_key: SecretStr | None = Field(
        None,
        alias="AI_GATEWAY_API_KEY",
        description="Vercel AI Gateway key; preferred over the direct keys of Anthropic and OpenAI when set.",
    )
    copilot_github_token: SecretStr | None = Field(
        None,
        alias="COPILOT_GITHUB_TOKEN",
        description="GitHub token with Copilot permission; hidden like all keys, not used: copilot works with the models of its provider setting.",
    )
    own_keys_secret: Annotated[SecretStr, AfterValidator(_check_secrets)] | None = Field(
        None,
        alias="ORION_OWN_KEYS_SECRET",
        description="Set = people may give Orion model keys of their own, for their own requests, and link accounts. Both are encrypted with it: 32 random characters or more (openssl rand -hex 32); a new one goes before the old, with a comma.",
    )

    @model_validator(mode="after")
    def _check_model_keys(self) -> "ModelsSettings":
        for name in type(self).model_fields:
            key = getattr(self, name) if name in MODEL_KEYS else None
            if key and (problem := self.find_key_problem(name, key.get_secret_value())):
                raise ValueError(f"{name.upper()}: {problem}")
        return self

    def find_key_problem(self, name: str, key: str) -> str:
        """Returns what is wrong with such a key, for the field of that name, without its value; empty when nothing is."""
        url = name.replace("_api_key", "_base_url")
        field = type(self).model_fields.get(url)
        is_vendors = url == name or field is None or getattr(self, url) == field.default
        return find_key_problem(name.upper(), key, is_vendors=is_vendors)

"""Settings of agents and their models. Part of `config_fields.py`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode

from app.runs.option_values import check_model

WordList = Annotated[tuple[str, ...], NoDecode]
"""Words separated by commas or white space."""
MIN_SECRET_CHARS = 32
_MODELS = "Models that people may ask this agent for; empty = any name."
_MODEL = (
    "Model id for this agent, before ORION_MODEL; of Claude also sonnet, opus, haiku and fable."
)


class AgentFields(BaseSettings):
    """Names in the environment are the upper-case field names."""

    orion_agent: Literal[
        "anthropic", "claude", "codex", "copilot", "cursor", "gemini", "opencode"
    ] = Field(
        "anthropic",
        description="Which agent answers where nobody asks for another: anthropic (our script), claude (Claude Code), codex, copilot, gemini, opencode, or cursor (experimental).",
    )
    orion_model: str | None = Field(
        None, description="Model id for ORION_AGENT; default: the agent's own."
    )
    orion_model_anthropic: str | None = Field(None, description=_MODEL)
    orion_model_claude: str | None = Field(None, description="The same.")
    orion_model_codex: str | None = Field(None, description="The same.")
    orion_model_copilot: str | None = Field(None, description="The same.")
    orion_model_cursor: str | None = Field(None, description="The same.")
    orion_model_gemini: str | None = Field(None, description="The same.")
    orion_model_opencode: str | None = Field(None, description="The same.")
    orion_models_anthropic: WordList = Field((), description=_MODELS)
    orion_models_claude: WordList = Field((), description="The same.")
    orion_models_codex: WordList = Field((), description="The same.")
    orion_models_copilot: WordList = Field((), description="The same.")
    orion_models_cursor: WordList = Field((), description="The same.")
    orion_models_gemini: WordList = Field((), description="The same.")
    orion_models_opencode: WordList = Field((), description="The same.")
    orion_own_keys_secret: SecretStr | None = Field(
        None,
        description="Set = people may give Orion model keys of their own, for their own requests. They are encrypted with it: 32 random characters or more (openssl rand -hex 32); a new one goes before the old, with a comma.",
    )
    orion_agent_arguments: str = Field(
        "",
        description="Put behind the command line of ORION_AGENT (all but anthropic), split as a shell would.",
    )
    orion_mcp_config_file: Path | None = Field(
        None,
        description="MCP servers for the agents (all but anthropic): JSON with mcpServers. Commands run in the sandbox; for those with a url Orion keeps headers and OAuth clients outside.",
    )

    @field_validator(
        "orion_models_anthropic",
        "orion_models_claude",
        "orion_models_codex",
        "orion_models_copilot",
        "orion_models_cursor",
        "orion_models_gemini",
        "orion_models_opencode",
        mode="before",
    )
    @classmethod
    def _split_models(cls, value: object) -> object:
        words = split_words(value)
        return tuple(map(check_model, words)) if isinstance(words, tuple) else words

    @field_validator(
        *("orion_model", "orion_model_anthropic", "orion_model_claude", "orion_model_codex"),
        *(
            "orion_model_copilot",
            "orion_model_cursor",
            "orion_model_gemini",
            "orion_model_opencode",
        ),
    )
    @classmethod
    def _check_model(cls, value: str | None) -> str | None:
        return None if value is None else check_model(value)

    @field_validator("orion_own_keys_secret")
    @classmethod
    def _check_secrets(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and any(
            len(part) < MIN_SECRET_CHARS for part in value.get_secret_value().split(",")
        ):
            raise ValueError(
                f"needs {MIN_SECRET_CHARS} characters or more, as of openssl rand -hex 32"
            )
        return value

    @field_validator("orion_agent_arguments")
    @classmethod
    def _check_words(cls, value: str) -> str:
        shlex.split(value)
        return value


def split_words(value: object) -> object:
    """A text as a `WordList`; what is none stays as it is."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

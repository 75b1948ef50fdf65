"""Settings: the only reader of the environment. Start-up names all bad ones together."""

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from typing_extensions import override

from app.brokerage.mcp_servers import McpServers, read_mcp_servers
from app.keyring import KEYRING_FIELDS, KeyringError, read_keyring
from app.runs.mount import Mount, find_refusal

DEFAULT_MODEL_URL = "https://api.anthropic.com"
GATEWAY_URL = "https://ai-gateway.vercel.sh"
"""Source: Vercel AI Gateway docs, Anthropic-compatible API, read 2026-11."""

BOT_TOKENS = ("xoxb-", "xoxe.xoxb-")
"""The second kind is of apps that rotate their tokens. Source: Slack, token types, read 2026-11."""

CA_VARIABLES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)

_REGIONS = {"vercel": ("[a-z]{3}[0-9]", "iad1 and the like"), "deno": ("ams|ord", "ams or ord")}
"""Form, and how to say it. Source: documentation of Vercel, Regions, and of Deno, Sandbox volumes, read 2026-11."""

DENO_MAX_RUN_S = 1680.0
"""Two minutes are for what a run does after its agent's end."""

WordList = Annotated[tuple[str, ...], NoDecode]
"""Words separated by commas or white space."""


class SettingsError(Exception):
    """Some settings are missing or wrong; the message lists all of them, a line each."""


class KeyringSource(PydanticBaseSettingsSource):
    """Tokens from the system's keyring, where no other source has them; asked only with ORION_KEYRING."""

    @override
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("asked for all fields at once")

    @override
    def __call__(self) -> dict[str, Any]:
        wanted = str(self.current_state.get("orion_keyring", "")).lower() in ("1", "true", "yes")
        missing = [name for name in KEYRING_FIELDS if not self.current_state.get(name)]
        return read_keyring(missing) if wanted else {}


class Settings(BaseSettings):
    """Everything an operator can set. Names in the environment are the upper-case field names."""

    model_config = SettingsConfigDict(
        env_file=".env", extra="ignore", frozen=True, env_ignore_empty=True
    )

    # -- Slack ---------------------------------------------------------------------------------------------------------
    slack_bot_token: SecretStr | None = Field(
        None, description="Bot token (xoxb-…) of the installed app."
    )
    slack_signing_secret: SecretStr | None = Field(
        None, description="Signing secret of the app; needed for HTTP events, not for Socket Mode."
    )
    slack_app_token: SecretStr | None = Field(
        None, description="App-level token (xapp-…); set = Socket Mode instead of HTTP events."
    )
    slack_api_url: str = Field(
        "https://slack.com/api/", description="Any Slack-compatible server, for tests."
    )

    # -- Models --------------------------------------------------------------------------------------------------------
    anthropic_api_key: SecretStr | None = Field(None, description="Key for the Anthropic API.")
    anthropic_base_url: str = Field(
        DEFAULT_MODEL_URL, description="Any server that speaks the Messages API."
    )
    ai_gateway_api_key: SecretStr | None = Field(
        None, description="Vercel AI Gateway key; preferred over the direct key when set."
    )

    # -- Langfuse ------------------------------------------------------------------------------------------------------
    langfuse_public_key: str | None = Field(None, description="Without both keys no traces leave.")
    langfuse_secret_key: SecretStr | None = Field(None, description="See above.")
    langfuse_base_url: str = Field(
        "https://cloud.langfuse.com",
        description="Langfuse Cloud or a server of version 4.59 or later.",
    )

    # -- Orion: state and model ----------------------------------------------------------------------------------------
    orion_state_dir: Path = Field(
        Path("~/.local/state/orion"), description="Database, environments, sandboxes, sockets."
    )
    orion_agent: Literal["anthropic", "claude"] = Field(
        "anthropic",
        description="Which agent answers: anthropic (our script) or claude (Claude Code).",
    )
    orion_model: str | None = Field(None, description="Model id; default: the agent's own.")
    orion_model_anthropic: str | None = Field(
        None, description="Model id for this agent, before ORION_MODEL."
    )
    orion_model_claude: str | None = Field(
        None, description="The same; sonnet, opus, haiku and fable are understood, too."
    )
    orion_agent_arguments: str = Field(
        "", description="Put behind the agent's own command line (claude), split as a shell would."
    )
    orion_mcp_config_file: Path | None = Field(
        None,
        description="MCP servers for the agent (claude): JSON with mcpServers. Commands run in the sandbox; for those with a url Orion keeps the headers outside.",
    )
    orion_system_prompt_file: Path | None = Field(
        None, description="Replaces the built-in system prompt; claude puts it behind its own."
    )
    orion_max_output_tokens: int = Field(8192, ge=1, le=200_000, description="Per model call.")
    orion_max_agent_turns: int = Field(40, ge=1, le=1000, description="Model calls per run.")

    # -- Orion: sandbox ------------------------------------------------------------------------------------------------
    orion_sandbox: Literal["auto", "local", "docker", "vercel", "deno"] = Field(
        "auto",
        description="Where agents run: local, docker, vercel, deno; auto: vercel with its credentials, else docker where an engine answers, else local.",
    )
    orion_sandbox_vcpus: float = Field(
        4, gt=0, le=256, description="Processors (docker; vercel: whole ones)."
    )
    orion_sandbox_memory_mib: int = Field(
        4096,
        ge=256,
        description="Address space per process (local), or memory of the sandbox (docker).",
    )
    orion_sandbox_disk_mib: int = Field(
        10_240,
        ge=64,
        description="Files of a thread, of the agent's home and of /tmp together; beyond it the run ends.",
    )
    orion_sandbox_create_attempts: int = Field(
        3, ge=1, le=10, description="With exponential backoff and jitter between attempts."
    )
    orion_local_isolation: Literal["bubblewrap", "none"] = Field(
        "bubblewrap",
        description="none = no isolation at all; only for a machine you would give to the agent.",
    )
    orion_mount_dir: Path | None = Field(
        None,
        description="For developers: a directory that agents work in, instead of their threads' own files.",
    )
    orion_mount_overlay: bool = Field(
        default=False,
        description="They get a copy of it when their thread begins, and it stays untouched.",
    )
    docker_host: str = Field(
        "unix:///var/run/docker.sock", description="The engine of this machine, for docker."
    )
    orion_docker_image: str | None = Field(
        None, description="A base image that exists, instead of the one that Orion builds."
    )
    orion_docker_runtime: str | None = Field(
        None, description="Of the engine's runtimes, such as runsc (gVisor); default: its own."
    )
    orion_git_name: str = Field("Orion", description="Author of commits in docker sandboxes.")
    orion_git_email: str = Field("orion@localhost", description="The same.")
    orion_ca_bundle: Path | None = Field(
        None,
        description="CA bundle for package installs inside; default: the one the environment names.",
    )

    orion_sandbox_region: str | None = Field(
        None, description="Where cloud sandboxes run: vercel iad1 and others; deno ams or ord."
    )
    vercel_token: SecretStr | None = Field(
        None, description="Access token for vercel, with the two ids below."
    )
    vercel_team_id: str | None = Field(None, description="See above.")
    vercel_project_id: str | None = Field(None, description="See above.")
    vercel_oidc_token: SecretStr | None = Field(
        None,
        description="Instead of these three: what `vercel env pull` writes, good for 12 hours.",
    )
    deno_deploy_token: SecretStr | None = Field(
        None, description="Access token of an organisation, for deno."
    )
    orion_vercel_api_url: str = Field(
        "https://vercel.com/api", description="Any server that speaks its API, for tests."
    )
    orion_deno_api_url: str | None = Field(None, description="The same; default: its own servers.")
    orion_keyring: bool = Field(
        default=False,
        description="Look up tokens that are not set here in the keyring of the system, where `orion setup --keyring` puts them.",
    )
    orion_public_url: str | None = Field(
        None,
        description="https:// address where Slack, browsers and cloud sandboxes reach Orion; without it a cloud's network adds the model key by itself.",
    )

    # -- Orion: limits -------------------------------------------------------------------------------------------------
    orion_run_timeout_s: float = Field(
        600, gt=0, le=86_400, description="Seconds from a run's start."
    )
    orion_idle_timeout_s: float = Field(
        180, gt=0, description="Seconds without any output of the agent."
    )
    orion_queue_timeout_s: float = Field(1800, gt=0, description="Seconds a message may wait.")
    orion_queue_limit: int = Field(
        500, ge=1, description="Messages waiting or worked on at the most."
    )
    orion_max_concurrent_runs: int = Field(
        32, ge=1, le=1000, description="Runs at once in one process."
    )

    orion_session_keep_s: float = Field(
        900,
        ge=0,
        le=86_400,
        description="Seconds a thread's sandbox is kept after a run; its files are saved in any case.",
    )
    orion_warm_pool_size: int | None = Field(
        None,
        ge=0,
        le=100,
        description="Sandboxes that wait with the agent loaded, each for one new thread; default: 1, but 0 where an idle sandbox costs money, and 0 in any case with ORION_MOUNT_DIR.",
    )
    orion_retention_days: int = Field(
        14,
        ge=2,
        le=3650,
        description="Days that finished runs are kept; at least 2, as Slack may send a message again.",
    )

    # -- Orion: who may ask --------------------------------------------------------------------------------------------
    orion_allowed_users: WordList = Field(
        (), description="Slack user ids; empty = everyone in the workspace."
    )
    orion_allowed_channels: WordList = Field(
        (), description="Slack channel ids; empty = all. DMs are not affected."
    )
    orion_allow_external: bool = Field(
        default=False, description="People of other companies in shared channels."
    )
    orion_runs_per_user_hour: int = Field(
        30, ge=1, description="Runs a person may start within an hour."
    )

    # -- Orion: service ------------------------------------------------------------------------------------------------
    orion_announce_after_s: float = Field(
        60,
        ge=0,
        description="Runs longer than this end with a line that mentions the asker; 0 = never.",
    )
    orion_ops_token: SecretStr | None = Field(
        None, description="Bearer token for /metrics when Orion is not bound to loopback."
    )
    orion_trace_content: bool = Field(
        default=True, description="Prompt and answer in traces (redacted)."
    )
    orion_host: str = Field("127.0.0.1", description="Address to listen on.")
    orion_port: int = Field(
        3000, ge=0, le=65_535, description="Port to listen on; 0 = any free one."
    )
    orion_log_format: Literal["console", "json"] = Field("console", description="console or json.")
    orion_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Least level shown."
    )

    @field_validator("orion_allowed_users", "orion_allowed_channels", mode="before")
    @classmethod
    def _split_words(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("slack_api_url")
    @classmethod
    def _end_with_slash(cls, value: str) -> str:
        return value if value.endswith("/") else value + "/"

    @field_validator("slack_api_url", "anthropic_base_url", "langfuse_base_url", "orion_public_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            raise ValueError("must start with https:// or http://")
        return value

    @field_validator("orion_state_dir", "orion_mount_dir")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser().resolve() if value is not None else None

    @field_validator("orion_agent_arguments")
    @classmethod
    def _check_words(cls, value: str) -> str:
        shlex.split(value)
        return value

    @field_validator("orion_system_prompt_file", "orion_ca_bundle", "orion_mcp_config_file")
    @classmethod
    def _must_exist(cls, value: Path | None) -> Path | None:
        if value is not None and not value.expanduser().is_file():
            raise ValueError(f"no such file: {value}")
        return value.expanduser().resolve() if value is not None else None

    @field_validator("orion_mcp_config_file", mode="after")
    @classmethod
    def _must_name_servers(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_mcp_servers(value, os.environ)
        return value

    @model_validator(mode="after")
    def _check_token_kinds(self) -> "Settings":
        if self.slack_app_token and not self.slack_app_token.get_secret_value().startswith("xapp-"):
            raise ValueError("SLACK_APP_TOKEN: an app-level token starts with xapp-")
        if self.slack_bot_token and not self.slack_bot_token.get_secret_value().startswith(
            BOT_TOKENS
        ):
            raise ValueError("SLACK_BOT_TOKEN: a bot token starts with xoxb-")
        if bool(self.langfuse_public_key) != bool(self.langfuse_secret_key):
            raise ValueError("LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY: set both or none")
        return self

    @model_validator(mode="after")
    def _check_clouds(self) -> "Settings":
        named = (self.vercel_token, self.vercel_team_id, self.vercel_project_id)
        if self.orion_sandbox == "vercel" and not (all(named) or self.vercel_oidc_token):
            raise ValueError(
                "ORION_SANDBOX: vercel needs VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID, or VERCEL_OIDC_TOKEN; `orion setup vercel` asks for them"
            )
        if self.orion_sandbox == "deno" and not self.deno_deploy_token:
            raise ValueError("ORION_SANDBOX: deno needs DENO_DEPLOY_TOKEN; `orion setup deno` asks")
        region = self.orion_sandbox_region
        clouds = (self.orion_sandbox,) if self.orion_sandbox in _REGIONS else tuple(_REGIONS)
        if region is not None and not any(self.region_of(cloud) for cloud in clouds):
            forms = "; ".join(f"{cloud}: {_REGIONS[cloud][1]}" for cloud in clouds)
            raise ValueError(f"ORION_SANDBOX_REGION: no region {region!r} ({forms})")
        if self.orion_sandbox == "deno" and self.orion_run_timeout_s > DENO_MAX_RUN_S:
            raise ValueError(
                f"ORION_RUN_TIMEOUT_S: a deno sandbox lives for 30 minutes, so a run has {DENO_MAX_RUN_S:g} s at most (is {self.orion_run_timeout_s:g})"
            )
        if self.orion_sandbox == "vercel" and self.orion_sandbox_vcpus % 1:
            raise ValueError(
                f"ORION_SANDBOX_VCPUS: vercel has whole processors (is {self.orion_sandbox_vcpus:g})"
            )
        return self

    @model_validator(mode="after")
    def _check_mount(self) -> "Settings":
        mount = self.mount
        if mount is None:
            if self.orion_mount_overlay:
                raise ValueError("ORION_MOUNT_OVERLAY: set ORION_MOUNT_DIR, too")
            return self
        refusal = find_refusal(
            mount.directory, home=Path.home().resolve(), state_dir=self.orion_state_dir
        )
        if refusal:
            raise ValueError(f"ORION_MOUNT_DIR: {refusal}")
        if self.orion_sandbox not in ("auto", "local") and not mount.is_overlay:
            raise ValueError(
                f"ORION_MOUNT_DIR: {self.orion_sandbox} sandboxes cannot work in it; set ORION_MOUNT_OVERLAY=true, or ORION_SANDBOX=local"
            )
        return self

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, dotenv_settings, KeyringSource(settings_cls))

    # -- what follows from them ----------------------------------------------------------------------------------------

    @property
    def model(self) -> str | None:
        """The model named for the chosen agent."""
        own: str | None = getattr(self, f"orion_model_{self.orion_agent}")
        return own or self.orion_model

    def region_of(self, cloud: str) -> str | None:
        """The region, if that cloud can have one of such a name."""
        region = self.orion_sandbox_region
        return region if region is not None and re.fullmatch(_REGIONS[cloud][0], region) else None

    @property
    def mcp_servers(self) -> McpServers:
        """What the file says now. It was good when the settings were read."""
        path = self.orion_mcp_config_file
        return read_mcp_servers(path, os.environ) if path else McpServers()

    @property
    def database_path(self) -> Path:
        return self.orion_state_dir / "orion.db"

    @property
    def broker_directory(self) -> Path:
        return self.orion_state_dir / "broker"

    @property
    def mount(self) -> Mount | None:
        """The developer's own directory, if agents shall work in one."""
        if self.orion_mount_dir is None:
            return None
        return Mount(directory=self.orion_mount_dir, is_overlay=self.orion_mount_overlay)

    @property
    def visits_dir(self) -> Path:
        return self.orion_state_dir / "visits"

    @property
    def live_logs_dir(self) -> Path:
        return self.orion_state_dir / "logs"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret value Orion holds, for masking."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple(value.get_secret_value() for value in values if isinstance(value, SecretStr))

    @property
    def missing_for_serving(self) -> tuple[str, ...]:
        """What `serve` cannot do without, as lines."""
        lines = []
        if self.slack_bot_token is None:
            lines.append("SLACK_BOT_TOKEN: missing; the bot token (xoxb-…) of your Slack app")
        if self.slack_signing_secret is None and self.slack_app_token is None:
            lines.append(
                "SLACK_SIGNING_SECRET or SLACK_APP_TOKEN: missing; the first for HTTP events, the second for Socket Mode"
            )
        if self.anthropic_api_key is None and self.ai_gateway_api_key is None:
            lines.append("ANTHROPIC_API_KEY or AI_GATEWAY_API_KEY: missing; a key for the model")
        return tuple(lines)


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can enter; one that others could enter is closed."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = directory.stat().st_mode & 0o777
    if mode & 0o077 and directory.stat().st_uid == os.geteuid():
        directory.chmod(0o700)


def load_settings(
    *, env_file: Path | None = Path(".env"), given: Mapping[str, Any] | None = None
) -> Settings:
    """Read environment and `.env`; what is `given`, by field names, wins over both.

    Raises:
        SettingsError: naming every bad setting and its value (secrets' values are not shown).
    """
    try:
        names = _own_names(env_file)
    except (UnicodeDecodeError, OSError) as exc:
        raise SettingsError(f"{env_file} cannot be read: {exc}") from exc
    lines = [_unknown(name) for name in names if name.lower() not in Settings.model_fields]
    try:
        settings = Settings(_env_file=env_file, **(given or {}))
    except KeyringError as exc:
        lines.append(f"ORION_KEYRING: {exc}")
        raise SettingsError("\n".join(lines)) from None
    except ValidationError as exc:
        lines += [_explain(error) for error in exc.errors()]
        raise SettingsError("\n".join(lines)) from None
    if lines:
        raise SettingsError("\n".join(lines))
    return settings


def _own_names(env_file: Path | None) -> tuple[str, ...]:
    """Names that are meant for Orion, from environment and file."""
    names = [*os.environ, *(dotenv_values(env_file) if env_file is not None else ())]
    return tuple(sorted({name for name in names if name.startswith("ORION_")}))


def _unknown(name: str) -> str:
    """A misspelt allow-list must not open the bot to everyone."""
    near = difflib.get_close_matches(name.lower(), Settings.model_fields, n=1)
    return f"{name}: no such setting" + (f"; did you mean {near[0].upper()}?" if near else "")


def disable_telemetry() -> None:
    """Of a cloud's SDK, which would tell its maker what kind of program uses it."""
    os.environ.setdefault("VERCEL_TELEMETRY_DISABLED", "1")


def host_environment() -> Mapping[str, str]:
    """The process's environment, for the sandbox provider's allow-list and for child processes."""
    return dict(os.environ)


def default_ca_bundle(environment: Mapping[str, str]) -> Path | None:
    """The CA bundle that the environment names, if it exists."""
    for name in CA_VARIABLES:
        value = environment.get(name)
        if value and Path(value).is_file():
            return Path(value)
    return None


def _explain(error: Mapping[str, object]) -> str:
    location = error["loc"]
    message = str(error["msg"]).removeprefix("Value error, ")
    if not isinstance(location, tuple) or not location:
        return message
    name = str(location[0])
    field = Settings.model_fields.get(name)
    is_secret = field is not None and "SecretStr" in str(field.annotation)
    value = "" if is_secret else f" (is {error.get('input')!r})"
    return f"{name.upper()}: {message}{value}"

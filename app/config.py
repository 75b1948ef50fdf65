"""Settings: the only reader of the environment. Start-up names all bad ones together."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import PrivateAttr, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from app.brokerage.mcp_servers import McpServers, read_mcp_servers
from app.config_fields import SettingsFields
from app.key_forms import MODEL_KEYS, find_key_problem
from app.keyring import KEYRING_FIELDS, KeyringError, read_keyring
from app.runs.likeness import nearest
from app.runs.mount import Mount, find_refusal

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

_VERCEL_REGIONS = "arn1 bom1 cdg1 cle1 cpt1 dub1 dxb1 fra1 gru1 hkg1 hnd1 iad1 icn1 kix1 lhr1 pdx1 sfo1 sin1 syd1 yul1"
_REGIONS = {"vercel": tuple(_VERCEL_REGIONS.split()), "deno": ("ams", "ord")}
"""Source: documentation of Vercel, Sandbox Regions (all of Vercel's), and of Deno, Sandbox volumes, read 2026-11."""

VERCEL_MAX_VCPUS = 32
"""Of its largest plan. Source: Vercel documentation, Sandbox pricing, read 2026-11."""
DENO_MAX_RUN_S = 1680.0
"""Two minutes are for what a run does after its agent's end."""


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


class Settings(SettingsFields):
    """Everything an operator can set, checked, and what follows from it."""

    model_config = SettingsConfigDict(
        env_file=".env", extra="ignore", frozen=True, env_ignore_empty=True
    )

    _environment: Mapping[str, str] = PrivateAttr(default_factory=lambda: dict(os.environ))
    """What the names in the file of MCP servers stand for."""

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
    def _check_model_keys(self) -> "Settings":
        for name in MODEL_KEYS:
            key = getattr(self, name)
            if key and (problem := self.find_key_problem(name, key.get_secret_value())):
                raise ValueError(f"{name.upper()}: {problem}")
        return self

    def find_key_problem(self, name: str, key: str) -> str:
        """What is wrong with such a key, for the field of that name, without its value; empty when nothing is."""
        url = name.replace("_api_key", "_base_url")
        field = type(self).model_fields.get(url)
        is_vendors = url == name or field is None or getattr(self, url) == field.default
        return find_key_problem(name.upper(), key, is_vendors=is_vendors)

    @model_validator(mode="after")
    def _check_github(self) -> "Settings":
        url = urlsplit(self.orion_github_url)
        is_open = url.scheme == "http" and url.hostname not in ("127.0.0.1", "::1", "localhost")
        if self.github_token is not None and is_open:
            raise ValueError(
                f"ORION_GITHUB_URL: GITHUB_TOKEN would be sent there unencrypted; use https:// (is {self.orion_github_url!r})"
            )
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
        self._check_regions()
        if self.orion_sandbox == "deno" and self.orion_run_timeout_s > DENO_MAX_RUN_S:
            raise ValueError(
                f"ORION_RUN_TIMEOUT_S: a deno sandbox lives for 30 minutes, so a run has {DENO_MAX_RUN_S:g} s at most (is {self.orion_run_timeout_s:g})"
            )
        if self.orion_sandbox == "vercel" and self.orion_sandbox_vcpus > VERCEL_MAX_VCPUS:
            raise ValueError(
                f"ORION_SANDBOX_VCPUS: vercel gives {VERCEL_MAX_VCPUS} at most, by plan (is {self.orion_sandbox_vcpus:g})"
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

    def _check_regions(self) -> None:
        clouds = (self.orion_sandbox,) if self.orion_sandbox in _REGIONS else tuple(_REGIONS)
        known = "; ".join(f"{cloud}: {', '.join(_REGIONS[cloud])}" for cloud in clouds)
        words = self._regions
        for word in words:
            if not any(is_region(word, cloud) for cloud in _REGIONS):
                raise ValueError(f"ORION_SANDBOX_REGION: no region {word!r} ({known})")
        if words and not any(self.region_of(cloud) for cloud in clouds):
            raise ValueError(f"ORION_SANDBOX_REGION: no region {' '.join(words)!r} ({known})")
        for cloud in _REGIONS:
            if len(of_cloud := [word for word in words if is_region(word, cloud)]) > 1:
                raise ValueError(
                    f"ORION_SANDBOX_REGION: {' and '.join(of_cloud)} are both {cloud}'s; one for each cloud"
                )

    @field_validator("*")
    @classmethod
    def _check_secret(cls, value: object) -> object:
        """What a header cannot carry would come back in an error of whoever sends it, in full."""
        if isinstance(value, SecretStr):
            text = value.get_secret_value()
            if not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError("has white space, or a character that no key has; copy it again")
        return value

    # -- what follows from them ----------------------------------------------------------------------------------------

    @property
    def model(self) -> str | None:
        """The model named for the chosen agent."""
        return self.model_of(self.orion_agent)

    def model_of(self, agent: str) -> str | None:
        """The model named for an agent; ORION_MODEL is the chosen one's."""
        own: str | None = getattr(self, f"orion_model_{agent}", None)
        return own or (self.orion_model if agent == self.orion_agent else None)

    def models_of(self, agent: str) -> tuple[str, ...]:
        """Those that people may ask it for; empty = any."""
        allowed: tuple[str, ...] = getattr(self, f"orion_models_{agent}", ())
        return allowed

    def region_of(self, cloud: str) -> str | None:
        """The one of those that are set that is that cloud's."""
        return next((word for word in self._regions if is_region(word, cloud)), None)

    @property
    def _regions(self) -> list[str]:
        return (self.orion_sandbox_region or "").lower().replace(",", " ").split()

    @property
    def mcp_servers(self) -> McpServers:
        """What the file says now. It was good when the settings were read.

        Raises:
            ValueError: it is not any more.
        """
        path = self.orion_mcp_config_file
        return read_mcp_servers(path, self._environment) if path else McpServers()

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
    def missing_for_slack(self) -> tuple[str, ...]:
        """What `serve` cannot do without, as lines; besides a model."""
        lines = []
        if self.slack_bot_token is None:
            lines.append("SLACK_BOT_TOKEN: missing; the bot token (xoxb-…) of your Slack app")
        if self.slack_signing_secret is None and self.slack_app_token is None:
            lines.append(
                "SLACK_SIGNING_SECRET or SLACK_APP_TOKEN: missing; the first for HTTP events, the second for Socket Mode"
            )
        return tuple(lines)


def is_region(region: str, cloud: str) -> bool:
    """Whether that cloud has one of this name."""
    return region in _REGIONS[cloud]


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
        environment = _environment(env_file)
    except (UnicodeDecodeError, OSError) as exc:
        raise SettingsError(f"{env_file} cannot be read: {exc}") from exc
    names = sorted(name for name in environment if name.startswith("ORION_"))
    lines = [_unknown(name) for name in names if name.lower() not in Settings.model_fields]
    try:
        settings = Settings(_env_file=env_file, **(given or {}))
    except KeyringError as exc:
        lines.append(f"ORION_KEYRING: {exc}")
        raise SettingsError("\n".join(lines)) from None
    except ValidationError as exc:
        lines += [_explain(error) for error in exc.errors()]
        raise SettingsError("\n".join(lines)) from None
    settings._environment = environment  # noqa: SLF001 - this is how they are made
    try:
        _ = settings.mcp_servers
    except ValueError as exc:
        lines.append(f"ORION_MCP_CONFIG_FILE: {exc}")
    if lines:
        raise SettingsError("\n".join(lines))
    return settings


def _environment(env_file: Path | None) -> Mapping[str, str]:
    """What the file says, and the environment, which wins."""
    said = dotenv_values(env_file) if env_file is not None else {}
    return {name: value for name, value in said.items() if value is not None} | dict(os.environ)


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
    if field is not None and error["type"] == "literal_error":
        near = nearest(str(error["input"]).lower(), get_args(field.annotation))
        value += f"; did you mean {near}?" if near else ""
    return f"{name.upper()}: {message}{value}"

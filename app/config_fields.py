"""Every setting, with its type, bounds and what it is for. What several of them must be together: `config.py`."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from app.agent_fields import AgentFields, WordList, split_words
from app.budget_fields import BudgetFields

MODEL_VERSIONS = {
    "anthropic_base_url": "v1",
    "openai_base_url": "v1",
    "gemini_base_url": "v1beta",
}
"""What the broker's paths begin with, by fields. Sources: the vendors' API references, read 2026-11."""


class SettingsFields(AgentFields, BudgetFields):
    """Names in the environment are the upper-case field names."""

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
        "https://api.anthropic.com",
        description="Any server that speaks the Messages API, with or without /v1.",
    )
    openai_api_key: SecretStr | None = Field(
        None, description="Key for the OpenAI API: codex, and what else speaks with its models."
    )
    openai_base_url: str = Field(
        "https://api.openai.com",
        description="Any server that speaks OpenAI's Responses and Chat Completions, with or without /v1.",
    )
    gemini_api_key: SecretStr | None = Field(None, description="Key for the Gemini API: gemini.")
    gemini_base_url: str = Field(
        "https://generativelanguage.googleapis.com",
        description="Any server that speaks the Gemini API, with or without /v1beta.",
    )
    ai_gateway_api_key: SecretStr | None = Field(
        None,
        description="Vercel AI Gateway key; preferred over the direct keys of Anthropic and OpenAI when set.",
    )
    cursor_api_key: SecretStr | None = Field(
        None, description="Key of cursor, which asks its maker's servers only (experimental)."
    )
    orion_cursor_key_in_sandbox: bool = Field(
        default=False,
        description="cursor's key may be in its sandbox, where everything that it runs can read it, with the host's network open; without this there is no cursor.",
    )
    copilot_github_token: SecretStr | None = Field(
        None,
        description="GitHub token with Copilot permission; hidden like all keys, not used: copilot works with the models of its provider setting.",
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
    orion_git_name: str = Field(
        "Orion", description="Author of commits in docker sandboxes and in repositories."
    )
    orion_git_email: str = Field("orion@localhost", description="The same.")
    github_token: SecretStr | None = Field(
        None,
        description="For repositories on GitHub: everyone who may ask Orion reaches what it reaches; contents and pull requests, read and write. It stays outside sandboxes.",
    )
    orion_github_url: str = Field(
        "https://github.com",
        description="Where repo=owner/name is, and all that is given GITHUB_TOKEN: GitHub, or a GitHub Enterprise Server.",
    )
    orion_github_api_url: str = Field(
        "https://api.github.com",
        description="Its REST API; for a GitHub Enterprise Server https://HOST/api/v3.",
    )
    orion_pull_requests: Literal["ask", "always", "never"] = Field(
        "ask",
        description="When changes are pushed and a pull request is opened: ask (pr=yes), always, never.",
    )
    orion_ca_bundle: Path | None = Field(
        None,
        description="CA bundle for package installs inside; default: the one the environment names.",
    )

    orion_sandbox_region: str | None = Field(
        None,
        description="Where cloud sandboxes run, one region for each cloud: vercel iad1 (the default) or another of its regions; deno ord (the default) or ams.",
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

    @field_validator(
        "orion_allowed_users",
        "orion_allowed_channels",
        mode="before",
    )
    @classmethod
    def _split_words(cls, value: object) -> object:
        return split_words(value)

    @field_validator("slack_api_url")
    @classmethod
    def _end_with_slash(cls, value: str) -> str:
        return value if value.endswith("/") else value + "/"

    @field_validator(
        *("slack_api_url", "anthropic_base_url", "openai_base_url", "gemini_base_url"),
        *("langfuse_base_url", "orion_public_url", "orion_github_url", "orion_github_api_url"),
    )
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not value.startswith(("https://", "http://")):
            raise ValueError("must start with https:// or http://")
        if not urlsplit(value).hostname:
            raise ValueError("names no host")
        if "?" in value or "#" in value:
            raise ValueError("must end before ? and #: Orion puts its own paths behind it")
        return value

    @field_validator(*MODEL_VERSIONS)
    @classmethod
    def _leave_out_version(cls, value: str, info: ValidationInfo) -> str:
        """OpenAI's SDK wants the version in its base URL, Anthropic's does not; Orion puts it behind what remains."""
        return value.rstrip("/").removesuffix(f"/{MODEL_VERSIONS[info.field_name or '']}")

    @field_validator("orion_state_dir", "orion_mount_dir")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser().resolve() if value is not None else None

    @field_validator("orion_system_prompt_file", "orion_ca_bundle", "orion_mcp_config_file")
    @classmethod
    def _must_exist(cls, value: Path | None) -> Path | None:
        if value is not None and not value.expanduser().is_file():
            raise ValueError(f"no such file: {value}")
        return value.expanduser().resolve() if value is not None else None

"""Settings of the service itself, of those that it speaks to (Slack, Langfuse, GitHub), and of what model calls may cost."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from app.settings.group import SettingsGroup, Url, whole_path

_BOT_TOKENS = ("xoxb-", "xoxe.xoxb-")
"""The second kind is of apps that rotate their tokens. Source: Slack, token types, read 2026-11."""


class SlackSettings(SettingsGroup):
    model_config = ConfigDict(title="Slack")

    bot_token: SecretStr | None = Field(
        None,
        alias="SLACK_BOT_TOKEN",
        description="Bot token (xoxb-…) of the installed app.",
        json_schema_extra={"is_first": True},
    )
    signing_secret: SecretStr | None = Field(
        None,
        alias="SLACK_SIGNING_SECRET",
        description="Signing secret of the app; needed for HTTP events, not for Socket Mode.",
    )
    app_token: SecretStr | None = Field(
        None,
        alias="SLACK_APP_TOKEN",
        description="App-level token (xapp-…); set = Socket Mode instead of HTTP events.",
        json_schema_extra={"is_first": True},
    )
    config_token: SecretStr | None = Field(
        None,
        alias="SLACK_CONFIG_TOKEN",
        description="App configuration token (xoxe.xoxp-…, api.slack.com/apps, good for twelve hours), for `orion doctor` alone: it compares the app's manifest with Orion's.",
    )
    api_url: Annotated[Url, AfterValidator(lambda url: url if url.endswith("/") else url + "/")] = (
        Field(
            "https://slack.com/api/",
            alias="SLACK_API_URL",
            description="Any Slack-compatible server, for tests.",
        )
    )

    live_answers_dm: Literal["stream", "update", "final"] = Field(
        "stream",
        alias="ORION_LIVE_ANSWERS_DM",
        description="How an answer is shown in a DM while it comes: stream (written bit by bit, with cards for plan and tools), update (the thinking message is edited), final (nothing before the answer). Where Slack refuses a stream, update.",
    )
    live_answers_channel: Literal["stream", "update", "final"] = Field(
        "update",
        alias="ORION_LIVE_ANSWERS_CHANNEL",
        description="The same in channels.",
    )

    @model_validator(mode="after")
    def _check_token_kinds(self) -> "SlackSettings":
        problems = []
        if self.app_token and not self.app_token.get_secret_value().startswith("xapp-"):
            problems.append("SLACK_APP_TOKEN: an app-level token starts with xapp-")
        if self.bot_token and not self.bot_token.get_secret_value().startswith(_BOT_TOKENS):
            problems.append("SLACK_BOT_TOKEN: a bot token starts with xoxb-")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def find_missing(self, *, hears: bool) -> tuple[str, ...]:
        """Returns what a process cannot do without, as lines; `hears`: of events."""
        lines = []
        if self.bot_token is None:
            lines.append("SLACK_BOT_TOKEN: missing; the bot token (xoxb-…) of your Slack app")
        if hears and self.signing_secret is None and self.app_token is None:
            lines.append(
                "SLACK_SIGNING_SECRET or SLACK_APP_TOKEN: missing; the first for HTTP events, the second for Socket Mode"
            )
        return tuple(lines)


def _check_environment(name: str) -> str:
    """Source: Langfuse, "Environments", read 2026-11."""
    if not re.fullmatch(r"[a-z0-9_-]{1,40}", name) or name.startswith("langfuse"):
        raise ValueError("lower case letters, digits, - and _, 40 at the most, not langfuse first")
    return name


class LangfuseSettings(SettingsGroup):
    model_config = ConfigDict(title="Langfuse")

    public_key: str | None = Field(
        None, alias="LANGFUSE_PUBLIC_KEY", description="Without both keys no traces leave."
    )
    secret_key: SecretStr | None = Field(
        None, alias="LANGFUSE_SECRET_KEY", description="Goes with LANGFUSE_PUBLIC_KEY."
    )
    base_url: Url = Field(
        "https://cloud.langfuse.com",
        alias="LANGFUSE_BASE_URL",
        description="Langfuse Cloud or a server of version 4.59 or later.",
    )
    trace_content: bool = Field(
        default=True,
        alias="ORION_TRACE_CONTENT",
        description="Prompt and answer in traces, and the system prompt as a prompt with versions in Langfuse, masked.",
    )
    trace_links: bool = Field(
        default=False,
        alias="ORION_TRACE_LINKS",
        description="A link to its trace, and to its run at `/ops` (its id, where that page has no public address), below each answer; who may follow them is Langfuse's and `/ops`'s to say.",
    )

    environment: Annotated[str, AfterValidator(_check_environment)] = Field(
        "production",
        alias="LANGFUSE_TRACING_ENVIRONMENT",
        description="Which of several deployments a trace is of, for Langfuse's filter: lower case letters, digits, - and _.",
    )
    release: str = Field(
        "",
        max_length=200,
        alias="LANGFUSE_RELEASE",
        description="What is deployed, such as a commit, for Langfuse's filter; empty = the version of Orion.",
    )
    sample_rate: float = Field(
        1.0,
        ge=0,
        le=1,
        alias="LANGFUSE_SAMPLE_RATE",
        description="Part of the runs that are traced, whole ones, by their ids; 1 = all.",
    )

    @property
    def takes_comments(self) -> bool:
        """Whether what people say of an answer is kept anywhere."""
        return bool(self.public_key) and self.trace_content

    @model_validator(mode="after")
    def _check_keys(self) -> "LangfuseSettings":
        if bool(self.public_key) != bool(self.secret_key):
            raise ValueError("LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY: set both or none")
        if self.trace_links and not self.public_key:
            raise ValueError("ORION_TRACE_LINKS: there are no traces without LANGFUSE_PUBLIC_KEY")
        return self


class RepositorySettings(SettingsGroup):
    model_config = ConfigDict(title="Repositories")

    github_token: SecretStr | None = Field(
        None,
        alias="GITHUB_TOKEN",
        description="For repositories on GitHub: everyone who may ask Orion reaches what it reaches; contents and pull requests, read and write. It stays outside sandboxes.",
    )
    github_url: Url = Field(
        "https://github.com",
        alias="ORION_GITHUB_URL",
        description="Where repo=owner/name is, and all that is given GITHUB_TOKEN: GitHub, or a GitHub Enterprise Server.",
    )
    github_api_url: Url = Field(
        "https://api.github.com",
        alias="ORION_GITHUB_API_URL",
        description="Its REST API; for a GitHub Enterprise Server https://HOST/api/v3.",
    )
    github_app_client_id: Annotated[str, StringConstraints(pattern=r"^[\w.-]*$")] = Field(
        "",
        alias="ORION_GITHUB_APP_CLIENT_ID",
        description="Of a GitHub App with the device flow switched on: people link their accounts (/orion link), sealed with ORION_OWN_KEYS_SECRET.",
    )
    github_app_private_key: SecretStr | None = Field(
        None,
        alias="ORION_GITHUB_APP_PRIVATE_KEY",
        description="Of that App, as PEM, with \\n for the ends of lines: the deployment acts as the App, by tokens of an hour for one repository each, instead of by GITHUB_TOKEN.",
    )
    github_identity: Literal["deployment", "person"] = Field(
        "deployment",
        alias="ORION_GITHUB_IDENTITY",
        description="By whose right repositories are read and written: that of GITHUB_TOKEN, or of whoever asks, by the account that they have linked, and never by another's.",
    )
    pull_requests: Literal["ask", "always", "never"] = Field(
        "ask",
        alias="ORION_PULL_REQUESTS",
        description="When changes are pushed and a pull request is opened: ask (pr=yes), always, never.",
    )
    pull_request_rounds: int = Field(
        0,
        ge=0,
        le=10,
        alias="ORION_PULL_REQUEST_ROUNDS",
        description="When checks of a pull request fail, so many times the agent goes on by itself, for whoever asked last; 0 = when somebody presses Fix it.",
    )
    git_name: str = Field(
        "Orion",
        alias="ORION_GIT_NAME",
        description="Author of commits in docker and deno sandboxes and in repositories.",
    )
    git_email: str = Field(
        "orion@localhost",
        alias="ORION_GIT_EMAIL",
        description="The author's address, as ORION_GIT_NAME.",
    )

    @model_validator(mode="after")
    def _check_identity(self) -> "RepositorySettings":
        if self.github_identity == "person" and not self.github_app_client_id:
            raise ValueError("ORION_GITHUB_IDENTITY: person needs ORION_GITHUB_APP_CLIENT_ID")
        return self

    @property
    def app_private_key(self) -> str:
        """Returns the App's key as PEM; empty = there is none."""
        key = self.github_app_private_key
        return key.get_secret_value().replace("\\n", "\n").strip() if key is not None else ""

    @model_validator(mode="after")
    def _check_app_key(self) -> "RepositorySettings":
        if not self.app_private_key:
            return self
        if not self.github_app_client_id:
            raise ValueError(
                "ORION_GITHUB_APP_PRIVATE_KEY: set ORION_GITHUB_APP_CLIENT_ID, too, which says whose key it is"
            )
        if not _is_rsa_key(self.app_private_key):
            # Nothing of it is shown: it may be most of a key.
            raise ValueError(
                "ORION_GITHUB_APP_PRIVATE_KEY: is no RSA private key in PEM, as GitHub lets an App's owner download it"
            )
        return self

    @model_validator(mode="after")
    def _check_token_is_safe(self) -> "RepositorySettings":
        what = "GITHUB_TOKEN" if self.github_token is not None else "a token"
        is_needed = self.github_token is not None or self.github_app_client_id
        for name, value in (
            ("ORION_GITHUB_URL", self.github_url),
            ("ORION_GITHUB_API_URL", self.github_api_url),
        ):
            url = urlsplit(value)
            is_open = url.scheme == "http" and url.hostname not in ("127.0.0.1", "::1", "localhost")
            if is_needed and is_open:
                raise ValueError(
                    f"{name}: {what} would be sent there unencrypted; use https:// (is {value!r})"
                )
        return self


def _is_rsa_key(text: str) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - for those who have an App
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415 - for those who have an App
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above

    try:
        return isinstance(load_pem_private_key(text.encode(), password=None), RSAPrivateKey)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


_ESCAPES = "in user and password write %3A for a colon, %2F for a slash, %40 for @, %23 for #"


MIN_TOKEN_CHARS = 16
"""Of what lets people of the internet in: nobody guesses it, however often they may try."""


def _check_token(value: SecretStr) -> SecretStr:
    if len(value.get_secret_value()) < MIN_TOKEN_CHARS:
        raise ValueError(f"needs {MIN_TOKEN_CHARS} characters or more, as of openssl rand -hex 32")
    return value


def _check_database_url(value: SecretStr | None) -> SecretStr | None:
    """Shows of a wrong one no more than its scheme: the rest may be a password."""
    if value is None:
        return None
    url = urlsplit(value.get_secret_value())
    if url.scheme not in ("postgresql", "postgres"):
        found = f"{url.scheme}://…" if url.scheme else "none"
        raise ValueError(
            f"must start with postgresql:// (its scheme is {found}); without it Orion keeps an SQLite file in ORION_STATE_DIR"
        )
    try:
        _ = url.port
    except ValueError as exc:
        raise ValueError(f"has a port that is no number up to 65535; {_ESCAPES}") from exc
    if any(sign in url.path.strip("/") + url.fragment for sign in "@/#") or "@" in (
        url.password or ""
    ):
        raise ValueError(f"cannot be told apart; {_ESCAPES}")
    if not url.hostname and "host" not in parse_qs(url.query):
        raise ValueError("names no host")
    if not url.path.strip("/"):
        raise ValueError("names no database: postgresql://user:password@host/database")
    return value


class ServiceSettings(SettingsGroup):
    model_config = ConfigDict(title="Service")

    state_dir: Annotated[Path, AfterValidator(whole_path)] = Field(
        Path("~/.local/state/orion"),
        alias="ORION_STATE_DIR",
        description="Database (unless ORION_DATABASE_URL is set), environments, sandboxes, sockets.",
    )
    database_url: Annotated[SecretStr | None, AfterValidator(_check_database_url)] = Field(
        None,
        alias="ORION_DATABASE_URL",
        description="postgresql://user:password@host/database?sslmode=… (13 or later) for several processes; without it an SQLite file in ORION_STATE_DIR.",
    )
    public_url: Url | None = Field(
        None,
        alias="ORION_PUBLIC_URL",
        description="https:// address where Slack, browsers and cloud sandboxes reach Orion; without it a cloud's network adds the model key by itself.",
    )
    host: str = Field("127.0.0.1", alias="ORION_HOST", description="Address to listen on.")
    port: int = Field(
        3000,
        ge=0,
        le=65_535,
        alias="ORION_PORT",
        description="Port to listen on; 0 = any free one.",
    )
    ops_token: Annotated[SecretStr, AfterValidator(_check_token)] | None = Field(
        None,
        alias="ORION_OPS_TOKEN",
        description="For operators, 16 random characters or more (openssl rand -hex 32): opens the page at /ops, of which there is none without it; the bearer token of /metrics, which without it answers only where Orion is bound to loopback.",
    )
    retention_days: int = Field(
        14,
        ge=2,
        le=3650,
        alias="ORION_RETENTION_DAYS",
        description="Days that finished runs, and files of threads, are kept; at least 2, as Slack may send a message again.",
    )
    audit_days: int = Field(
        90,
        ge=1,
        le=3650,
        alias="ORION_AUDIT_DAYS",
        description="Days that it is kept who was allowed or refused what (`orion audit`).",
    )
    catch_up_h: int = Field(
        24,
        ge=0,
        le=168,
        alias="ORION_CATCH_UP_H",
        description="Questions that nobody heard, as Orion or its connection was down, are answered when they are not older than so many hours; 0 = none is looked for.",
    )
    log_format: Literal["console", "json"] = Field(
        "console", alias="ORION_LOG_FORMAT", description="console or json."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", alias="ORION_LOG_LEVEL", description="Least level shown."
    )
    keyring: bool = Field(
        default=False,
        alias="ORION_KEYRING",
        description="Look up sandbox providers' tokens that are not set here in the keyring of the system, where `orion setup --keyring` puts them.",
    )

    is_function: bool = Field(
        default=False,
        alias="VERCEL",
        description="Set by Vercel itself, where Orion runs as functions: nothing goes on after an answer, and work is done in slices.",
    )
    deployment: str = Field(
        "", alias="VERCEL_DEPLOYMENT_ID", description="Set by Vercel itself; messages go to it."
    )
    cron_secret: Annotated[SecretStr, AfterValidator(_check_token)] | None = Field(
        None,
        alias="CRON_SECRET",
        description="16 random characters or more, which Vercel's cron says when it asks for /ops/sweep; without it nobody may.",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_state_dir(cls, said: object) -> object:
        """Puts the state directory below /tmp on Vercel, where a function can write nowhere else, unless one is set."""
        if isinstance(said, dict) and said.get("VERCEL") and not said.get("ORION_STATE_DIR"):
            return said | {"ORION_STATE_DIR": "/tmp/orion"}  # noqa: S108 - each invocation has a directory of its own in it
        return said

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches what it listens on."""
        return self.host in ("127.0.0.1", "::1", "localhost")


MAX_USD = 1_000_000


class BudgetSettings(SettingsGroup):
    model_config = ConfigDict(title="Budgets")

    run_usd: Decimal | None = Field(
        None,
        gt=0,
        le=MAX_USD,
        alias="ORION_BUDGET_RUN_USD",
        description="What one request may cost. Needs prices in orion.toml for all models that may be asked.",
    )
    user_day_usd: Decimal | None = Field(
        None,
        gt=0,
        le=MAX_USD,
        alias="ORION_BUDGET_USER_DAY_USD",
        description="What a person's requests may cost in a day.",
    )
    channel_day_usd: Decimal | None = Field(
        None,
        gt=0,
        le=MAX_USD,
        alias="ORION_BUDGET_CHANNEL_DAY_USD",
        description="What a channel's requests may cost in a day; orion.toml may give one another budget.",
    )
    day_usd: Decimal | None = Field(
        None,
        gt=0,
        le=MAX_USD,
        alias="ORION_BUDGET_DAY_USD",
        description="What all requests may cost in a day.",
    )

"""All settings, read once: the only reader of the environment. Start-up names all bad ones together."""

import difflib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints
from urllib.parse import unquote, urlsplit

from dotenv import dotenv_values
from pydantic import SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from app.egress.hosts import HostEntry, HostSet, Item
from app.runs.options import nearest
from app.runs.policy import (
    AccessSettings,
    DeliverySettings,
    FileSettings,
    FollowUpSettings,
    LimitSettings,
)
from app.runs.repository.names import repository_key
from app.runs.session import Mount, find_mount_refusal
from app.settings.agents import AgentsSettings, ModelsSettings, is_for_each_agent, names_for_agents
from app.settings.approvals import find_dead_rules
from app.settings.group import SettingsError, fields_of
from app.settings.mcp import McpServers, read_mcp_servers
from app.settings.orion_toml import ORION_TOML, OrionToml, load_orion_toml
from app.settings.permissions import find_unreached
from app.settings.sandboxes import SandboxSettings, token_fields
from app.settings.service import (
    BudgetSettings,
    LangfuseSettings,
    RepositorySettings,
    ServiceSettings,
    SlackSettings,
)
from app.settings.toml_lines import Location, place_of
from sandbox_runtime.registry import provider_spec

ENV_FILE = Path(".env")
KEYRING_SERVICE = "orion"


class KeyringError(ValueError):
    """The operating system's keyring cannot be used; says why and what to do."""


def read_keyring(names: Collection[str]) -> dict[str, str]:
    """Reads those of the named settings that the operating system's keyring holds, by their field names.

    Raises:
        KeyringError
    """
    library = _library()
    try:
        found = {name: library.get_password(KEYRING_SERVICE, name.upper()) for name in names}
    except library.errors.KeyringError as exc:
        raise _unusable(exc) from exc
    return {name: value for name, value in found.items() if value}


def write_keyring(name: str, value: str) -> None:
    """Keeps the value of a setting there, by its field name.

    Raises:
        KeyringError
    """
    library = _library()
    try:
        library.set_password(KEYRING_SERVICE, name.upper(), value)
    except library.errors.KeyringError as exc:
        raise _unusable(exc) from exc


def _library() -> ModuleType:
    try:
        import keyring  # noqa: PLC0415 - an extra
        import keyring.errors  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise KeyringError(
            "it needs the package 'keyring': install the extra 'keyring' (pip install 'orion[keyring]')"
        ) from exc
    return keyring


def _unusable(exc: Exception) -> KeyringError:
    reason = str(exc).partition("\n")[0] or type(exc).__name__
    return KeyringError(f"the keyring of this system cannot be used: {reason}; keep tokens in .env")


CA_VARIABLES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)
_TRUE = ("1", "true", "yes", "on", "t", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator can set, checked, and what follows from it. In this order they are listed for people."""

    slack: SlackSettings = field(default_factory=SlackSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    repositories: RepositorySettings = field(default_factory=RepositorySettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    follow_ups: FollowUpSettings = field(default_factory=FollowUpSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    files: FileSettings = field(default_factory=FileSettings)
    budgets: BudgetSettings = field(default_factory=BudgetSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    langfuse: LangfuseSettings = field(default_factory=LangfuseSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)

    mcp_servers: McpServers = field(default_factory=McpServers, repr=False)
    """Those of ORION_MCP_CONFIG_FILE; read with the settings, as masker, broker and agents must know the same ones."""
    toml: OrionToml = field(default_factory=OrionToml)
    host_sets: Mapping[HostSet, Sequence[HostEntry]] = field(default_factory=dict)
    """The hosts of sets, as far as the tools of this machine were asked; see `app.egress.sets`."""
    namespace: str = ""
    """The name by which providers know the sandboxes of this Orion, where it is kept in the database; empty = it follows from
    the state directory."""

    # -- what follows from them ----------------------------------------------------------------------------------------

    def model_of(self, agent: str) -> str | None:
        """Returns the model named for an agent."""
        return self.agents.model_of(agent)

    def models_of(self, agent: str) -> tuple[str, ...]:
        """Returns those that people may ask it for; empty = any."""
        return self.agents.allowed_models.get(agent, ())

    @property
    def mount(self) -> Mount | None:
        return self.sandbox.mount

    @property
    def database(self) -> Path | str:
        """Returns the path of the SQLite file, or the `postgresql://…` URL, which holds a password."""
        url = self.service.database_url
        return url.get_secret_value() if url else self.service.state_dir / "orion.db"

    def entries(self, items: Iterable[Item]) -> tuple[HostEntry, ...]:
        """Returns the hosts of a list, of sets those that are known."""
        found: list[HostEntry] = []
        for item in items:
            found += self.host_sets.get(item, ()) if isinstance(item, HostSet) else [item]
        return tuple(dict.fromkeys(found))

    @property
    def host_lists(self) -> Iterator[tuple[Item, ...]]:
        """Yields all lists of hosts that sandboxes may reach: everyone's, then those of channels and repositories."""
        yield self.sandbox.egress_hosts
        yield from self.toml.channel_hosts.values()
        yield from self.toml.repository_hosts.values()

    @property
    def broker_directory(self) -> Path:
        return self.service.state_dir / "broker"

    @property
    def session_locks_dir(self) -> Path:
        return self.service.state_dir / "visits"

    @property
    def live_logs_dir(self) -> Path:
        return self.service.state_dir / "logs"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns every secret value Orion holds, those of MCP servers too, for masking."""
        values = [getattr(getattr(self, group), name) for group, name, _ in all_fields()]
        values += self.agents.own_keys.values()
        own = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        if isinstance(self.database, str):
            own.append(unquote(urlsplit(self.database).password or ""))
        return (*own, *self.mcp_servers.secrets)

    def at(self, state_dir: Path) -> "Settings":
        """Returns the same settings for another state directory, and the database in it."""
        own = {"state_dir": state_dir, "database_url": None}
        return replace(self, service=self.service.model_copy(update=own), namespace="")

    def value_of(self, name: str) -> Any:  # noqa: ANN401 - each has a type of its own
        """Returns the value of a setting by its name in the environment, in either case."""
        places = {names[0]: (group, field) for group, field, names in all_fields()}
        group, attribute = places[name.upper()]
        return getattr(getattr(self, group), attribute)


_READ_LATER = ("mcp_servers", "toml", "host_sets", "namespace")


def groups() -> Mapping[str, type]:
    """Returns the classes of settings by the attributes of `Settings`, in order."""
    hints = get_type_hints(Settings)
    return {name: kind for name, kind in hints.items() if name not in _READ_LATER}


def all_fields() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields group, attribute, and names in the environment: one, or one for each agent."""
    for group, kind in groups().items():
        for attribute, info in fields_of(kind).items():
            yield group, attribute, names_of(info)


def names_of(info: FieldInfo) -> tuple[str, ...]:
    """Returns what a setting is called in the environment: one name, or one for each agent."""
    alias = info.alias or ""
    if not is_for_each_agent(alias):
        return (alias,)
    return tuple(name for _, name in names_for_agents(alias))


def load_settings(
    *,
    env_file: Path | None = ENV_FILE,
    given: Mapping[str, Any] | None = None,
    toml: Path | None = ORION_TOML,
) -> Settings:
    """Reads environment and `.env`; what is `given`, by names in either case, wins over both. `toml`: None = no such file.

    Raises:
        SettingsError: naming every bad setting and its value (secrets' values are not shown).
    """
    environment = read_environment(env_file)
    known = {name for _, _, names in all_fields() for name in names}
    lines = [
        _unknown(name, known)
        for name in sorted(environment)
        if name.startswith("ORION_") and name not in known
    ]
    said: dict[str, Any] = {name.upper(): value for name, value in environment.items() if value}
    said |= {name.upper(): value for name, value in (given or {}).items()}
    try:
        said = _from_keyring(said) | said
    except KeyringError as exc:
        lines.append(f"ORION_KEYRING: {exc}")
    found: dict[str, Any] = {}
    for group, kind in groups().items():
        try:
            found[group] = TypeAdapter(kind).validate_python(said)
        except ValidationError as exc:
            lines += [_explain(error, kind) for error in exc.errors()]
    settings = Settings(**found)
    try:
        if path := settings.agents.mcp_config_file:
            settings = replace(settings, mcp_servers=read_mcp_servers(path, environment))
    except ValueError as exc:
        lines.append(f"ORION_MCP_CONFIG_FILE: {exc}")
    if len(found) == len(groups()):
        lines += _find_conflicts(settings)
    try:
        settings = replace(settings, toml=load_orion_toml(toml) if toml else OrionToml())
    except SettingsError as exc:
        lines.append(str(exc))
    lines += (
        f"{place_of(settings.toml.path or ORION_TOML, location)} {one}"
        for location, one in _find_toml_conflicts(settings)
    )
    if lines:
        raise SettingsError("\n".join(lines))
    return settings


def read_environment(env_file: Path | None = ENV_FILE) -> Mapping[str, str]:
    """Returns what the file says, and the environment, which wins.

    Raises:
        SettingsError: the file is there and cannot be read.
    """
    try:
        said = dotenv_values(env_file) if env_file is not None else {}
    except (UnicodeDecodeError, OSError) as exc:
        raise SettingsError(f"{env_file} cannot be read: {exc}") from exc
    return {name: value for name, value in said.items() if value is not None} | dict(os.environ)


def _from_keyring(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tokens that are nowhere else; asked only with ORION_KEYRING."""
    if str(said.get("ORION_KEYRING", "")).lower() not in _TRUE:
        return {}
    found = read_keyring([name for name in token_fields() if not said.get(name.upper())])
    return {name.upper(): value for name, value in found.items()}


def _find_conflicts(settings: Settings) -> Iterator[str]:
    """Yields what is wrong with settings of several groups together."""
    yield from settings.sandbox.find_conflicts(settings.limits.run_timeout_s)
    yield from _find_mount_problem(settings)
    yield from _find_account_problems(settings)


def _find_account_problems(settings: Settings) -> Iterator[str]:
    repositories, servers = settings.repositories, settings.mcp_servers.of_persons
    links = repositories.github_app_client_id and (
        not repositories.app_private_key or repositories.github_identity == "person"
    )
    if links and settings.models.own_keys_secret is None:
        yield "ORION_GITHUB_APP_CLIENT_ID: set ORION_OWN_KEYS_SECRET, too"
    if servers and settings.models.own_keys_secret is None:
        yield f"ORION_MCP_CONFIG_FILE: people link accounts of their own at {', '.join(servers)}: set ORION_OWN_KEYS_SECRET, by which their tokens are sealed"
    if settings.service.port == 0 and not settings.service.public_url:
        for name, server in servers.items():
            if server.oauth and server.oauth.authorization_url and not server.oauth.redirect_url:
                yield f"ORION_MCP_CONFIG_FILE: mcpServers.{name}.oauth: with ORION_PORT=0 no address is known at which a login could end: set redirect_url"


def _find_toml_conflicts(settings: Settings) -> Iterator[tuple[Location, str]]:
    """Yields what of `orion.toml` cannot be kept with the settings, with where it stands."""
    for location, one in find_dead_rules(
        settings.toml.approvals,
        servers=tuple(settings.mcp_servers.outside),
        operators=settings.access.operators,
    ):
        yield location, f"approvals: {one}"
    yield from find_unreached(settings.toml.permissions)
    spellings: dict[str, str] = {}
    for name in settings.toml.repositories:
        first = spellings.setdefault(repository_key(name, settings.repositories.github_url), name)
        if first != name:
            said = (
                f"repositories.{name}: is the same repository as {first}; write one table for both"
            )
            yield ("repositories", name), said
    if settings.repositories.github_identity == "person":
        for name in settings.toml.setups:
            yield (
                ("repositories", name, "setup"),
                f"repositories.{name}: setup is run with GITHUB_TOKEN, for everybody; it cannot be with ORION_GITHUB_IDENTITY=person (init can)",
            )


def _find_mount_problem(settings: Settings) -> Iterator[str]:
    mount, provider = settings.mount, settings.sandbox.provider
    if mount is None:
        if settings.sandbox.mount_overlay:
            yield "ORION_MOUNT_OVERLAY: set ORION_MOUNT_DIR, too"
        return
    home = Path.home().resolve()
    if refusal := find_mount_refusal(
        mount.directory, home=home, state_dir=settings.service.state_dir
    ):
        yield f"ORION_MOUNT_DIR: {refusal}"
    elif provider != "auto" and not provider_spec(provider).has_mount and not mount.is_overlay:
        yield f"ORION_MOUNT_DIR: {provider} sandboxes cannot work in it; set ORION_MOUNT_OVERLAY=true, or ORION_SANDBOX=local"


def _unknown(name: str, known: set[str]) -> str:
    """A misspelt allow-list must not open the bot to everyone."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"{name}: no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _explain(error: Mapping[str, Any], group: type) -> str:
    location = error["loc"]
    message = str(error["msg"]).removeprefix("Value error, ")
    if not location:
        return message
    info = next((one for one in fields_of(group).values() if one.alias == location[0]), None)
    name = str(location[0])
    if is_for_each_agent(name) and len(location) > 1:
        name = dict(names_for_agents(name))[str(location[1])]
    is_secret = info is not None and "SecretStr" in str(info.annotation)
    value = "" if is_secret else f" (is {error.get('input')!r})"
    if info is not None and error["type"] == "literal_error":
        words = error.get("ctx", {}).get("known") or get_args(info.annotation)
        near = nearest(str(error["input"]).lower(), words)
        value += f"; did you mean {near}?" if near else ""
    return f"{name}: {message}{value}"


def make_private(directory: Path) -> None:
    """Makes a directory that only its owner can enter; one that others could enter is closed."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = directory.stat().st_mode & 0o777
    if mode & 0o077 and directory.stat().st_uid == os.geteuid():
        directory.chmod(0o700)


def set_for_sdk(variables: Mapping[str, str]) -> None:
    """Sets what a provider's client reads when it is imported, where the operator has not: it tells its maker nothing."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def host_environment() -> Mapping[str, str]:
    """Returns the process's environment, for the sandbox provider's allow-list and for child processes."""
    return dict(os.environ)


def default_ca_bundle(environment: Mapping[str, str]) -> Path | None:
    """Returns the CA bundle that the environment names, if it exists."""
    for name in CA_VARIABLES:
        value = environment.get(name)
        if value and Path(value).is_file():
            return Path(value)
    return None

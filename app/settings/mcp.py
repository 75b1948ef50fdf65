"""The operator's file of MCP servers, read and checked: commands inside sandboxes, and servers that only the broker speaks to."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from app.accounts.records import GITHUB
from app.approvals.questions import SERVER

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
"""Source: RFC 9110, 5.1 and 5.5, without the obsolete text beyond ASCII."""
_URL = TypeAdapter(HttpUrl)
_OAUTH_URLS = ("token_url", "device_authorization_url", "authorization_url", "redirect_url")

ModelT = TypeVar("ModelT", bound=BaseModel)


class OAuthSettings(BaseModel):
    """An OAuth client of the operator's, and the endpoints that give it tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    token_url: str
    client_id: str
    client_secret: str = Field(default="", repr=False)
    scope: str = ""
    device_authorization_url: str = ""
    """Where each person links an account of their own, by the device flow."""
    authorization_url: str = ""
    """The same by the authorization code flow, with PKCE. Neither: all act as the client."""
    redirect_url: str = ""
    """Where the second one ends, if not at Orion."""

    @property
    def is_personal(self) -> bool:
        """Whether people link accounts of their own."""
        return bool(self.device_authorization_url or self.authorization_url)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.device_authorization_url and self.authorization_url:
            raise ValueError("either device_authorization_url or authorization_url, not both")
        if self.redirect_url and not self.authorization_url:
            raise ValueError("redirect_url is for authorization_url, which is missing")
        if not self.is_personal and not self.client_secret:
            raise ValueError(
                "client_secret is missing, or else device_authorization_url or authorization_url"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideServer:
    url: str
    headers: Mapping[str, str] = field(repr=False)
    """Sent with each request, secrets included; they never enter a sandbox."""
    oauth: OAuthSettings | None = None
    """The client whose tokens are sent, beside `headers`."""
    inserted: frozenset[str] = field(default=frozenset(), repr=False)
    """Values of environment variables that the file refers to."""

    @property
    def is_personal(self) -> bool:
        """Whether people have accounts of their own at it."""
        return self.oauth is not None and self.oauth.is_personal


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServers:
    inside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Commands that the agent starts in its sandbox; the agent can read all that is in them."""
    outside: Mapping[str, OutsideServer] = field(default_factory=dict)

    @property
    def of_persons(self) -> Mapping[str, OutsideServer]:
        """Returns those that people have accounts of their own at."""
        return {name: server for name, server in self.outside.items() if server.is_personal}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns the secrets to mask: values of environment variables, client secrets, and header values, whole and without the scheme of
        an Authorization.
        """
        servers = self.outside.values()
        values = [value for server in servers for value in server.headers.values()]
        parts = {part for value in values for part in (value, value.partition(" ")[2])}
        parts |= {server.oauth.client_secret for server in servers if server.oauth}
        parts = parts.union(*(server.inserted for server in servers))
        return tuple(sorted(parts - {""}))

    def for_sandbox(self, *, relay: str, token: str, asks_people: bool = False) -> bytes:
        """Renders the file for the agent in the sandbox, where servers outside are reached through the relay.

        `relay` and `token` are the placeholders that stand for the relay's URL and the run's token. `asks_people`: with Orion's own server.
        """
        reached = (*self.outside, *([SERVER] if asks_people else []))
        if not self.inside and not reached:
            return b""
        relayed = {
            name: {
                "type": "http",
                "url": f"{relay}/broker/mcp/{name}",
                "headers": {"Authorization": f"Bearer {token}"},
            }
            for name in reached
        }
        return json.dumps({"mcpServers": {**self.inside, **relayed}}).encode()


class _Http(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: str
    url: str
    headers: dict[str, str] = {}
    oauth: OAuthSettings | None = None


class _Command(BaseModel):
    """The least; what else there may be differs by agent."""

    command: str = Field(min_length=1)
    args: list[str] = []
    env: dict[str, str] = {}


class _File(BaseModel):
    mcpServers: dict[str, dict[str, Any]]  # noqa: N815 - the field's own name in the file


def read_mcp_servers(path: Path, environment: Mapping[str, str]) -> McpServers:
    """Reads the file of MCP servers. `${NAME}` and `${NAME:-default}` in URLs, headers and `oauth` are taken from `environment`.

    Raises:
        ValueError: the file, or a server in it, is not as it must be; names which.
    """
    try:
        content = path.read_bytes()
        found = _File.model_validate_json(content)
    except ValidationError as exc:
        problems = (f"{_place(error['loc'])}{error['msg']}" for error in exc.errors())
        raise ValueError(f"{path}: {'; '.join(problems)}") from exc
    inside: dict[str, Mapping[str, Any]] = {}
    outside: dict[str, OutsideServer] = {}
    told = [f"{place}: there are two of this name" for place in _repeated(content)]
    for name, server in found.mcpServers.items():
        where = f"mcpServers.{name}"
        try:
            if not NAME.fullmatch(name):
                raise ValueError(f"{where}: a name has letters, digits, _ and -, at most 64")  # noqa: TRY301 - told with the others
            if name == SERVER:
                raise ValueError(f"{where}: {SERVER} is the name of Orion's own")  # noqa: TRY301 - as above
            if "url" in server or server.get("type", "stdio") != "stdio":
                outside[name] = _http(server, environment, where=where)
            else:
                inside[name] = _command(server, where=where)
        except ValueError as exc:
            told.append(str(exc))
    servers = McpServers(inside=inside, outside=outside)
    names = [GITHUB, *(name.lower() for name in servers.of_persons)]
    told += [
        f"mcpServers.{name}: people write `/orion link {name}` for another one, too"
        for name in servers.of_persons
        if names.count(name.lower()) > 1
    ]
    if told:
        raise ValueError(f"{path}: {'; '.join(told)}")
    return servers


def _repeated(content: bytes) -> list[str]:
    """Returns what stands twice: of servers of one name JSON keeps the last, and nobody would know; so of all of them together."""
    fields = json.loads(content, object_pairs_hook=tuple)  # an object; what is a list stays one
    found = [servers for key, servers in fields if key == "mcpServers"]
    places = ["mcpServers"] * len(found)
    places += [f"mcpServers.{name}" for one in found if isinstance(one, tuple) for name, _ in one]
    return sorted({place for place in places if places.count(place) > 1})


def _command(server: Mapping[str, Any], *, where: str) -> Mapping[str, Any]:
    if "command" not in server:
        raise ValueError(f"{where}: it has neither a command nor a url")
    _validated(_Command, server, where=where)
    return server


def _validated(kind: type[ModelT], server: Mapping[str, Any], *, where: str) -> ModelT:
    try:
        return kind.model_validate(server)
    except ValidationError as exc:
        problems = (f"{where}.{_place(error['loc'])}{error['msg']}" for error in exc.errors())
        raise ValueError("; ".join(problems)) from exc


def _place(location: tuple[str | int, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""


def _http(
    server: Mapping[str, Any], environment: Mapping[str, str], *, where: str
) -> OutsideServer:
    if "command" in server:
        raise ValueError(f"{where}: either a command or a url, not both")
    found = _validated(_Http, {"type": "http", **server}, where=where)
    if found.type not in ("http", "streamable-http"):
        raise ValueError(f"{where}.type: http or stdio, not {found.type!r}")
    names = _Names(environment)
    url = _expanded_url(found.url, names, where=f"{where}.url")
    headers = {
        name: _header(name, value, names, where=f"{where}.headers")
        for name, value in found.headers.items()
    }
    oauth = None
    if found.oauth is not None:
        if any(name.lower() == "authorization" for name in headers):
            raise ValueError(f"{where}: either oauth or the header Authorization, not both")
        oauth = _oauth(found.oauth, names, where=f"{where}.oauth")
    return OutsideServer(url=url, headers=headers, oauth=oauth, inserted=frozenset(names.inserted))


def _header(name: str, value: str, names: "_Names", *, where: str) -> str:
    """Returns the header's value, which an error does not tell."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{where}.{json.dumps(name)}: no header can have this name")
    said = names.expand(value, where=f"{where}.{name}")
    if not _HEADER_VALUE.fullmatch(said):
        raise ValueError(
            f"{where}.{name}: it has a control character, white space at an end, or what is not ASCII"
        )
    return said


def _oauth(found: OAuthSettings, names: "_Names", *, where: str) -> OAuthSettings:
    said = {
        name: names.expand(value, where=f"{where}.{name}")
        for name, value in found.model_dump(exclude=set(_OAUTH_URLS)).items()
    }
    urls = {
        name: _expanded_url(url, names, where=f"{where}.{name}")
        for name in _OAUTH_URLS
        if (url := getattr(found, name))
    }
    return OAuthSettings(**urls, **said)


def _expanded_url(text: str, names: "_Names", *, where: str) -> str:
    url = names.expand(text, where=where)
    try:
        _URL.validate_python(url)
    except ValidationError as exc:
        raise ValueError(f"{where}: {exc.errors()[0]['msg']}") from exc
    return url


class _Names:
    """Resolves the names in the texts of one MCP server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.inserted: set[str] = set()

    def expand(self, text: str, *, where: str) -> str:
        def value(match: re.Match[str]) -> str:
            name, default = match.groups()
            found = self._environment.get(name)
            if found is not None:
                self.inserted.add(found)
                return found
            if default is None:
                raise ValueError(
                    f"{where}: there is no {name}, neither in the environment nor in .env"
                )
            return str(default)

        return _VARIABLE.sub(value, text)

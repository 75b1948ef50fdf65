"""Which hosts a sandbox may reach: entries as an operator writes them, and the one spelling that a host's name has behind them.

    api.example.com          port 443
    api.example.com:8443
    *.example.com            every name below it, at any depth, and not itself
    deb.example.com:80       plain HTTP, and nothing but GET and HEAD
    @pip                     what pip on Orion's machine installs from
    packages                 @apt, @npm, @pip and @uv together
    private:mirror.example   may lead to an address that is not public; sets, too

Addresses are no entries: a name is what the list, the look-up, the TLS handshake and the log have in common.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from typing_extensions import override

TLS_PORT: Final = 443
PLAIN_PORT: Final = 80
MAX_PORT: Final = 65535
MAX_NAME_CHARS: Final = 253
"""Source: RFC 1035, 2.3.4: 255 octets, of which the root and the first length are two."""
MAX_LABEL_CHARS: Final = 63
MIN_WILDCARD_LABELS: Final = 2
"""Behind a star: one would allow a whole top-level domain."""
_WILDCARD: Final = "*."
_PRIVATE: Final = "private:"
_SCHEMES: Final = {"http": f":{PLAIN_PORT}", "https": ""}
"""What an entry ends in that is written as a URL."""
_LOOPBACK: Final = "localhost"
"""With all names below it. Source: RFC 6761, 6.3."""
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
"""What resolvers take for the end of an IPv4 address, in any base. Source: WHATWG URL, "ends in a number checker"."""
_TARGET = re.compile(r"(?P<name>[A-Za-z0-9._-]+):(?P<port>[1-9][0-9]{0,4})", re.ASCII)


class HostError(ValueError):
    """Not the name of a host, or an entry that cannot be meant; the message is for whoever wrote it."""


def canonical_name(written: str) -> str:
    """Returns the one spelling of a host's name: lower case, without a trailing dot.

    Raises:
        HostError: it is empty, an address in any spelling, longer than DNS has names, or not of DNS's letters.
    """
    name = written.lower() if written.isascii() else ""
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_NAME_CHARS or not all(
        len(label) <= MAX_LABEL_CHARS and _LABEL.fullmatch(label) for label in labels
    ):
        raise HostError("is not the name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        raise HostError("is an address; only names are allowed")
    return name


def read_target(written: str) -> tuple[str, int]:
    """Returns name and port of what a client asks for, `name:port`.

    Raises:
        HostError: it is of another form.
    """
    found = _TARGET.fullmatch(written)
    if found is None or int(found["port"]) > MAX_PORT:
        raise HostError("is not a host's name and a port")
    return canonical_name(found["name"]), int(found["port"])


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """One entry of a list."""

    name: str
    """In its canonical spelling, without the star."""
    port: int = TLS_PORT
    is_wildcard: bool = False
    is_private: bool = False
    """It may lead to addresses that are not public, such as a company's registry."""

    @override
    def __str__(self) -> str:
        port = "" if self.port == TLS_PORT else f":{self.port}"
        private = _PRIVATE if self.is_private else ""
        return f"{private}{_WILDCARD if self.is_wildcard else ''}{self.name}{port}"

    @property
    def pattern(self) -> str:
        """Returns it as sandboxes' networks take it."""
        return str(self).removeprefix(_PRIVATE)

    def covers(self, name: str, port: int) -> bool:
        """Whether a host of that canonical name may be reached at that port."""
        if port != self.port:
            return False
        return name.endswith(f".{self.name}") if self.is_wildcard else name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSet:
    """Hosts that a tool on Orion's machine is asked for at start."""

    name: str
    """One of `SETS`."""
    is_private: bool = False

    @override
    def __str__(self) -> str:
        return f"{_PRIVATE if self.is_private else ''}@{self.name}"


SETS: Final = ("apt", "cargo", "go", "npm", "pip", "pnpm", "uv", "yarn")
PACKAGES: Final = "packages"
"""Stands for `PACKAGE_SETS`, whose tools are on most machines."""
PACKAGE_SETS: Final = ("apt", "npm", "pip", "uv")
Item = HostEntry | HostSet


def read_items(words: Iterable[str]) -> tuple[Item, ...]:
    """Reads entries and names of sets.

    Raises:
        HostError: some are none; the message names each, with what may be meant.
    """
    items: list[Item] = []
    problems = []
    for word in words:
        try:
            items += _read_item(word)
        except HostError as exc:
            problems.append(f"{word!r} {exc}")
    if problems:
        raise HostError("; ".join(problems))
    return tuple(dict.fromkeys(items))


def _read_item(word: str) -> Iterator[Item]:
    if meant := _find_meant(word):
        raise HostError(f"is no entry; did you mean {meant}?")
    is_private, written = word.startswith(_PRIVATE), word.removeprefix(_PRIVATE)
    if written == PACKAGES:
        yield from (HostSet(name=name, is_private=is_private) for name in PACKAGE_SETS)
    elif written.startswith("@"):
        if written[1:] not in SETS:
            known = ", ".join([*(f"@{name}" for name in SETS), PACKAGES])
            near = get_close_matches(written[1:].lower(), SETS, n=1)
            meant = f"; did you mean {_PRIVATE if is_private else ''}@{near[0]}?" if near else ""
            raise HostError(f"is no set; there are {known}{meant}")
        yield HostSet(name=written[1:], is_private=is_private)
    elif not written:
        raise HostError("stands right before a host, without a space")
    else:
        yield read_entry(written, is_private=is_private)


def _find_meant(word: str) -> str:
    """Returns what is probably meant by a word that is no entry, as it is to be written; empty where nobody knows."""
    begin, colon, rest = word.partition(":")
    rest, bare = rest.strip(), word.removeprefix(_PRIVATE)
    if ";" in word:
        return ", ".join(filter(None, word.split(";")))
    if bare.lower() in (*SETS, PACKAGES, PACKAGES[:-1]) and bare != PACKAGES:
        name = bare.lower()
        return word.removesuffix(bare) + (f"@{name}" if name in SETS else PACKAGES)
    if not colon or not rest or rest.isdigit():
        return ""
    if begin.lower() in _SCHEMES:
        host = rest.lstrip("/").partition("/")[0]
        return host if ":" in host else f"{host}{_SCHEMES[begin.lower()]}"
    is_private = get_close_matches(begin.lower(), [_PRIVATE.removesuffix(":")], n=1)
    return f"{_PRIVATE}{rest}" if is_private and word != f"{_PRIVATE}{rest}" else ""


def read_entry(written: str, *, is_private: bool = False) -> HostEntry:
    """Reads an entry.

    Raises:
        HostError: it is none; the message says why, and does not repeat it.
    """
    is_wildcard = written.startswith(_WILDCARD)
    host, colon, port = written.removeprefix(_WILDCARD).partition(":")
    if not host or "*" in host:
        raise HostError(
            "must name a host; a star stands for what is before a name, as in *.example.com"
        )
    name, number = read_target(f"{host}:{port if colon else TLS_PORT}")
    if name.rpartition(".")[2] == _LOOPBACK:
        raise HostError("is this machine itself, which no sandbox may reach")
    if is_wildcard and name.count(".") + 1 < MIN_WILDCARD_LABELS:
        raise HostError("allows too much: at least two parts of a name must follow the star")
    return HostEntry(name=name, port=number, is_wildcard=is_wildcard, is_private=is_private)


def find_entry(entries: Collection[HostEntry], name: str, port: int) -> HostEntry | None:
    """Returns the entry that lets this host be reached; one that is private before others."""
    found = [entry for entry in entries if entry.covers(name, port)]
    return max(found, key=lambda entry: entry.is_private, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLists:
    """Says which hosts sandboxes reach beside the model."""

    everywhere: tuple[HostEntry, ...] = ()
    channels: Mapping[str, tuple[HostEntry, ...]] = field(default_factory=dict)
    """By channels' ids."""
    repositories: Mapping[str, tuple[HostEntry, ...]] = field(default_factory=dict)
    """By what `key_of` returns for their names."""
    key_of: Callable[[str], str] = str

    def of(self, channel: str, repo: str) -> tuple[HostEntry, ...]:
        """Returns the hosts of a thread, each once; an empty `repo` is none."""
        return tuple(dict.fromkeys(host for _, host in self.by_source(channel, repo)))

    def by_source(self, channel: str, repo: str) -> Iterator[tuple[str, HostEntry]]:
        """Yields the hosts of a thread with the list that each is on, for people."""
        in_repository = self.repositories.get(self.key_of(repo), ()) if repo else ()
        lists = {
            "ORION_EGRESS_HOSTS": self.everywhere,
            f"orion.toml, channels.{channel}": self.channels.get(channel, ()),
            f"orion.toml, repositories.{repo}": in_repository,
        }
        for source, hosts in lists.items():
            for host in hosts:
                yield source, host

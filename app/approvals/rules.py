"""Rules of what an agent may do outside by itself, what a person is asked for, and what it may never do. The first that covers a deed decides.

They stand in `orion.toml`, for all places or for one channel, whose own come first:

    [[approvals]]
    tool = "linear.create_*"            # an MCP server and a tool of it
    arguments = { team = "ops-*" }      # all of which the call must have, as texts
    decision = "ask"                    # allow, ask or deny
    by = "operators"                    # asker, channel, operators, groups, or a list of people
    people = 2                          # who must say yes; one no is enough

    [[approvals]]
    push = "acme/*"                     # or: pull_request = …, host = "*.example.com:443", own_key = "anthropic"
    decision = "ask"

A star stands for any text, a question mark for one character, `[ab]` for one of these. What no rule covers is allowed as it is without
rules: of hosts those on the list of `ORION_EGRESS_HOSTS`.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

ASKER: Final = "asker"
CHANNEL: Final = "channel"
OPERATORS: Final = "operators"
ROLES: Final = (ASKER, CHANNEL, OPERATORS)
"""Who may answer, beside groups, and people by their ids: whoever asked the question, everybody in its channel, `ORION_OPERATORS`."""


_PERSON = re.compile(r"[UW][A-Z0-9]+")


def is_person(one: str) -> bool:
    """Whether who may answer is a person's id; else it is a group's name, if no role."""
    return _PERSON.fullmatch(one) is not None


class DeedKind(StrEnum):
    """A kind of deed of an agent that a person may be asked about; the words are the keys of `orion.toml`, but for `QUESTION`."""

    TOOL = "tool"
    PUSH = "push"
    PULL_REQUEST = "pull_request"
    HOST = "host"
    OWN_KEY = "own_key"
    QUESTION = "question"
    """Of the agent to a person: no rule is about that."""


_KIND_WORDS: Final = {
    DeedKind.TOOL: "the tool",
    DeedKind.PUSH: "the push to",
    DeedKind.PULL_REQUEST: "a pull request in",
    DeedKind.HOST: "the host",
    DeedKind.OWN_KEY: "spending from your own key for",
    DeedKind.QUESTION: "the question",
}
RULED_KINDS: Final = tuple(kind for kind in DeedKind if kind is not DeedKind.QUESTION)


class Decision(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something with an effect outside that an agent is about to do."""

    kind: DeedKind
    target: str
    """`server.tool`; a repository without scheme, such as `github.com/acme/api`; `name:port`; a model protocol; the text of a question."""
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What it is done with: a tool's arguments, or the ids of the commits that are pushed."""
    beside: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What else it holds, of which no rule says anything. With the arguments it is all that makes it this deed and no other."""

    @property
    def words(self) -> str:
        """Returns what it is, for people and agents: `the push to github.com/acme/api`."""
        return f"{_KIND_WORDS[self.kind]} {self.target}"

    @property
    def digest(self) -> str:
        """Returns 64 hex digits that no other deed has."""
        whole = [self.kind, self.target, self.arguments, *([self.beside] if self.beside else [])]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRule:
    kind: DeedKind
    pattern: str
    """Of targets."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Patterns of arguments, by their names; a call that lacks one is not covered."""
    decision: Decision
    by: tuple[str, ...] = (ASKER,)
    """Roles, names of groups, and ids of people."""
    people: int = 1
    """How many different ones must say yes."""
    channel: str = ""
    """Whose own it is, by id; empty = it holds in all."""

    @property
    def words(self) -> str:
        """Returns what it says of which deeds, for people, as it is written: `tool = "linear.*" with team = "ops"`. No two rules that differ there have the same."""
        said = [f'{self.kind} = "{self._written}"']
        if self.arguments:
            said.append(", ".join(f'{name} = "{one}"' for name, one in self.arguments.items()))
        return " with ".join(said) + (f" in {self.channel}" if self.channel else "")

    @property
    def _written(self) -> str:
        """Returns the pattern without what is meant where it is left out: any host of repositories, and TLS's port."""
        if self.kind in (DeedKind.PUSH, DeedKind.PULL_REQUEST):
            return self.pattern.removeprefix("*/")
        return self.pattern.removesuffix(":443") if self.kind is DeedKind.HOST else self.pattern

    @property
    def folded_pattern(self) -> str:
        """Returns the pattern without case, where its targets have none."""
        return _fold(self.kind, self.pattern)

    def covers(self, deed: Deed) -> bool:
        """Whether it is about this deed."""
        if deed.kind is not self.kind:
            return False
        return fnmatchcase(_fold(deed.kind, deed.target), self.folded_pattern) and all(
            name in deed.arguments and fnmatchcase(as_text(deed.arguments[name]), wanted)
            for name, wanted in self.arguments.items()
        )


def _fold(kind: DeedKind, text: str) -> str:
    """Returns it without case, if that is of names of repositories or hosts."""
    has_case = kind not in (DeedKind.PUSH, DeedKind.PULL_REQUEST, DeedKind.HOST)
    return text if has_case else text.casefold()


def as_text(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Returns a text as it is, anything else as compact JSON: `true`, `3`, `["a"]`."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """Holds all rules of a deployment."""

    general: tuple[ApprovalRule, ...] = ()
    of_channels: Mapping[str, tuple[ApprovalRule, ...]] = field(default_factory=dict)
    """By ids; they come before the general ones."""

    def __iter__(self) -> Iterator[ApprovalRule]:
        yield from self.general
        for rules in self.of_channels.values():
            yield from rules

    def __bool__(self) -> bool:
        return any(True for _ in self)

    @property
    def may_ask(self) -> bool:
        """Whether a run may have to wait for a person."""
        return any(rule.decision is Decision.ASK for rule in self)

    def find(self, deed: Deed, *, channel: str) -> ApprovalRule | None:
        """Returns the first rule that covers a deed of a run in this channel."""
        own = self.of_channels.get(channel, ())
        return next((rule for rule in (*own, *self.general) if rule.covers(deed)), None)

"""Rules of who may do what, and the groups that they name. Of each question the first rule decides that is about the person and the place, and says something of it.

They stand in `orion.toml`:

    [groups]
    backend = ["U012AB3CD", "U045EF6GH"]
    oncall = "S0123456789"               # a user group of Slack's

    [[permissions]]
    who = ["backend", "operators"]       # groups, people by their ids, operators, everyone
    channels = ["C0123456789", "dm"]     # without it everywhere; dm = direct messages
    agents = ["claude", "anthropic"]     # the only ones, as patterns; so models, sandboxes, repositories
    budget_day_usd = 20                  # of each of them, in place of ORION_BUDGET_USER_DAY_USD
    stop_others = false                  # so use, set_defaults, approve

What no rule says is as the settings have it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

EVERYONE: Final = "everyone"
OPERATORS: Final = "operators"
DM: Final = "dm"
"""Stands for all direct messages."""
MAX_WORDS_CHARS: Final = 400
"""Of a rule's words, which are a key of the database."""


class Right(StrEnum):
    """An act that a rule allows a person or forbids; the words are the keys of a rule."""

    USE = "use"
    """Ask Orion anything."""
    SET_DEFAULTS = "set_defaults"
    """Change what a channel has for everybody."""
    STOP_OTHERS = "stop_others"
    """Stop what others have asked."""
    APPROVE = "approve"
    """Answer what waits for a yes, where its rule names them."""


class Thing(StrEnum):
    """A kind of thing of which a rule lets a person have some; the words are the keys of a rule."""

    AGENTS = "agents"
    MODELS = "models"
    """By their ids, not their aliases."""
    SANDBOXES = "sandboxes"
    """By their providers."""
    REPOSITORIES = "repositories"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRule:
    name: str
    """For people: `permissions[2]`."""
    who: tuple[str, ...]
    """Names of groups, ids of people, `OPERATORS`, `EVERYONE`."""
    channels: tuple[str, ...] = ()
    """Ids, or `DM`; empty = all."""
    rights: Mapping[Right, bool] = field(default_factory=dict)
    things: Mapping[Thing, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of what alone they may have."""
    budget_day: int | None = None
    """Micro-dollars that each of them may spend a day."""

    @property
    def words(self) -> str:
        """The rule as the file has it, without its place there; what is long is cut, and ends in its hash."""
        said: dict[str, object] = {"who": self.who}
        said |= {"channels": self.channels} if self.channels else {}
        said |= {str(thing): patterns for thing, patterns in self.things.items()}
        said |= {str(right): is_allowed for right, is_allowed in self.rights.items()}
        if self.budget_day is not None:
            said["budget_day_usd"] = self.budget_day / 1e6  # of micro-dollars
        text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items())
        if len(text) <= MAX_WORDS_CHARS:
            return text
        return f"{text[:MAX_WORDS_CHARS]}… {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def is_about(self, channel: str) -> bool:
        is_direct = channel.startswith("D")
        return not self.channels or channel in self.channels or (is_direct and DM in self.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What one person may do at one place, and by which rule."""

    rule: str
    """Its name."""
    is_allowed: bool = True
    patterns: tuple[str, ...] = ()
    budget_day: int | None = None


class Permissions:
    """Holds the rules and groups as they are now; one for a process, whose watchers change it."""

    def __init__(
        self,
        rules: Sequence[PermissionRule] = (),
        *,
        groups: Mapping[str, Collection[str]] | None = None,
        operators: Collection[str] = (),
    ) -> None:
        """`groups`: members by names."""
        self._rules = tuple(rules)
        self._groups = {name: frozenset(members) for name, members in (groups or {}).items()}
        self._operators = frozenset(operators)
        self._decided: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def has_budgets(self) -> bool:
        return any(rule.budget_day is not None for rule in self._rules)

    def take_decided(self) -> Mapping[str, int]:
        """Returns how often each rule has decided since this was called last, by its words."""
        taken, self._decided = self._decided, Counter()
        return taken

    def set_rules(self, rules: Sequence[PermissionRule]) -> None:
        self._rules = tuple(rules)

    def set_members(self, group: str, members: Collection[str]) -> None:
        self._groups[group] = frozenset(members)

    def is_in(self, user: str, group: str) -> bool:
        """Whether a person belongs to a group; to none that is not known."""
        if group == EVERYONE:
            return True
        return user in (self._operators if group == OPERATORS else self._groups.get(group, ()))

    def find(self, right: Right, *, user: str, channel: str, counts: bool = True) -> Ruling | None:
        """Returns what decides whether a person may do that there; None = no rule says. `counts`: it is not only shown."""
        rule = self._first(user, channel, lambda one: right in one.rights, counts=counts)
        return None if rule is None else Ruling(rule=rule.name, is_allowed=rule.rights[right])

    def forbids(self, right: Right, *, user: str, channel: str) -> bool:
        """Whether a rule says that a person may not do that there."""
        ruling = self.find(right, user=user, channel=channel)
        return ruling is not None and not ruling.is_allowed

    def find_allowed(
        self, thing: Thing, *, user: str, channel: str, counts: bool = True
    ) -> Ruling | None:
        """Returns the patterns of what alone a person may have there; None = no rule says. `counts`: as of `find`."""
        rule = self._first(user, channel, lambda one: thing in one.things, counts=counts)
        return None if rule is None else Ruling(rule=rule.name, patterns=rule.things[thing])

    def find_budget(self, *, user: str, channel: str, counts: bool = True) -> Ruling | None:
        """Returns the day's budget of a person; None = no rule says. `counts`: as of `find`."""
        rule = self._first(user, channel, lambda one: one.budget_day is not None, counts=counts)
        return None if rule is None else Ruling(rule=rule.name, budget_day=rule.budget_day)

    def why_not(self, thing: Thing, value: str, *, user: str, channel: str) -> str:
        """Returns why a person may not have something there: lower case, no full stop; empty = they may."""
        ruling = self.find_allowed(thing, user=user, channel=channel) if value else None
        if ruling is None:
            return ""
        if any(fnmatchcase(value.casefold(), one.casefold()) for one in ruling.patterns):
            return ""
        known = ", ".join(ruling.patterns) or "none"
        return f"{value} is not for you here; of {thing} you may have: {known} ({ruling.rule} of orion.toml)"

    def _first(
        self, user: str, channel: str, says: Callable[[PermissionRule], bool], *, counts: bool
    ) -> PermissionRule | None:
        """Returns the first rule about them that says it. `counts`: notes that it has decided."""
        for rule in self._rules:
            is_named = user in rule.who or any(self.is_in(user, one) for one in rule.who)
            if is_named and rule.is_about(channel) and says(rule):
                if counts:
                    self._decided[rule.words] += 1
                return rule
        return None

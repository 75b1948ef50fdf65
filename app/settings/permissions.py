"""`[groups]` and `[[permissions]]` of `orion.toml`, read and checked."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationInfo,
    model_validator,
)

from agent_scripts.registry import agent_names
from app.permissions.rules import DM, EVERYONE, OPERATORS, PermissionRule, Right, Thing
from app.runs.budget import to_micro
from app.settings.service import MAX_USD
from app.settings.toml_lines import Location
from sandbox_runtime.registry import provider_names

_ID = re.compile(r"[UW][A-Z0-9]{2,}")
_GROUP_ID = re.compile(r"S[A-Z0-9]{2,}")
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{2,20}")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
GROUPS: Final = "groups"
"""In the context of a validation: the names of groups."""
_RESERVED: Final = (EVERYONE, OPERATORS, "asker", "channel")


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _check_channel(name: str) -> str:
    if name != DM and not _CHANNEL_ID.fullmatch(name):
        raise ValueError(f"{name!r} is neither {DM} nor the id of a channel, such as C0123456789")
    return name


def _check_group_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ValueError(
            "a group has a name of small letters, digits, - and _, and none that means something else"
        )
    return name


def _check_members(members: tuple[str, ...]) -> tuple[str, ...]:
    for one in members:
        if not (_ID.fullmatch(one) or _GROUP_ID.fullmatch(one)):
            raise ValueError(f"{one!r} is neither a person (U…) nor a user group (S…)")
    return members


def check_people(people: tuple[str, ...], info: ValidationInfo, *, roles: Iterable[str]) -> None:
    """Raises: ValueError: one is neither a role, a group of the file (`GROUPS` of the context) nor the id of a person."""
    known = (*roles, *(info.context or {}).get(GROUPS, ()))
    for one in people:
        if one not in known and not _ID.fullmatch(one):
            raise ValueError(
                f"{one!r} is neither a group nor the id of a person, such as U012AB3CD{nearest(one, known)}"
            )


def check_number(value: object) -> object:
    """Returns a number of TOML's as a text, so that 0.3 is three tenths. Raises: ValueError: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number of dollars")  # noqa: TRY004 - pydantic's way
    return str(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence about a word that there is not: the one that may be meant, or all."""
    known = tuple(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known) or 'none'}"


def _check_some(
    known: Sequence[str], what: str
) -> Callable[[tuple[str, ...] | None], tuple[str, ...] | None]:
    """Returns what refuses a pattern that none of them has."""

    def check(patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for one in patterns or ():
            if not any(fnmatchcase(name, one.casefold()) for name in known):
                raise ValueError(f"{one!r} is no {what}{nearest(one, known)}")
        return patterns

    return check


def _check_repositories(patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for one in patterns or ():
        if "/" not in one and "*" not in one:
            raise ValueError(f"{one!r} is no repository: write owner/name, or owner/*")
    return patterns


def _check_who(who: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    check_people(who, info, roles=(EVERYONE, OPERATORS))
    return who


GroupName = Annotated[str, AfterValidator(_check_group_name)]
Members = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_check_members)]
Dollars = Annotated[Decimal, BeforeValidator(check_number), Field(gt=0, le=MAX_USD)]
_Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], BeforeValidator(_as_tuple)
]
_Channels = Annotated[
    tuple[Annotated[str, AfterValidator(_check_channel)], ...], BeforeValidator(_as_tuple)
]


class PermissionTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    who: Annotated[_Texts, Field(min_length=1), AfterValidator(_check_who)]
    channels: _Channels = ()
    agents: Annotated[_Texts | None, AfterValidator(_check_some(agent_names(), "agent"))] = None
    models: _Texts | None = None
    sandboxes: Annotated[
        _Texts | None, AfterValidator(_check_some(provider_names(), "provider of sandboxes"))
    ] = None
    repositories: Annotated[_Texts | None, AfterValidator(_check_repositories)] = None
    budget_day_usd: Dollars | None = None
    use: StrictBool | None = None
    set_defaults: StrictBool | None = None
    stop_others: StrictBool | None = None
    approve: StrictBool | None = None

    @model_validator(mode="after")
    def _must_say_something(self) -> "PermissionTable":
        if not self.model_fields_set - {"who", "channels"}:
            known = ", ".join(
                name for name in type(self).model_fields if name not in ("who", "channels")
            )
            raise ValueError(f"says nothing; there are: {known}")
        return self

    def rule(self, number: int) -> PermissionRule:
        """Returns it as a rule; `number`: its place in the list, from 0."""
        return PermissionRule(
            name=f"permissions[{number}]",
            who=self.who,
            channels=self.channels,
            rights=_said(self, Right),
            things=_said(self, Thing),
            budget_day=None if self.budget_day_usd is None else to_micro(self.budget_day_usd),
        )


def _said(table: PermissionTable, keys: Iterable[Any]) -> dict[Any, Any]:
    return {key: value for key in keys if (value := getattr(table, key)) is not None}


def find_unreached(rules: Sequence[PermissionRule]) -> Iterator[tuple[Location, str]]:
    """Yields, with where it stands, a sentence for each rule that could never decide, as those before it say all of it about all of its people and places."""
    for number, later in enumerate(rules):
        wanted = _keys(later)
        earlier = [one for one in rules[:number] if _covers(one, later) and _keys(one) & wanted]
        if wanted <= {key for one in earlier for key in _keys(one)}:
            names = " and ".join(one.name for one in earlier)
            said = f"{later.name}: is never reached: {names} before it decide{'s' if len(earlier) == 1 else ''} all that it is about"
            yield ("permissions", number), said


def _covers(earlier: PermissionRule, later: PermissionRule) -> bool:
    is_of_all = EVERYONE in earlier.who or set(later.who) <= set(earlier.who)
    own, others = set(later.channels), set(earlier.channels)
    return is_of_all and (not others or (bool(own) and own <= others))


def _keys(rule: PermissionRule) -> set[str]:
    budget = set() if rule.budget_day is None else {"budget_day_usd"}
    return {*rule.rights, *rule.things, *budget}


def is_slack_group(member: str) -> bool:
    """Whether a member of a group is a user group of Slack's."""
    return _GROUP_ID.fullmatch(member) is not None

"""`[[approvals]]` of `orion.toml`: rules of what a person is asked for, read and checked."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from agent_scripts.registry import agent_specs
from app.approvals.rules import (
    ASKER,
    OPERATORS,
    ROLES,
    RULED_KINDS,
    ApprovalRule,
    ApprovalRules,
    Decision,
    DeedKind,
)
from app.egress.hosts import HostError, read_entry
from app.settings.permissions import check_people, nearest
from app.settings.toml_lines import Location

MAX_PEOPLE: Final = 5
"""Who must say yes; more would never come together."""
_ID = re.compile(r"[UW][A-Z0-9]{2,}")


def _read_by(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _check_by(by: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if not by:
        raise ValueError("names nobody")
    check_people(by, info, roles=ROLES)
    return by


def _check_decision(word: str) -> Decision:
    if word not in tuple(Decision):
        raise ValueError(f"no such decision{nearest(word, tuple(Decision))}")
    return Decision(word)


def _check_tool(pattern: str) -> str:
    if "." not in pattern:
        raise ValueError("names a server and a tool of it, such as linear.create_* or linear.*")
    return pattern


def _check_repository(pattern: str) -> str:
    if "/" not in pattern and pattern != "*":
        raise ValueError("names an owner and a repository, such as acme/api or acme/*")
    return pattern


def _check_host(pattern: str) -> str:
    try:
        entry = read_entry(pattern)
    except HostError as exc:
        raise ValueError(str(exc)) from None
    return f"{'*.' if entry.is_wildcard else ''}{entry.name}:{entry.port}"


def _check_protocol(pattern: str) -> str:
    known = sorted({spec.protocol.value for spec in agent_specs() if spec.protocol})
    if not any(fnmatchcase(one, pattern) for one in known):
        raise ValueError(f"is no models' protocol{nearest(pattern, known)}")
    return pattern


_Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class ApprovalTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: Annotated[_Pattern, AfterValidator(_check_tool)] | None = None
    push: Annotated[_Pattern, AfterValidator(_check_repository)] | None = None
    pull_request: Annotated[_Pattern, AfterValidator(_check_repository)] | None = None
    host: Annotated[_Pattern, AfterValidator(_check_host)] | None = None
    own_key: Annotated[_Pattern, AfterValidator(_check_protocol)] | None = None
    arguments: dict[str, str] = Field(default_factory=dict)
    decision: Annotated[str, AfterValidator(_check_decision)]
    by: Annotated[tuple[str, ...], BeforeValidator(_read_by), AfterValidator(_check_by)] = (ASKER,)
    people: Annotated[int, Field(strict=True, ge=1, le=MAX_PEOPLE)] = 1

    @model_validator(mode="after")
    def _must_be_meant(self) -> "ApprovalTable":
        kinds = [kind for kind in RULED_KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            known = ", ".join(RULED_KINDS)
            said = " and ".join(kinds) or "nothing"
            raise ValueError(f"must be about one of {known}; it is about {said}")
        if self.arguments and self.tool is None:
            raise ValueError("arguments are a tool's")
        if self.decision != Decision.ASK and {"by", "people"} & self.model_fields_set:
            raise ValueError(f"nobody is asked with decision = {str(self.decision)!r}")
        is_counted = all(_ID.fullmatch(one) or one == ASKER for one in self.by)
        if is_counted and self.people > len(set(self.by)):
            raise ValueError(f"people = {self.people}, but `by` names fewer")
        return self

    def rule(self, channel: str = "") -> ApprovalRule:
        """Returns it as a rule, of a channel or of all."""
        kind = next(kind for kind in RULED_KINDS if getattr(self, kind) is not None)
        pattern = getattr(self, kind)
        if kind in (DeedKind.PUSH, DeedKind.PULL_REQUEST) and pattern.count("/") < 2:  # noqa: PLR2004 - host/owner/name
            pattern = f"*/{pattern}" if pattern != "*" else pattern
        return ApprovalRule(
            kind=kind,
            pattern=pattern,
            arguments=self.arguments,
            decision=Decision(self.decision),
            by=self.by,
            people=self.people,
            channel=channel,
        )


def join_rules(
    general: Iterable[ApprovalTable], of_channels: Mapping[str, Iterable[ApprovalTable]]
) -> ApprovalRules:
    """Returns the rules of all tables."""
    own = {name: tuple(one.rule(name) for one in rules) for name, rules in of_channels.items()}
    return ApprovalRules(
        general=tuple(one.rule() for one in general),
        of_channels={name: rules for name, rules in own.items() if rules},
    )


def find_dead_rules(
    rules: ApprovalRules,
    *,
    servers: Collection[str],
    operators: Collection[str],
) -> Iterator[tuple[Location, str]]:
    """Yields, with where it stands, a sentence for each rule that could never decide or never be answered, as the settings are."""
    for place, own in _lists(rules):
        for number, rule in enumerate(own):
            location = (*place, number)
            server = rule.pattern.partition(".")[0]
            is_asked = rule.decision is Decision.ASK
            if rule.kind is DeedKind.TOOL and not any(fnmatchcase(one, server) for one in servers):
                yield (
                    location,
                    f"{rule.words}: there is no MCP server {server} outside sandboxes{nearest(server, servers)}",
                )
            elif is_asked and rule.by == (OPERATORS,) and len(operators) < rule.people:
                yield (
                    location,
                    f"{rule.words}: only operators may answer, and ORION_OPERATORS names {len(operators)}",
                )
            wider = next((one for one in own[:number] if _is_wider(one, rule)), None)
            if wider is not None:
                yield (
                    location,
                    f"{rule.words}: is never reached, as {wider.words} stands before it",
                )


def _lists(rules: ApprovalRules) -> Iterator[tuple[Location, Sequence[ApprovalRule]]]:
    """Yields the rules of all places, and of each channel, with where they stand."""
    yield ("approvals",), rules.general
    for channel, own in rules.of_channels.items():
        yield ("channels", channel, "approvals"), own


def _is_wider(one: ApprovalRule, other: ApprovalRule) -> bool:
    """Whether a rule covers all that another one does, as far as their patterns tell."""
    if one.kind is not other.kind or not one.arguments.items() <= other.arguments.items():
        return False
    mine, its = one.folded_pattern, other.folded_pattern
    # A star of the one stands for whatever stands for any text in the other.
    return mine == its or (not set("?[") & set(mine) and fnmatchcase(its, mine))

"""Who may do what: each cell of who, where and what."""

import itertools

import pytest

from app.permissions.rules import (
    DM,
    EVERYONE,
    OPERATORS,
    PermissionRule,
    Permissions,
    Right,
    Thing,
)

PEOPLE = {"person": "U1", "group": "U2", "operator": "U3", "nobody": "U9"}
"""A rule is about each but the last."""
WHO = {"person": "U1", "group": "backend", "operator": OPERATORS, "nobody": "U8"}
CHANNELS = {"everywhere": (), "channel": ("C1",), "dm": (DM,), "elsewhere": ("C2",)}
PLACES = ("C1", "D1", "G1")


def permissions_of(*rules: PermissionRule) -> Permissions:
    return Permissions(rules, groups={"backend": ["U2"], "empty": []}, operators=["U3"])


def is_about(channels: str, place: str) -> bool:
    return {
        "everywhere": True,
        "channel": place == "C1",
        "dm": place == "D1",
        "elsewhere": False,
    }[channels]


CELLS = list(itertools.product(WHO, CHANNELS, PEOPLE, PLACES))


@pytest.mark.parametrize("right", Right)
@pytest.mark.parametrize("is_allowed", [True, False])
def test_rights(right: Right, is_allowed: bool) -> None:
    """Of each way to name people and places, for each person and place: the rule decides where it is about both, and nowhere else."""
    for who, channels, person, place in CELLS:
        rule = PermissionRule(
            name="permissions[1]",
            who=(WHO[who],),
            channels=CHANNELS[channels],
            rights={right: is_allowed},
        )
        permissions = permissions_of(rule)
        decides = who == person != "nobody" and is_about(channels, place)
        for asked in Right:
            found = permissions.find(asked, user=PEOPLE[person], channel=place)
            cell = f"{who} {channels} {person} {place} {asked}"
            if decides and asked is right:
                assert found is not None, cell
                assert (found.is_allowed, found.rule) == (is_allowed, "permissions[1]"), cell
            else:
                assert found is None, cell
            is_forbidden = decides and asked is right and not is_allowed
            assert permissions.forbids(asked, user=PEOPLE[person], channel=place) is is_forbidden, (
                cell
            )


@pytest.mark.parametrize("thing", Thing)
def test_things(thing: Thing) -> None:
    """The same of what a person may have: only what a pattern names, in any case; of other things anything."""
    for who, channels, person, place in CELLS:
        rule = PermissionRule(
            name="permissions[1]",
            who=(WHO[who],),
            channels=CHANNELS[channels],
            things={thing: ("good*", "fine")},
        )
        permissions = permissions_of(rule)
        decides = who == person != "nobody" and is_about(channels, place)
        for asked, value in itertools.product(Thing, ("Goods", "fine", "bad", "")):
            reason = permissions.why_not(asked, value, user=PEOPLE[person], channel=place)
            is_refused = decides and asked is thing and value == "bad"
            assert bool(reason) is is_refused, (who, channels, person, place, asked, value)
            if is_refused:
                assert f"of {thing} you may have: good*, fine (permissions[1]" in reason


def test_budgets() -> None:
    for who, channels, person, place in CELLS:
        rule = PermissionRule(
            name="permissions[1]", who=(WHO[who],), channels=CHANNELS[channels], budget_day=7
        )
        found = permissions_of(rule).find_budget(user=PEOPLE[person], channel=place)
        decides = who == person != "nobody" and is_about(channels, place)
        assert (found.budget_day if found else None) == (7 if decides else None)


def test_the_first_that_says_something_decides() -> None:
    """Each thing by itself; nothing at all may be had by an empty list."""
    first = PermissionRule(name="a", who=("U1",), things={Thing.AGENTS: ()})
    second = PermissionRule(
        name="b",
        who=(EVERYONE,),
        rights={Right.USE: False},
        things={Thing.AGENTS: ("claude",), Thing.MODELS: ("x",)},
    )
    permissions = permissions_of(first, second)
    assert "you may have: none (a " in permissions.why_not(
        Thing.AGENTS, "claude", user="U1", channel="C1"
    )
    assert not permissions.why_not(Thing.AGENTS, "claude", user="U2", channel="C1")
    assert permissions.why_not(Thing.MODELS, "y", user="U1", channel="C1")
    assert permissions.forbids(Right.USE, user="U1", channel="C1")


def test_what_changes_counts_at_once() -> None:
    rule = PermissionRule(name="a", who=("empty", "later"), rights={Right.USE: False})
    permissions = permissions_of(rule)
    assert not permissions.forbids(Right.USE, user="U1", channel="C1")
    permissions.set_members("later", ["U1"])
    assert permissions.forbids(Right.USE, user="U1", channel="C1")
    permissions.set_rules(())
    assert not permissions.forbids(Right.USE, user="U1", channel="C1")
    assert not permissions
    assert permissions.is_in("U3", OPERATORS)
    assert permissions.is_in("anybody", EVERYONE)
    assert not permissions.is_in("U1", "unknown")

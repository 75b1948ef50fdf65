"""Which deeds a rule covers, and which of several decides."""

from typing import Any

import pytest

from app.approvals.rules import ApprovalRule, ApprovalRules, Decision, Deed, DeedKind

CALL: dict[str, Any] = {"team": "ops-eu", "title": "x", "priority": 2, "labels": ["a", "b"]}


def tool(pattern: str, decision: Decision = Decision.ASK, **arguments: str) -> ApprovalRule:
    return ApprovalRule(kind=DeedKind.TOOL, pattern=pattern, arguments=arguments, decision=decision)


def call(target: str = "linear.create_issue", **arguments: Any) -> Deed:
    return Deed(kind=DeedKind.TOOL, target=target, arguments=arguments or CALL)


@pytest.mark.parametrize(
    ("rule", "is_covered"),
    [
        (tool("linear.create_issue"), True),
        (tool("linear.*"), True),
        (tool("*"), True),
        (tool("linear.create_?ssue"), True),
        (tool("linear.delete_*"), False),
        (tool("Linear.*"), False),
        (tool("linear.*", team="ops-*"), True),
        (tool("linear.*", team="sales"), False),
        (tool("linear.*", assignee="*"), False),
        (tool("linear.*", priority="2"), True),
        (tool("linear.*", labels='["a","b"]'), False),
        (tool("linear.*", labels='?"a","b"?'), True),
        (tool("linear.*", team="ops-*", title="y"), False),
    ],
)
def test_a_tool_is_covered_by_its_name_and_all_its_arguments(
    rule: ApprovalRule, *, is_covered: bool
) -> None:
    """What is no text is compared as compact JSON; one that is missing is not covered."""
    assert rule.covers(call()) is is_covered


@pytest.mark.parametrize("kind", [DeedKind.PUSH, DeedKind.PULL_REQUEST, DeedKind.HOST])
def test_repositories_and_hosts_have_no_case(kind: DeedKind) -> None:
    """As GitHub and DNS have it."""
    rule = ApprovalRule(kind=kind, pattern="*/Acme/*", decision=Decision.ASK)
    assert rule.covers(Deed(kind=kind, target="GitHub.com/aCME/api"))


def test_a_rule_is_about_one_kind() -> None:
    """A star does not reach further."""
    rule = ApprovalRule(kind=DeedKind.PUSH, pattern="*", decision=Decision.ASK)
    assert not rule.covers(call())


def test_the_first_one_decides_and_those_of_the_channel_come_first() -> None:
    """Elsewhere they do not count."""
    rules = ApprovalRules(
        general=(tool("linear.list_*", Decision.ALLOW), tool("linear.*")),
        of_channels={"C1": (tool("linear.*", Decision.DENY),)},
    )

    def decided(target: str, channel: str) -> Decision | None:
        found = rules.find(call(target), channel=channel)
        return found.decision if found else None

    assert decided("linear.list_issues", "C2") is Decision.ALLOW
    assert decided("linear.create_issue", "C2") is Decision.ASK
    assert decided("linear.list_issues", "C1") is Decision.DENY
    assert decided("notion.search", "C1") is None
    assert rules.may_ask
    assert not ApprovalRules()


def test_a_digest_is_of_exactly_this() -> None:
    """The order of keys does not count; everything else does."""
    same = Deed(kind=DeedKind.TOOL, target="a.b", arguments={"x": 1, "y": {"p": 1, "q": 2}})
    other = Deed(kind=DeedKind.TOOL, target="a.b", arguments={"y": {"q": 2, "p": 1}, "x": 1})
    assert same.digest == other.digest
    changed = [
        Deed(kind=DeedKind.PUSH, target="a.b", arguments=same.arguments),
        Deed(kind=DeedKind.TOOL, target="a.c", arguments=same.arguments),
        Deed(kind=DeedKind.TOOL, target="a.b", arguments={**same.arguments, "x": "1"}),
        Deed(kind=DeedKind.TOOL, target="a.b", arguments={**same.arguments, "z": None}),
    ]
    assert len({one.digest for one in (same, *changed)}) == 5


def test_rules_are_told_apart_by_their_words() -> None:
    """People read them, and what was allowed for a thread is kept by them."""
    assert tool("linear.*", team="ops").words == 'tool = "linear.*" with team = "ops"'
    own = ApprovalRule(kind=DeedKind.PUSH, pattern="*", decision=Decision.ASK, channel="C1")
    assert own.words == 'push = "*" in C1'

"""All that a run gets, and from whom."""

from app.approvals.rules import ApprovalRule, ApprovalRules, Decision, DeedKind
from app.egress.hosts import HostEntry, HostLists
from app.permissions.rules import EVERYONE, PermissionRule, Permissions, Right, Thing
from app.runs.testing import (
    Budgets,
    Choice,
    Chosen,
    EffectiveSetting,
    RunPolicy,
    Source,
    effective_settings,
)
from tests.building import make_request

BUDGETS = Budgets(user_day=2_000_000, channel_day=5_000_000)
CHOICE = Choice(
    agent=Chosen(value="claude", source=Source.PERSON),
    repo=Chosen(value="acme/api", source=Source.MESSAGE),
)


def told(found: tuple[EffectiveSetting, ...]) -> list[str]:
    return [f"{one.name}: {one.value} ({one.source})" for one in found]


def test_each_has_its_source() -> None:
    """Of the lists and rules that are about this place alone, and in the order in which they decide."""
    rules = (
        ApprovalRule(kind=DeedKind.PUSH, pattern="*", decision=Decision.ASK),
        ApprovalRule(kind=DeedKind.TOOL, pattern="a.*", decision=Decision.DENY, channel="C1"),
        ApprovalRule(kind=DeedKind.TOOL, pattern="b.*", decision=Decision.DENY, channel="C2"),
    )
    policy = RunPolicy(
        run_timeout_s=90,
        permissions=Permissions(
            [
                PermissionRule(
                    name="permissions[0]",
                    who=(EVERYONE,),
                    things={Thing.AGENTS: ("claude", "a*")},
                    rights={Right.STOP_OTHERS: False},
                    budget_day=3_000_000,
                )
            ]
        ),
        hosts=HostLists(
            everywhere=(HostEntry(name="all.example"),),
            channels={"C1": (HostEntry(name="here.example"),), "C2": (HostEntry(name="no.test"),)},
            repositories={"acme/api": (HostEntry(name="api.example", port=8443),)},
        ),
        approvals=ApprovalRules(general=rules[:1], of_channels={"C1": rules[1:2], "C2": rules[2:]}),
        channels_asking={"C1": True},
    )
    found = told(effective_settings(make_request(), CHOICE, BUDGETS, policy))
    assert found == [
        "agent: claude (you)",
        "model:  (default)",
        "sandbox:  (default)",
        "repo: acme/api (message)",
        "branch:  (default)",
        "time: 90 s (ORION_RUN_TIMEOUT_S)",
        "budget of this run:  (ORION_BUDGET_RUN_USD)",
        "your budget a day: $3 (permissions[0])",
        "this channel's budget a day: $5 (ORION_BUDGET_CHANNEL_DAY_USD)",
        "Orion's budget a day:  (ORION_BUDGET_DAY_USD)",
        "host: all.example (ORION_EGRESS_HOSTS)",
        "host: here.example (orion.toml, channels.C1)",
        "host: api.example:8443 (orion.toml, repositories.acme/api)",
        "agents that you may have: claude, a* (permissions[0])",
        "stop_others: no (permissions[0])",
        'deny: tool = "a.*" in C1 (orion.toml, approvals)',
        'ask: push = "*" (orion.toml, approvals)',
        "questions: yes (orion.toml, channels.C1)",
    ]


def test_a_channel_with_a_budget_of_its_own() -> None:
    budgets = Budgets(channel_day=5_000_000, channels={"C1": 7_000_000})
    found = told(effective_settings(make_request(), Choice(), budgets, RunPolicy()))
    assert "this channel's budget a day: $7 (orion.toml, channels.C1)" in found


def test_where_nothing_is_set() -> None:
    found = told(effective_settings(make_request(), Choice(), BUDGETS, RunPolicy()))
    assert found[5:] == [
        "time: 600 s (ORION_RUN_TIMEOUT_S)",
        "budget of this run:  (ORION_BUDGET_RUN_USD)",
        "your budget a day: $2 (ORION_BUDGET_USER_DAY_USD)",
        "this channel's budget a day: $5 (ORION_BUDGET_CHANNEL_DAY_USD)",
        "Orion's budget a day:  (ORION_BUDGET_DAY_USD)",
        "hosts:  (ORION_EGRESS_HOSTS)",
        "questions: no (orion.toml, questions)",
    ]

"""Who may do what, in the whole core: what is forbidden is told with the rule that says so, and nothing of it is done."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.approvals.records import ApprovalState
from app.approvals.rules import ApprovalRule, ApprovalRules, Decision, Deed, DeedKind
from app.audit.records import Act, AuditQuery
from app.errors import ErrorCode
from app.permissions.rules import EVERYONE, PermissionRule, Permissions, Right, Thing
from app.runs.testing import ApprovalDesk, CatalogAgent, Defaults, Press, RunState
from tests.building import make_run
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until

GROUPS = {"backend": ["U2"]}


def rule(*who: str, **says: Any) -> PermissionRule:
    return PermissionRule(name="permissions[0]", who=who, **says)


@asynccontextmanager
async def core_with(tmp_path: Path, *rules: PermissionRule, **policy: Any) -> AsyncIterator[Core]:
    permissions = Permissions(rules, groups=GROUPS, operators=["U3"])
    async with core_of(tmp_path, replace(POLICY, permissions=permissions, **policy)) as core:
        yield core


async def test_who_may_not_ask_is_refused(tmp_path: Path) -> None:
    """Others are answered; the rule counts as soon as it changes."""
    permissions = Permissions([rule("U1", rights={Right.USE: False})])
    async with core_of(tmp_path, replace(POLICY, permissions=permissions)) as core:
        refused = request_of(ANSWER)
        await core.intake.accept(refused)
        run = await ended(core, refused.run_id)
        assert run.result.error_code is ErrorCode.NOT_ALLOWED
        assert "you may not use Orion here (permissions[0] of orion.toml)" in run.result.detail
        other = request_of(ANSWER, ts="1795302365.000100").model_copy(update={"user": "U2"})
        await core.intake.accept(other)
        assert (await ended(core, other.run_id)).state is RunState.SUCCEEDED
        permissions.set_rules(())
        again = request_of(ANSWER, ts="1795302366.000100")
        await core.intake.accept(again)
        assert (await ended(core, again.run_id)).state is RunState.SUCCEEDED


@pytest.mark.parametrize(
    ("thing", "value"),
    [(Thing.AGENTS, "plan"), (Thing.MODELS, "plan-1"), (Thing.SANDBOXES, "fake")],
)
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_what_was_chosen_must_be_allowed(
    tmp_path: Path, thing: Thing, value: str, *, is_allowed: bool
) -> None:
    """The default ones, too: whoever may not have them is told which they may have, and no sandbox begins."""
    patterns = (value.upper(), "other") if is_allowed else ("other*",)
    async with core_with(tmp_path, rule(EVERYONE, things={thing: patterns})) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        if is_allowed:
            assert run.state is RunState.SUCCEEDED
            return
        assert run.result.error_code is ErrorCode.NOT_ALLOWED
        assert f"of {thing} you may have: other* (permissions[0]" in run.result.detail
        assert (run.attempt, run.sandbox_id) == (0, None)


async def test_settings_shows_the_budget_of_a_rule(tmp_path: Path) -> None:
    """Beside what else it says of whoever asks."""
    says = {"things": {Thing.AGENTS: ("plan",)}, "budget_day": 3_000_000}
    async with core_with(tmp_path, rule(EVERYONE, **says)) as core:
        request = request_of(ANSWER).model_copy(update={"text": "settings"})
        await core.intake.accept(request)
        answer = (await ended(core, request.run_id)).result.answer
        assert "- agents that you may have: `plan` (permissions[0])" in answer
        assert answer.count("your budget a day: `$3` (permissions[0])") == 1


async def test_a_repository_that_is_not_theirs(tmp_path: Path) -> None:
    """Before anybody looks whether there is one."""
    of_backend = rule(EVERYONE, things={Thing.REPOSITORIES: ("acme/*",)})
    agents = {"plan": CatalogAgent(model="plan-1")}
    async with core_with(tmp_path, of_backend, agents=agents) as core:
        request = request_of(ANSWER)
        asked = request.model_copy(update={"text": f"repo=other/site {request.text}"})
        await core.intake.accept(asked)
        run = await ended(core, asked.run_id)
        assert run.result.error_code is ErrorCode.NOT_ALLOWED
        assert "other/site is not for you here; of repositories you may have: acme/*" in (
            run.result.detail
        )


SET = (
    (Thing.AGENTS, "agent=other", "other"),
    (Thing.MODELS, "model=small", "id-of-small"),
    (Thing.SANDBOXES, "sandbox=box", "cloud"),
    (Thing.REPOSITORIES, "repo=acme/api", "acme/api"),
)


@pytest.mark.parametrize("place", ["", "channel "])
@pytest.mark.parametrize(("thing", "said", "value"), SET)
async def test_what_is_not_theirs_is_no_default_either(
    tmp_path: Path, thing: Thing, said: str, value: str, place: str
) -> None:
    """Of their own or a channel's: it is refused with the rule, and changes nothing; they may look and reset, others may set it."""
    plan = CatalogAgent(model="plan-1", model_id=lambda name: f"id-of-{name}")
    agents = {"plan": plan, "other": CatalogAgent(model="other-1")}
    mine = rule("U1", things={thing: ("mine*",)})
    async with core_with(tmp_path, mine, agents=agents, sandboxes={"box": "cloud"}) as core:
        runs = []
        for number, (user, words) in enumerate(
            [("U1", said), ("U1", ""), ("U1", "reset"), ("U2", said)]
        ):
            request = request_of(ANSWER, ts=f"179530236{number}.000100").model_copy(
                update={"user": user, "text": f"settings {place}{words}"}
            )
            await core.intake.accept(request)
            runs.append(await ended(core, request.run_id))
            if number == 0:
                for owner in (request.user, request.channel):
                    assert await core.ports.defaults.get(request.team, owner) == Defaults()
        refused, *others = runs
        assert (refused.result.error_code, refused.result.detail) == (
            ErrorCode.NOT_ALLOWED,
            f"{value} is not for you here; of {thing} you may have: mine* (permissions[0] of orion.toml)",
        )
        assert {one.state for one in others} == {RunState.SUCCEEDED}
        entries = await core.store.audit.find(AuditQuery(act=Act.SETTINGS))
        told = [(one.user, one.target) for one in entries if not one.is_allowed]
        assert told == [("U1", f"settings {place}{said}")]


@pytest.mark.parametrize(("user", "is_stopped"), [("U1", True), ("U2", False), ("U9", True)])
async def test_who_may_stop_what_others_asked(
    tmp_path: Path, user: str, *, is_stopped: bool
) -> None:
    """One's own always; who may not is told so alone, and it goes on."""
    async with core_with(tmp_path, rule("backend", rights={Right.STOP_OTHERS: False})) as core:
        request = request_of([{"text": "half"}, {"sleep": 1}, {"final": "whole"}])
        await core.intake.accept(request)
        await until(lambda: any(progress.text for progress in core.replies.shown))
        assert await core.intake.stop_run(request.run_id, user=user) is is_stopped
        run = await ended(core, request.run_id)
        assert (run.state is RunState.STOPPED) is is_stopped
        told = [(who, text) for _, who, text in core.replies.ephemerals]
        sentence = "You may stop only what you have asked (permissions[0] of orion.toml); please ask the operator."
        assert told == ([] if is_stopped else [(user, sentence)])


async def test_who_may_change_a_channels_defaults(tmp_path: Path) -> None:
    """Whatever the setting says of others."""
    rules = (
        rule("U1", rights={Right.SET_DEFAULTS: False}),
        replace(rule("U2", rights={Right.SET_DEFAULTS: True}), name="permissions[1]"),
    )
    async with core_with(tmp_path, *rules, channel_defaults_by=frozenset()) as core:
        ends = {}
        for number, user in enumerate(("U1", "U2", "U9")):
            request = request_of(ANSWER, ts=f"179530236{number}.000100").model_copy(
                update={"user": user, "text": "settings channel sandbox=local"}
            )
            await core.intake.accept(request)
            ends[user] = (await ended(core, request.run_id)).result
        assert "you may not change what is set for this channel" in ends["U1"].detail
        assert ends["U2"].error_code is not ErrorCode.NOT_ALLOWED
        assert "cannot be changed from Slack here" in ends["U9"].detail


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ("U2", ""),
        ("U9", "This is for somebody of backend or an operator to answer"),
        ("U3", "You may not answer here (permissions[0] of orion.toml)"),
    ],
)
async def test_who_may_approve(tmp_path: Path, user: str, told: str) -> None:
    """A group that the rule names, without those of it who may not, who are told by which rule."""
    asks = ApprovalRule(
        kind=DeedKind.TOOL, pattern="*", decision=Decision.ASK, by=("backend", "operators")
    )
    rules = ApprovalRules(general=(asks,))
    forbids = rule("U3", rights={Right.APPROVE: False})
    permissions = Permissions([forbids], groups=GROUPS, operators=["U3"])
    policy = replace(POLICY, permissions=permissions, approvals=rules, operators=frozenset({"U3"}))
    async with core_of(tmp_path, policy) as core:
        run = replace(make_run(), state=RunState.RUNNING, reply_ts="9.0")
        await core.store.add(run)
        desk = ApprovalDesk(core.ports, dispatcher=core.dispatcher, policy=policy, hold_s=0.05)

        async def before() -> bool:
            return True

        with pytest.raises(Exception, match="waiting for a person"):
            await desk.approve(run.id, Deed(kind=DeedKind.TOOL, target="a.b"), before)
        (row,) = await core.store.approvals.of_run(run.id)
        await desk.press(Press(approval_id=row.id, user=user, is_allowed=True))
        (row,) = await core.store.approvals.of_run(run.id)
        assert row.state is (ApprovalState.WAITING if told else ApprovalState.ALLOWED)
        said = [text for *_, text in core.replies.ephemerals]
        assert [text.startswith(told) for text in said] == ([True] if told else [])


async def test_budgets_of_ones_own(tmp_path: Path) -> None:
    """In place of everybody's; others keep that."""
    async with core_with(tmp_path, rule("backend", budget_day=5)) as core:
        own, _, _ = await core.ports.ledger.of_day("T1", "U2", "C1")
        others, _, _ = await core.ports.ledger.of_day("T1", "U9", "C1")
        assert own[2] == 5
        assert others[2] is None


async def test_settings_show_what_rules_say(tmp_path: Path) -> None:
    """With the rule that says it."""
    mine = rule("U1", things={Thing.AGENTS: ("plan",)}, rights={Right.STOP_OTHERS: False})
    async with core_with(tmp_path, mine) as core:
        request = request_of(ANSWER).model_copy(update={"text": "settings"})
        await core.intake.accept(request)
        answer = (await ended(core, request.run_id)).result.answer
        assert "- agents that you may have: `plan` (permissions[0])" in answer
        assert "- stop_others: `no` (permissions[0])" in answer
        assert "approve" not in answer

"""Each decision about a person is kept once, by whatever way they ask."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.approvals.rules import OPERATORS
from app.audit.records import Act, AuditEntry, AuditQuery
from app.permissions.rules import EVERYONE, PermissionRule, Permissions, Right, Thing
from app.runs.testing import RunPolicy, RunState
from tests.faults.approval_scene import asks, scene_of
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until

RULE = "permissions[1] of orion.toml"


async def entries_of(core: Core) -> Sequence[AuditEntry]:
    """The oldest first."""
    return list(reversed(await core.store.audit.find(AuditQuery())))


def ruled(**says: object) -> RunPolicy:
    """The rule is about everybody."""
    rule = PermissionRule(name="permissions[1]", who=(EVERYONE,), **says)  # type: ignore[arg-type]  # as given
    return replace(POLICY, permissions=Permissions([rule]))


@pytest.mark.parametrize(
    ("policy", "changes", "reason"),
    [
        (POLICY, {}, "nothing forbids it"),
        (replace(POLICY, allowed_users=frozenset({"U1"})), {}, "ORION_ALLOWED_USERS"),
        (replace(POLICY, allow_external=True), {"is_external": True}, "ORION_ALLOW_EXTERNAL"),
        (POLICY, {"is_bot": True}, "ORION_ALLOWED_BOTS"),
        (ruled(rights={Right.USE: True}), {}, RULE),
    ],
)
async def test_why_a_message_is_answered(
    tmp_path: Path, policy: RunPolicy, changes: dict[str, bool], reason: str
) -> None:
    """By one entry, however often it is delivered."""
    async with core_of(tmp_path, policy) as core:
        request = request_of(ANSWER).model_copy(update=changes)
        for _ in range(2):
            await core.intake.accept(request)
        assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED
        (entry,) = await entries_of(core)
        assert (entry.act, entry.user, entry.run_id) == (Act.ASK, "U1", request.run_id)
        assert (entry.is_allowed, entry.reason) == (True, reason)


@pytest.mark.parametrize(
    ("policy", "text", "noted", "reason"),
    [
        (
            replace(POLICY, allowed_users=frozenset({"U9"})),
            "hello",
            (Act.ASK, ""),
            "you are not on the list of people who may use Orion; please ask the operator for access",
        ),
        (
            ruled(rights={Right.USE: False}),
            "branch=main hello",
            (Act.ASK, "branch=main"),
            f"you may not use Orion here ({RULE}); please ask the operator",
        ),
        (
            replace(POLICY, channel_defaults_by=frozenset()),
            "settings channel branch=main",
            (Act.SETTINGS, "settings channel branch=main"),
            "a channel's defaults cannot be changed from Slack here; please ask the operator",
        ),
    ],
)
async def test_why_a_message_is_refused(
    tmp_path: Path, policy: RunPolicy, text: str, noted: tuple[Act, str], reason: str
) -> None:
    """As its asker is told; and nothing says that it was allowed."""
    async with core_of(tmp_path, policy) as core:
        request = request_of(ANSWER).model_copy(update={"text": text})
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).state is RunState.FAILED
        (entry,) = await entries_of(core)
        assert ((entry.act, entry.target), entry.is_allowed) == (noted, False)
        assert entry.reason == reason


async def test_no_secret_stands_in_it(tmp_path: Path) -> None:
    """Of what a person wrote."""
    async with core_of(tmp_path, ruled(rights={Right.USE: False})) as core:
        request = request_of(ANSWER).model_copy(update={"text": "branch=hunter2 hello"})
        await core.intake.accept(request)
        await ended(core, request.run_id)
        (entry,) = await entries_of(core)
        assert entry.target.startswith("branch=")
        assert "hunter2" not in str(entry)


async def test_what_is_refused_once_it_is_known_what_is_wanted(tmp_path: Path) -> None:
    """A message may be answered, and not by that agent: two decisions."""
    async with core_of(tmp_path, ruled(things={Thing.AGENTS: ("claude",)})) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        await ended(core, request.run_id)
        allowed, refused = await entries_of(core)
        assert (allowed.is_allowed, refused.is_allowed) == (True, False)
        assert "is not for you here" in refused.reason


async def test_settings_and_memory_are_told_apart(tmp_path: Path) -> None:
    """What only shows something is a question; what is remembered is not repeated."""
    said = {
        "settings": (Act.ASK, "settings"),
        "settings repo=none": (Act.SETTINGS, "settings repo=none"),
        "settings channel reset": (Act.SETTINGS, "settings channel reset"),
        "remember the password is hunter2": (Act.MEMORY, "remember"),
        "what do you know here?": (Act.ASK, "show"),
    }
    async with core_of(tmp_path) as core:
        for number, text in enumerate(said):
            ts = f"179530236{number}.000100"
            request = request_of(ANSWER, ts=ts).model_copy(update={"text": text})
            await core.intake.accept(request)
            assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED
        entries = await entries_of(core)
        assert [(entry.act, entry.target) for entry in entries] == list(said.values())


async def test_who_stops_what_others_have_asked(tmp_path: Path) -> None:
    """Once; one's own is nobody's business, and neither is what is over."""
    async with core_of(tmp_path) as core:
        mine = request_of([{"text": "a"}, {"sleep": 60}])
        await core.intake.accept(mine)
        await until(lambda: core.replies.placed == [mine.run_id])
        assert await core.intake.stop_run(mine.run_id, user="U1")
        theirs = request_of([{"text": "a"}, {"sleep": 60}], ts="1795302365.000100")
        await core.intake.accept(theirs)
        await until(lambda: len(core.replies.placed) == 2)
        for _ in range(2):
            await core.intake.stop_run(theirs.run_id, user="U2")
        await ended(core, theirs.run_id)
        await core.intake.stop_run(theirs.run_id, user="U3")
        (entry,) = await core.store.audit.find(AuditQuery(act=Act.STOP))
        assert (entry.user, entry.target, entry.run_id) == ("U2", "U1", theirs.run_id)
        assert (entry.is_allowed, entry.reason) == (True, "whoever may ask may")


async def test_who_may_not_stop(tmp_path: Path) -> None:
    """Once, however often they try."""
    async with core_of(tmp_path, ruled(rights={Right.STOP_OTHERS: False})) as core:
        request = request_of([{"text": "a"}, {"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: core.replies.placed == [request.run_id])
        for _ in range(2):
            assert not await core.intake.stop_run(request.run_id, user="U2")
        (entry,) = await core.store.audit.find(AuditQuery(act=Act.STOP))
        assert (entry.user, entry.is_allowed) == ("U2", False)
        assert entry.reason.startswith(f"you may stop only what you have asked ({RULE})")
        assert await core.intake.stop_run(request.run_id, user="U1")


async def test_who_answered_what_waits_for_a_yes(tmp_path: Path) -> None:
    """Whose press counts, whose does not and whose came too late; arguments stay out of it."""
    async with scene_of(
        tmp_path, asks(by=(OPERATORS,)), operators=frozenset({"U7", "U8"})
    ) as scene:
        asking = scene.group.create_task(scene.approved())
        await scene.press("U2")
        await scene.press("U7")
        await scene.press("U8", says=False)
        assert await asking == ""
        entries = list(reversed(await scene.store.audit.find(AuditQuery(act=Act.APPROVE))))
        told = [(entry.user, entry.target, entry.is_allowed) for entry in entries]
        assert told == [
            ("U2", "yes to tool linear.create_issue", False),
            ("U7", "yes to tool linear.create_issue", True),
            ("U8", "no to tool linear.create_issue", False),
        ]
        assert entries[1].reason == "asked were operators"
        assert "hunter2" not in str(entries)

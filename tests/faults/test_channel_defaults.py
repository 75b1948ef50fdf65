"""Who may change a channel's defaults, and who hears of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import RunRequest, RunState, SystemClock, find_refusal
from tests.building import make_request, saying
from tests.faults.building import POLICY, core_of, ended
from tests.waiting import until

CHANGE = "settings channel sandbox=fake"
POLICY_HERE = replace(POLICY, sandboxes={"fake": "fake"})


def asked(text: str, **more: object) -> RunRequest:
    request = make_request(text=text)
    return request.model_copy(update={"received_at": SystemClock().now(), **more})


async def test_a_change_is_told_in_the_channel_and_kept(tmp_path: Path) -> None:
    """By whom, when, and what; asking for the settings, or changing one's own, is not."""
    async with core_of(tmp_path, POLICY_HERE) as core:
        request = asked(CHANGE)
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED
        ((change, is_repeated),) = core.replies.changes
        assert (change.user, change.channel, change.said) == ("U1", "C1", "sandbox=fake")
        assert (change.at, is_repeated) == (request.asked_at, False)
        assert await core.store.defaults.last_change("T1", "C1") == change
        for number, text in enumerate(("settings", "settings sandbox=fake")):
            other = make_request(ts=f"179530236{number}.000100", text=text)
            other = other.model_copy(update={"received_at": SystemClock().now()})
            await core.intake.accept(other)
            run = await ended(core, other.run_id)
            assert "changed last by `U1`" in run.result.answer
        assert len(core.replies.changes) == 1


@pytest.mark.parametrize(
    ("people", "is_external", "reason"),
    [
        (None, False, ""),
        (None, True, "for people of this workspace"),
        (frozenset(), False, "cannot be changed from Slack here"),
        (frozenset({"U1"}), False, ""),
        (frozenset({"U2", "U3"}), False, "may be changed only by U2, U3"),
    ],
)
def test_who_may_change_them(
    people: frozenset[str] | None, reason: str, *, is_external: bool
) -> None:
    """Members, nobody, or those who are named; everybody may ask what holds, and change their own."""
    policy = replace(POLICY_HERE, channel_defaults_by=people, allow_external=True)
    for text in (CHANGE, "settings channel reset"):
        refusal = find_refusal(
            asked(text, is_external=is_external), policy, runs_last_hour=1, unfinished=1
        )
        told = refusal.detail if refusal is not None else ""
        assert (reason in told) if reason else told == ""
        assert refusal is None or refusal.code is ErrorCode.NOT_ALLOWED
    for text in ("settings", "settings sandbox=fake", "settings reset"):
        request = asked(text, is_external=is_external)
        assert find_refusal(request, policy, runs_last_hour=1, unfinished=1) is None


@pytest.mark.parametrize("people", [None, frozenset({"B2"})])
def test_other_apps_change_them_only_where_they_are_named(people: frozenset[str] | None) -> None:
    """Though they may ask."""
    policy = replace(POLICY_HERE, channel_defaults_by=people)
    request = asked(CHANGE).model_copy(update={"user": "B2", "is_bot": True})
    refusal = find_refusal(request, policy, runs_last_hour=1, unfinished=1, bot_turns=1)
    assert (refusal is None) == (people is not None)


async def test_an_edited_question_changes_nothing_either(tmp_path: Path) -> None:
    """A question that waits and is edited into a change of the channel's defaults is refused like one that came so."""
    policy = replace(POLICY_HERE, capacity=1, channel_defaults_by=frozenset())
    async with core_of(tmp_path, policy) as core:
        busy = make_request(ts="1795302363.000100", text='[{"text": "a"}, {"sleep": 2}]')
        busy = busy.model_copy(update={"received_at": SystemClock().now()})
        request = asked("a question")
        await core.intake.accept(busy)
        await until(lambda: core.provider.alive == 1)
        await core.intake.accept(request)
        await until(lambda: request.run_id in core.replies.placed)
        assert await core.store.amend(request.run_id, saying(CHANGE))
        run = await ended(core, request.run_id)
        assert (run.state, run.result.error_code) == (RunState.FAILED, ErrorCode.NOT_ALLOWED)
        assert core.replies.changes == []

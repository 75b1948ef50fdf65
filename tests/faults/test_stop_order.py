"""A stop ends what was asked before it, and once, however often and in whatever order Slack tells of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from slack_bolt.async_app import AsyncApp, AsyncBoltRequest

from app.runs.testing import (
    CUT_OFF,
    INTERRUPTED,
    INTERRUPTS,
    Run,
    RunId,
    RunPolicy,
    RunState,
    run_id_for,
)
from tests.faults.building import Core, core_of, ended
from tests.faults.plan_agent import PlanAdapter
from tests.unit.slack.building import deliver_json, make_app, mention
from tests.waiting import until

CHANNEL, ROOT, SECOND, STOP, THIRD, FOURTH = (
    "C1",
    "1795302364.000100",
    "1795302365.000100",
    "1795302366.000100",
    "1795302366.200100",
    "1795302426.200100",
)
LONG = json.dumps([{"text": "at work"}, {"sleep": 60}])
SHORT = json.dumps([{"text": "at work"}, {"sleep": 1}, {"final": "the answer"}])

Deliver = Callable[[AsyncApp, dict[str, Any]], Awaitable[int]]


async def _over_http(bolt: AsyncApp, payload: dict[str, Any]) -> int:
    return (await deliver_json(bolt, payload))[0]


async def _over_a_socket(bolt: AsyncApp, payload: dict[str, Any]) -> int:
    """As Bolt's handler hands on what a socket brings."""
    response = await bolt.async_dispatch(AsyncBoltRequest(body=payload, mode="socket_mode"))
    return response.status


@pytest.fixture(params=[_over_http, _over_a_socket])
def deliver(request: pytest.FixtureRequest) -> Deliver:
    way: Deliver = request.param
    return way


def _event(kind: str, text: str, ts: str, **more: object) -> dict[str, Any]:
    return mention(type=kind, text=f"<@UBOT> {text}", ts=ts, event_ts=ts, **more)


def _run_id(ts: str, channel: str = CHANNEL) -> RunId:
    return run_id_for(team="T1", channel=channel, message_ts=ts)


async def _running(core: Core, run_id: RunId) -> None:
    await until(lambda: run_id in core.replies.placed and bool(core.replies.shown))


async def _record(core: Core, run_id: RunId) -> Run:
    run = await core.store.get(run_id)
    assert run is not None
    return run


@pytest.mark.parametrize("kinds", [("message", "app_mention"), ("app_mention", "message")])
async def test_the_second_event_of_a_stop_does_not_end_the_next_question(
    tmp_path: Path, deliver: Deliver, kinds: tuple[str, str]
) -> None:
    """A question that is accepted between both events of `@Orion stop` is answered."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        assert await deliver(bolt, _event("app_mention", LONG, ROOT)) == 200
        await _running(core, _run_id(ROOT))
        stop = {"text": "stop", "ts": STOP, "thread_ts": ROOT}
        assert await deliver(bolt, _event(kinds[0], **stop)) == 200
        assert await deliver(bolt, _event("app_mention", SHORT, THIRD, thread_ts=ROOT)) == 200
        await until(lambda: _run_id(THIRD) in core.replies.placed)
        assert await deliver(bolt, _event(kinds[1], **stop)) == 200
        assert (await ended(core, _run_id(ROOT))).state is RunState.STOPPED
        assert (await ended(core, _run_id(THIRD))).state is RunState.SUCCEEDED


async def test_a_stop_that_is_told_again_does_not_end_what_was_queued_behind(
    tmp_path: Path, deliver: Deliver
) -> None:
    """The message behind the one that was stopped was asked before the stop, and goes on all the same."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        await deliver(bolt, _event("app_mention", LONG, ROOT))
        await _running(core, _run_id(ROOT))
        await deliver(bolt, _event("app_mention", SHORT, SECOND, thread_ts=ROOT))
        await until(lambda: _run_id(SECOND) in core.replies.placed)
        for kind in ("message", "app_mention", "message"):
            await deliver(bolt, _event(kind, "stop", STOP, thread_ts=ROOT))
        assert (await ended(core, _run_id(ROOT))).state is RunState.STOPPED
        await deliver(bolt, _event("message", "stop", STOP, thread_ts=ROOT))
        assert (await ended(core, _run_id(SECOND))).state is RunState.SUCCEEDED


async def test_another_stop_does_not_end_what_was_queued_behind(
    tmp_path: Path, deliver: Deliver
) -> None:
    """Somebody impatient says it twice while the first question still stops, or is still told of: the next one goes on."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        await deliver(bolt, _event("app_mention", LONG, ROOT))
        await _running(core, _run_id(ROOT))
        await deliver(bolt, _event("app_mention", SHORT, SECOND, thread_ts=ROOT))
        await until(lambda: _run_id(SECOND) in core.replies.placed)
        for ts in (STOP, "1795302366.300100"):
            await deliver(bolt, _event("message", "stop", ts, thread_ts=ROOT))
        assert (await ended(core, _run_id(ROOT))).state is RunState.STOPPED
        await deliver(bolt, _event("message", "stop", "1795302367.900100", thread_ts=ROOT))
        assert (await ended(core, _run_id(SECOND))).state is RunState.SUCCEEDED


async def test_a_stop_of_who_saw_the_first_one_ends_the_next(
    tmp_path: Path, deliver: Deliver
) -> None:
    """Two seconds later it is another stop: the question that is going by then is meant."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        await deliver(bolt, _event("app_mention", LONG, ROOT))
        await _running(core, _run_id(ROOT))
        await deliver(bolt, _event("app_mention", LONG, SECOND, thread_ts=ROOT))
        await until(lambda: _run_id(SECOND) in core.replies.placed)
        for ts, stopped in ((STOP, ROOT), ("1795302368.100100", SECOND)):
            await deliver(bolt, _event("message", "stop", ts, thread_ts=ROOT))
            assert (await ended(core, _run_id(stopped))).state is RunState.STOPPED


async def test_slacks_own_stop_that_is_told_again_ends_no_later_question(
    tmp_path: Path, deliver: Deliver
) -> None:
    """A redelivery of the event, when the next question is going already, ends nothing."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        stop = mention(type="agent_session_stopped", thread_ts=ROOT, event_ts=STOP)
        await deliver(bolt, _event("app_mention", LONG, ROOT))
        await _running(core, _run_id(ROOT))
        await deliver(bolt, stop)
        assert (await ended(core, _run_id(ROOT))).state is RunState.STOPPED
        await deliver(bolt, _event("app_mention", SHORT, THIRD, thread_ts=ROOT))
        await until(lambda: _run_id(THIRD) in core.replies.placed)
        await deliver(bolt, stop)
        assert (await ended(core, _run_id(THIRD))).state is RunState.SUCCEEDED


async def test_a_retry_that_was_clicked_after_a_stop_is_not_ended_by_it(
    tmp_path: Path, deliver: Deliver
) -> None:
    """A retry answers an old message; what counts is when it was clicked."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        failing = json.dumps([{"text": "at work"}, {"sleep": 1}, {"exit": 1}])
        await deliver(bolt, _event("app_mention", failing, ROOT))
        assert (await ended(core, _run_id(ROOT))).state is RunState.FAILED
        await deliver(bolt, _event("message", "stop", STOP, thread_ts=ROOT))
        click = {
            "type": "block_actions",
            "user": {"id": "U1", "team_id": "T1"},
            "team": {"id": "T1"},
            "channel": {"id": CHANNEL},
            "actions": [
                {
                    "type": "button",
                    "action_id": "orion_retry",
                    "block_id": "b",
                    "value": _run_id(ROOT),
                    "action_ts": THIRD,
                }
            ],
        }
        response = await bolt.async_dispatch(AsyncBoltRequest(body=click, mode="socket_mode"))
        assert response.status == 200
        retry = run_id_for(team="T1", channel=CHANNEL, message_ts=ROOT, click=THIRD)
        await until(lambda: retry in core.replies.placed)
        await deliver(bolt, _event("app_mention", "stop", STOP, thread_ts=ROOT))
        assert (await _record(core, retry)).stop_requested_by is None
        assert (await ended(core, retry)).state is RunState.FAILED


async def test_a_stop_at_the_top_of_a_direct_message_ends_all_that_was_asked_there(
    tmp_path: Path, deliver: Deliver
) -> None:
    """There each message begins a thread, so the word means the conversation; it is no question, and ends nothing that comes after it."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        dm = {"channel": "D1", "channel_type": "im", "type": "message"}
        for ts in (ROOT, SECOND):
            assert await deliver(bolt, mention(**dm, text=LONG, ts=ts, event_ts=ts)) == 200
        await until(lambda: len(core.replies.placed) == 2)
        await deliver(bolt, mention(**dm, text=SHORT, ts=THIRD, event_ts=THIRD))
        assert await deliver(bolt, mention(**dm, text="Stop.", ts=STOP, event_ts=STOP)) == 200
        for ts in (ROOT, SECOND):
            assert (await ended(core, _run_id(ts, "D1"))).state is RunState.STOPPED
        assert (await ended(core, _run_id(THIRD, "D1"))).state is RunState.SUCCEEDED
        assert await core.store.get(_run_id(STOP, "D1")) is None


async def _asked_while_one_goes(core: Core, bolt: AsyncApp, text: str) -> None:
    await deliver_json(bolt, _event("app_mention", LONG, ROOT))
    await until(lambda: any(shown.text for shown in core.replies.shown))
    await deliver_json(bolt, _event("app_mention", SHORT, SECOND, thread_ts=ROOT))
    await until(lambda: _run_id(SECOND) in core.replies.placed)
    await deliver_json(bolt, _event("app_mention", text, THIRD, thread_ts=ROOT))


@pytest.mark.parametrize("sign", ["!", "! "])
async def test_an_urgent_message_is_answered_with_what_it_interrupts(
    tmp_path: Path, sign: str
) -> None:
    """What goes on stops, what waits before it does not begin, and its agent is told of both; told twice by Slack, it is one."""
    adapter = PlanAdapter()
    async with core_of(tmp_path, adapter=adapter) as core:
        bolt = make_app(core.intake)
        await _asked_while_one_goes(core, bolt, f"{sign}{SHORT}")
        await deliver_json(bolt, _event("message", f"{sign}{SHORT}", THIRD, thread_ts=ROOT))
        gone = await ended(core, _run_id(ROOT))
        assert (gone.state, gone.result.made_way) == (RunState.STOPPED, True)
        waited = await ended(core, _run_id(SECOND))
        assert (waited.state, waited.attempt) == (RunState.STOPPED, 0)
        assert waited.result.made_way
        assert (await ended(core, _run_id(THIRD))).state is RunState.SUCCEEDED
        told = [turn.text for turn in adapter.turns[-1].messages]
        assert told == [
            *(LONG, f"at work\n\n{CUT_OFF}", SHORT, INTERRUPTED),
            f"{INTERRUPTS}\n\n{SHORT}",
        ]


async def test_send_now_makes_a_waiting_message_urgent(tmp_path: Path) -> None:
    """Whoever may stop may press it; pressed twice, or when nothing waits any more, it does nothing."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        await _asked_while_one_goes(core, bolt, SHORT)
        await until(lambda: _run_id(THIRD) in core.replies.placed)
        assert not await core.intake.send_now(RunId("run_unknown"), user="U1")
        assert core.replies.urgent == []
        assert await core.intake.send_now(_run_id(THIRD), user="U1")
        assert core.replies.urgent == [_run_id(THIRD)]
        assert not await core.intake.send_now(_run_id(THIRD), user="U1")
        assert (await ended(core, _run_id(ROOT))).state is RunState.STOPPED
        assert (await ended(core, _run_id(SECOND))).state is RunState.STOPPED
        assert (await ended(core, _run_id(THIRD))).state is RunState.SUCCEEDED
        assert not await core.intake.send_now(_run_id(THIRD), user="U1")


@pytest.mark.parametrize(("outages", "places_after_s"), [(1, []), (0, [60.0])])
async def test_send_now_counts_though_slack_does_not_show_it(
    tmp_path: Path, outages: int, places_after_s: list[float]
) -> None:
    """Neither when it cannot be reached nor when it hangs."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        await _asked_while_one_goes(core, bolt, SHORT)
        await until(lambda: _run_id(THIRD) in core.replies.placed)
        core.replies.outages = outages
        core.replies.places_after_s = places_after_s
        async with asyncio.timeout(3):
            assert await core.intake.send_now(_run_id(THIRD), user="U1")
        assert (await ended(core, _run_id(ROOT))).state is RunState.STOPPED
        assert (await ended(core, _run_id(THIRD))).state is RunState.SUCCEEDED


async def test_an_urgent_message_of_another_person_is_by_their_own_right(tmp_path: Path) -> None:
    """It stops what goes on, whose agent hears nothing of it; what others have waiting keeps its turn, and nobody goes on with another's question."""
    adapter = PlanAdapter()
    async with core_of(tmp_path, adapter=adapter) as core:
        bolt = make_app(core.intake)
        await _asked_while_one_goes(core, bolt, SHORT)
        urgent = _event("app_mention", f"!{SHORT}", FOURTH, thread_ts=ROOT, user="U2")
        await deliver_json(bolt, urgent)
        gone = await ended(core, _run_id(ROOT))
        assert (gone.state, gone.stop_requested_by) == (RunState.STOPPED, "U2")
        assert not gone.result.made_way
        for ts in (SECOND, THIRD, FOURTH):
            assert (await ended(core, _run_id(ts))).state is RunState.SUCCEEDED
        told = [turn.text for turn in adapter.turns[-1].messages]
        assert told[-1] == SHORT
        assert INTERRUPTED not in told
        assert told[1].endswith(CUT_OFF)


async def test_who_may_not_stop_interrupts_nothing(tmp_path: Path) -> None:
    """Their urgent message is refused like any other, and what goes on is answered; of a button that they press they are told so."""
    policy = RunPolicy(allowed_users=frozenset({"U1"}))
    async with core_of(tmp_path, policy=policy) as core:
        bolt = make_app(core.intake)
        await deliver_json(bolt, _event("app_mention", SHORT, ROOT))
        await _running(core, _run_id(ROOT))
        urgent = _event("app_mention", f"!{SHORT}", SECOND, thread_ts=ROOT, user="U2")
        await deliver_json(bolt, urgent)
        for press in (core.intake.send_now, core.intake.press_stop):
            assert not await press(_run_id(ROOT), user="U2")
            assert not await press(RunId("run_unknown"), user="U2")
        assert core.replies.ephemerals == 2 * [
            (ROOT, "U2", "You are not on the list of people who may use Orion.")
        ]
        assert (await ended(core, _run_id(SECOND))).state is RunState.FAILED
        assert (await ended(core, _run_id(ROOT))).state is RunState.SUCCEEDED


async def test_an_urgent_message_where_nothing_goes_on_is_a_question(tmp_path: Path) -> None:
    """Neither one that begins a thread, nor one behind an answer, interrupts anything."""
    adapter = PlanAdapter()
    async with core_of(tmp_path, adapter=adapter) as core:
        bolt = make_app(core.intake)
        await deliver_json(bolt, _event("app_mention", SHORT, ROOT))
        assert (await ended(core, _run_id(ROOT))).state is RunState.SUCCEEDED
        await deliver_json(bolt, _event("app_mention", f"!{SHORT}", SECOND, thread_ts=ROOT))
        assert (await ended(core, _run_id(SECOND))).state is RunState.SUCCEEDED
        assert adapter.turns[-1].messages[-1].text == SHORT


@pytest.mark.parametrize("text", ["! settings", "!remember we use uv"])
async def test_an_urgent_command_interrupts_nothing(tmp_path: Path, text: str) -> None:
    """Orion answers it itself, so no agent has to stop for it."""
    async with core_of(tmp_path) as core:
        bolt = make_app(core.intake)
        await deliver_json(bolt, _event("app_mention", SHORT, ROOT))
        await _running(core, _run_id(ROOT))
        await deliver_json(bolt, _event("app_mention", text, SECOND, thread_ts=ROOT))
        assert (await ended(core, _run_id(SECOND))).state is RunState.SUCCEEDED
        first = await ended(core, _run_id(ROOT))
        assert (first.state, first.stop_requested_by) == (RunState.SUCCEEDED, None)

"""Orion's buttons below messages: how a click of each is read, and what is done then.

A new button is an entry of `ACTIONS` and its block (`blocks.py`). Those for keys of people's own and for an answer in words open modals (`key_modal.py`, `modals.py`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from app.approvals.questions import MAX_OPTIONS
from app.runs.approvals import Press
from app.runs.intake import Intake, Pick, RetryIntent
from app.runs.repository.watch import Fix
from app.runs.request import RunId
from app.runs.selection import MAX_CANDIDATES
from app.slack.fields import object_of, text_of
from app.slack.payloads import Ignored
from app.slack.signature import TS, is_id

STOP_ACTION: Final = "orion_stop"
FEEDBACK_ACTION: Final = "orion_feedback"
RETRY_ACTION: Final = "orion_retry"
LOG_ACTION: Final = "orion_show_log"
SEND_NOW_ACTION: Final = "orion_send_now"
KEYS_ACTION: Final = "orion_keys"
ALLOW_ACTION: Final = "orion_allow"
ALLOW_THREAD_ACTION: Final = "orion_allow_thread"
DENY_ACTION: Final = "orion_deny"
WRITE_ACTION: Final = "orion_write_answer"
FIX_ACTION: Final = "orion_fix"
CHOOSE_ACTIONS: Final = tuple(f"orion_choose_{number}" for number in range(MAX_OPTIONS))
"""One for each option of a question."""
PICK_ACTIONS: Final = tuple(f"orion_pick_{number}" for number in range(MAX_CANDIDATES + 1))
"""One for each button. Source: Slack Block Kit, `action_id` is unique within its block, read 2026-11."""

_MAX_DIGITS: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """A click of a button, as Slack tells of it; its fields may be empty."""

    user: str
    value: str
    """What the button's block says."""
    ts: str
    """Slack's, of the click."""
    is_external: bool
    """By somebody of another company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """A run shall stop."""

    run_id: RunId
    user: str
    is_external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """A thumb below an answer."""

    run_id: RunId
    user: str
    is_positive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendNow:
    """A waiting run shall not wait for its thread any longer."""

    run_id: RunId
    user: str
    is_external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowLog:
    """A person wants to see how a run's log ends."""

    run_id: RunId
    user: str
    is_external: bool = False


Intent = TypeVar("Intent")


@dataclass(frozen=True, slots=True)
class Action(Generic[Intent]):
    parse: Callable[[Click], Intent | None]
    """What a click asks for; None when it lacks something."""
    handle: Callable[[Intake, Intent], Awaitable[object]]
    """Makes that durable; an exception means: do not acknowledge."""


def _of_run(kind: Callable[..., Intent], click: Click) -> Intent | None:
    if not is_id(click.value):
        return None
    return kind(run_id=RunId(click.value), user=click.user, is_external=click.is_external)


def _retry(click: Click) -> RetryIntent | None:
    if not (is_id(click.value) and TS.fullmatch(click.ts)):
        return None
    return RetryIntent(
        run_id=RunId(click.value),
        user=click.user,
        click_ts=click.ts,
        is_external=click.is_external,
    )


def _press(
    click: Click, *, is_allowed: bool, is_for_thread: bool = False, option: int | None = None
) -> Press | None:
    if not is_id(click.value):
        return None
    return Press(
        approval_id=click.value,
        user=click.user,
        is_allowed=is_allowed,
        is_for_thread=is_for_thread,
        option=option,
        is_external=click.is_external,
    )


def _pick(number: int, click: Click) -> Pick | None:
    if not (is_id(click.value) and TS.fullmatch(click.ts)):
        return None
    return Pick(
        run_id=RunId(click.value),
        number=number,
        user=click.user,
        click_ts=click.ts,
        is_external=click.is_external,
    )


def _fix(click: Click) -> Fix | None:
    pull_id, _, number = click.value.partition(":")
    is_whole = is_id(pull_id) and number.isdecimal() and len(number) <= _MAX_DIGITS
    if not (is_whole and TS.fullmatch(click.ts)):
        return None
    return Fix(
        pull_id=pull_id,
        number=int(number),
        user=click.user,
        click_ts=click.ts,
        is_external=click.is_external,
    )


def _feedback(click: Click) -> Feedback | None:
    verdict, _, run_id = click.value.partition(":")
    if verdict not in ("up", "down") or not is_id(run_id):
        return None
    return Feedback(run_id=RunId(run_id), user=click.user, is_positive=verdict == "up")


ACTIONS: Final[Mapping[str, Action[Any]]] = {
    STOP_ACTION: Action(
        partial(_of_run, StopRun),
        lambda intake, stop: intake.press_stop(
            stop.run_id, user=stop.user, is_external=stop.is_external
        ),
    ),
    RETRY_ACTION: Action(_retry, lambda intake, retry: intake.retry(retry)),
    SEND_NOW_ACTION: Action(
        partial(_of_run, SendNow),
        lambda intake, one: intake.send_now(one.run_id, user=one.user, is_external=one.is_external),
    ),
    **{
        name: Action(partial(_pick, number), lambda intake, pick: intake.pick(pick))
        for number, name in enumerate(PICK_ACTIONS)
    },
    FIX_ACTION: Action(_fix, lambda intake, fix: intake.fix(fix)),
    ALLOW_ACTION: Action(
        partial(_press, is_allowed=True), lambda intake, press: intake.press(press)
    ),
    ALLOW_THREAD_ACTION: Action(
        partial(_press, is_allowed=True, is_for_thread=True),
        lambda intake, press: intake.press(press),
    ),
    DENY_ACTION: Action(
        partial(_press, is_allowed=False), lambda intake, press: intake.press(press)
    ),
    **{
        name: Action(
            partial(_press, is_allowed=True, option=number),
            lambda intake, press: intake.press(press),
        )
        for number, name in enumerate(CHOOSE_ACTIONS)
    },
    LOG_ACTION: Action(
        partial(_of_run, ShowLog),
        lambda intake, log: intake.show_log(log.run_id, user=log.user, is_external=log.is_external),
    ),
    FEEDBACK_ACTION: Action(
        _feedback,
        lambda intake, thumb: intake.feedback(
            thumb.run_id, user=thumb.user, is_positive=thumb.is_positive
        ),
    ),
}
"""By their action ids, which stand in messages for as long as those do."""


def parse_click(
    body: Mapping[str, Any], known: Mapping[str, Action[Any]] = ACTIONS
) -> tuple[Action[Any], Any] | Ignored:
    """Returns the action of those known that was clicked, and what it asks for."""
    actions = body.get("actions")
    action = actions[0] if isinstance(actions, list) and actions else None
    user = object_of(body, "user")
    if not isinstance(action, dict) or not is_id(user.get("id")):
        return Ignored(reason="incomplete")
    clicked = known.get(text_of(action, "action_id"))
    if clicked is None:
        return Ignored(reason="unknown_action")
    click = Click(
        user=text_of(user, "id"),
        value=text_of(action, "value"),
        ts=text_of(action, "action_ts"),
        is_external=text_of(user, "team_id") != text_of(object_of(body, "team"), "id"),
    )
    intent = clicked.parse(click)
    return Ignored(reason="incomplete") if intent is None else (clicked, intent)

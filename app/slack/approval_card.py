"""The card of what waits for a person: what would be done, exactly, or what the agent asks, and who may answer; afterwards the record of what was said."""

from typing import Any, Final

from app.approvals.records import Approval, ApprovalState
from app.approvals.rules import ASKER, CHANNEL, OPERATORS, DeedKind, is_person
from app.approvals.showing import visible
from app.slack.actions import (
    ALLOW_ACTION,
    ALLOW_THREAD_ACTION,
    CHOOSE_ACTIONS,
    DENY_ACTION,
    WRITE_ACTION,
)
from app.slack.blocks import Block, MessagePart
from app.slack.cards import code, context, cut, plain, quoted, section

_DEEDS: Final = {
    DeedKind.TOOL: "use the tool",
    DeedKind.PUSH: "push to",
    DeedKind.PULL_REQUEST: "open a pull request in",
    DeedKind.HOST: "reach the host",
    DeedKind.OWN_KEY: "spend from your own key for",
}
MAX_CODE_BLOCKS: Final = 5
"""Enough for `app.approvals.showing.MAX_CHARS`."""
_ANSWERED: Final = "✅ *Answered*"
_HALF: Final = "⌛ *Expired*: too few people answered in time, which is no refusal"
_QUESTION_ENDS: Final = {
    ApprovalState.ALLOWED: _ANSWERED,
    ApprovalState.USED: _ANSWERED,
    ApprovalState.DENIED: "👌 *Left to me*",
    ApprovalState.EXPIRED: "⌛ *Nobody answered in time*",
    ApprovalState.WITHDRAWN: "⏹ *Not needed any more*: the run has ended",
}
_ENDS: Final = {
    ApprovalState.ALLOWED: "✅ *Allowed*",
    ApprovalState.USED: "✅ *Allowed, and let through*",
    ApprovalState.DENIED: "⛔ *Denied*",
    ApprovalState.EXPIRED: "⌛ *Expired*: nobody answered in time, which is no refusal",
    ApprovalState.WITHDRAWN: "⏹ *Not needed any more*: the run has ended",
}


def render_approval(approval: Approval) -> MessagePart:
    """Returns the card as it must be now. What the agent wrote pings nobody; what it would do is shown as code."""
    if approval.kind is DeedKind.QUESTION:
        return _render_question(approval)
    deed = f"{_DEEDS[approval.kind]} `{plain(approval.target)}`"
    asks = f"I would like to {deed}"
    blocks: list[Block] = []
    if approval.state is ApprovalState.WAITING:
        blocks.append(section(f"✋ {asks}. May I?"))
    else:
        blocks.append(section(f"{_end(approval)}: {deed}"))
    if approval.shown:
        blocks += code(approval.shown, blocks=MAX_CODE_BLOCKS)
    blocks.append(context(_facts(approval)))
    if approval.state is ApprovalState.WAITING:
        blocks.append(_buttons(approval))
    return MessagePart(blocks=tuple(blocks), text=f"{asks}: {approval.state}")


def _end(approval: Approval) -> str:
    if approval.state is ApprovalState.EXPIRED and approval.answers:
        return _HALF
    # A host that may be tried need not be there.
    is_tried = approval.kind is DeedKind.HOST and approval.state is ApprovalState.USED
    return _ENDS[ApprovalState.ALLOWED if is_tried else approval.state]


def _render_question(approval: Approval) -> MessagePart:
    is_waiting = approval.state is ApprovalState.WAITING
    head = "❓ *I need to know:*" if is_waiting else f"{_QUESTION_ENDS[approval.state]}:"
    asked = cut(visible(approval.target))
    blocks: list[Block] = [section(f"{head}\n{asked}")]
    blocks += [section(quoted(one.text)) for one in approval.answers if one.text]
    otherwise = f"without an answer: {plain(approval.otherwise)}"
    is_open = approval.state in (ApprovalState.WAITING, ApprovalState.EXPIRED)
    facts = [*_people(approval), *([otherwise] if is_open else [])]
    blocks.append(context(" · ".join(facts) or "asked by the agent"))
    if is_waiting:
        choices = [
            _button(action, option, approval)
            for action, option in zip(CHOOSE_ACTIONS, approval.options, strict=False)
        ]
        others = (
            _button(WRITE_ACTION, "Write an answer", approval),
            _button(DENY_ACTION, "Decide yourself", approval),
        )
        blocks.append({"type": "actions", "elements": [*choices, *others]})
    return MessagePart(blocks=tuple(blocks), text=f"I need to know: {asked}")


def _facts(approval: Approval) -> str:
    """Returns who may answer, until when, who has, and which rule asks."""
    facts = _people(approval)
    if approval.is_for_thread:
        facts.append(f"for all that <@{approval.asker}> asks in this thread")
    facts.append(f"rule `{plain(approval.rule)}`")
    return " · ".join(facts)


def _people(approval: Approval) -> list[str]:
    """Returns who may answer and until when, and who has."""
    facts = []
    if approval.state is ApprovalState.WAITING:
        facts.append(f"for {_who(approval)}")
        stamp = int(approval.until.timestamp())
        facts.append(f"until <!date^{stamp}^{{time}}|{approval.until:%H:%M} UTC>")
    for one in approval.answers:
        said = "said yes" if one.is_allowed else "said no"
        if approval.kind is DeedKind.QUESTION:
            said = "answered"
        stamp = int(one.at.timestamp())
        facts.append(f"<@{one.user}> {said} <!date^{stamp}^at {{time}}|at {one.at:%H:%M} UTC>")
    return facts


def _who(approval: Approval) -> str:
    words = {
        ASKER: f"<@{approval.asker}>",
        CHANNEL: "anybody here who may use me",
        OPERATORS: "an operator",
    }
    people = [words.get(one) or _named(one) for one in approval.by]
    if approval.people == 1:
        return " or ".join(people)
    return f"{approval.people} people together: {', '.join(people)}"


def _named(one: str) -> str:
    """Returns a person so that Slack shows their name, a group by its own."""
    return f"<@{one}>" if is_person(one) else f"`{plain(one)}`"


def _buttons(approval: Approval) -> Block:
    buttons = [
        _button(ALLOW_ACTION, "Allow", approval, style="primary"),
        _button(DENY_ACTION, "Deny", approval, style="danger"),
    ]
    if approval.kind is not DeedKind.OWN_KEY:
        buttons.append(_button(ALLOW_THREAD_ACTION, "Allow for this thread", approval))
    return {"type": "actions", "elements": buttons}


def _button(action: str, label: str, approval: Approval, **more: str) -> dict[str, Any]:
    text = {"type": "plain_text", "text": label}
    return {"type": "button", "action_id": action, "text": text, "value": approval.id, **more}

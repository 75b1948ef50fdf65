"""What a thread is shown of a run: blocks, with a short text for notifications."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import ErrorCode
from app.runs.model import Progress, QueuePosition, Run, RunResult, RunState
from app.runs.own_keys import BUTTON
from app.slack.markdown import neutralise, plain_fallback
from app.slack.own_keys import KEYS_ACTION
from app.slack.payloads import FEEDBACK_ACTION, LOG_ACTION, RETRY_ACTION, STOP_ACTION
from app.slack.splitting import MAX_PART_CHARS, split_markdown, tail_markdown
from app.slack.text import escape
from app.slack.wording import (
    changes_text,
    duration_text,
    failure_text,
    spent_text,
    steps_text,
)

__all__ = ["MessagePart", "plain_result", "progress", "result", "thinking"]

MAX_ARGUMENT_CHARS: Final = 200
MAX_TAIL_CHARS: Final = 3_000
_PLAIN_PART_CHARS: Final = 3_000
"""Below the 4,000 that chat.update takes, with room for escapes. Source: Slack Web API, chat.update, read 2026-11."""
_MAX_SECTION_CHARS: Final = 2_900
"""Source: Slack Block Kit, section text, 3,000 characters, read 2026-11."""

_LOOKALIKE: Final = "\u02cb"
"""Looks like a backtick, but does not end a code span."""

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePart:
    """One Slack message."""

    blocks: tuple[Block, ...]
    """Empty for a message of plain text."""
    text: str
    """Escaped; what notifications show."""


def thinking(run: Run, position: QueuePosition, *, capacity: int) -> MessagePart:
    """The message that stands at once. `capacity`: how many runs may go at a time."""
    text = _waiting_text(position, capacity=capacity) if position.is_waiting else "Thinking…"
    return MessagePart(blocks=(_section(text), _stop_button(run)), text=text)


def progress(run: Run, shown: Progress) -> MessagePart:
    """What goes on now, with the answer as far as it is written."""
    phase = escape(shown.phase.rstrip(".… "))
    head = _section(f"{phase}…")
    facts = _facts(_tool_text(shown), steps_text(shown.steps), duration_text(shown.elapsed_s))
    blocks: list[Block] = [head, _context(facts)]
    tail = tail_markdown(neutralise(shown.text, asker=run.request.user), max_chars=MAX_TAIL_CHARS)
    if tail.strip():
        blocks.insert(0, _markdown(tail))
    return MessagePart(blocks=(*blocks, _stop_button(run)), text=f"{phase}…")


def result(
    run: Run, ended: RunResult, *, max_chars: int = MAX_PART_CHARS, takes_keys: bool = False
) -> tuple[MessagePart, ...]:
    """The final messages, in order; the first takes the place of the thinking message.

    `takes_keys`: people may give keys of their own.
    """
    answer = neutralise(ended.answer, asker=run.request.user)
    parts = [
        MessagePart(blocks=(_markdown(part),), text=plain_fallback(part))
        for part in split_markdown(answer, max_chars=max_chars)
    ]
    closing, text = _closing(run, ended)
    if takes_keys and run.request.options.command is not None:
        closing = (_actions(_button(KEYS_ACTION, BUTTON, run)), *closing)
    if not parts:
        return (MessagePart(blocks=closing, text=text),)
    last = parts.pop()
    is_answer = ended.outcome is RunState.SUCCEEDED
    return (
        *parts,
        MessagePart(blocks=(*last.blocks, *closing), text=last.text if is_answer else text),
    )


def plain_result(run: Run, ended: RunResult) -> tuple[MessagePart, ...]:
    """The same without blocks, for when Slack refuses them."""
    answer = neutralise(ended.answer)
    _, text = _closing(run, ended)
    facts = _closing_facts(run, ended)
    texts = [escape(part) for part in _plain_parts(answer)]
    if ended.outcome is RunState.SUCCEEDED and texts:
        texts[-1] = f"{texts[-1]}\n\n{facts}"
    else:
        texts.append(f"{text}\n{facts}".strip())
    return tuple(MessagePart(blocks=(), text=part) for part in texts)


def _plain_parts(text: str) -> list[str]:
    """Cut by the size after escaping, in the middle of words if need be."""
    parts: list[str] = []
    current, size = "", 0
    for line in re.findall(r"[^\n]{1,500}\n?|\n", text):
        cost = len(escape(line))
        if size + cost > _PLAIN_PART_CHARS and current.strip():
            parts.append(current.strip("\n"))
            current, size = "", 0
        current, size = current + line, size + cost
    return [*parts, current.strip("\n")] if current.strip() else parts


def _closing(run: Run, ended: RunResult) -> tuple[tuple[Block, ...], str]:
    """The blocks under the answer, and the text of a message without one."""
    facts = _closing_facts(run, ended)
    match ended.outcome:
        case RunState.SUCCEEDED:
            return (_context(facts), _feedback_buttons(run)), "Done"
        case RunState.STOPPED:
            by = f" by {_person(ended.stopped_by)}" if ended.stopped_by else ""
            when = f"after {duration_text(ended.duration_s)}" if run.attempt else "before it began"
            text = f"Stopped{by} {when}"
            return (_context(_facts(text, facts)),), text
        case _:
            code = ended.error_code or ErrorCode.AGENT_EXECUTION_FAILED
            text = failure_text(code, escape(ended.detail))
            buttons = [_button(RETRY_ACTION, "Retry", run)]
            if run.attempt:
                buttons.append(_button(LOG_ACTION, "Show log", run))
            return (_section(text), _context(facts), _actions(*buttons)), text


def _closing_facts(run: Run, ended: RunResult) -> str:
    """The line of small print; empty when a run that was stopped has used nothing."""
    took, used = duration_text(ended.duration_s), (changes_text(ended.changes), spent_text(ended))
    match ended.outcome:
        case RunState.SUCCEEDED:
            return _facts(took, steps_text(ended.steps), *used)
        case RunState.STOPPED:
            return _facts(*used)
        case _:
            ids = (f"`{fact}`" for fact in (ended.error_code, run.id) if fact)
            return _facts(*ids, took, *used)


def _facts(*facts: str) -> str:
    return " · ".join(fact for fact in facts if fact)


def _waiting_text(position: QueuePosition, *, capacity: int) -> str:
    if position.ahead_in_thread:
        plural = "" if position.ahead_in_thread == 1 else "s"
        return f"Queued behind {position.ahead_in_thread} earlier message{plural} in this thread"
    places = "The only place is" if capacity == 1 else f"All {capacity} places are"
    # About: people who have nothing going may still come before.
    return f"{places} busy; you are about number {position.ahead_elsewhere}, as people take turns"


def _tool_text(shown: Progress) -> str:
    if not shown.tool:
        return ""
    argument = " ".join(shown.tool_argument.split())
    if len(argument) > MAX_ARGUMENT_CHARS:
        argument = argument[: MAX_ARGUMENT_CHARS - 1] + "…"
    name = escape(shown.tool)
    return f"{name} {_code(argument)}" if argument else name


def _code(text: str) -> str:
    return f"`{escape(neutralise(text)).replace('`', _LOOKALIKE)}`"


def _person(user: str) -> str:
    return f"<@{user}>" if re.fullmatch(r"[UW][A-Z0-9]+", user) else escape(user)


def _markdown(text: str) -> Block:
    return {"type": "markdown", "text": text}


def _section(text: str) -> Block:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:_MAX_SECTION_CHARS]}}


def _context(text: str) -> Block:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text[:_MAX_SECTION_CHARS]}]}


def _stop_button(run: Run) -> Block:
    return _actions(_button(STOP_ACTION, "Stop", run, style="danger"))


def _actions(*buttons: Block) -> Block:
    return {"type": "actions", "elements": list(buttons)}


def _button(action: str, label: str, run: Run, **more: str) -> Block:
    return {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": label},
        "value": run.id,
        **more,
    }


def _feedback_buttons(run: Run) -> Block:
    """Source: Slack Block Kit, `context_actions` with `feedback_buttons`, read 2026-11."""
    buttons = {
        "type": "feedback_buttons",
        "action_id": FEEDBACK_ACTION,
        "positive_button": _feedback_button("Good answer", f"up:{run.id}"),
        "negative_button": _feedback_button("Bad answer", f"down:{run.id}"),
    }
    return {"type": "context_actions", "elements": [buttons]}


def _feedback_button(label: str, value: str) -> Mapping[str, Any]:
    return {
        "text": {"type": "plain_text", "text": label},
        "accessibility_label": label,
        "value": value,
    }

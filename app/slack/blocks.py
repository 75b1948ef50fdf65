"""What a thread is shown of a run, in blocks and in Orion's voice: what happened and what to do, calmly; no stack, no secret, no blame."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import ErrorCode
from app.runs.budget import render_money, to_micro
from app.runs.model import (
    Changes,
    ChannelChange,
    Outcome,
    PlannedStep,
    Progress,
    QueuePosition,
    Run,
    RunState,
    StepState,
    ToolCall,
)
from app.runs.options import NO_REPO
from app.runs.ports import BUTTON
from app.slack.actions import (
    FEEDBACK_ACTION,
    KEYS_ACTION,
    LOG_ACTION,
    PICK_ACTIONS,
    RETRY_ACTION,
    SEND_NOW_ACTION,
    STOP_ACTION,
)
from app.slack.markdown import (
    MAX_PART_CHARS,
    escape,
    neutralise,
    plain_fallback,
    split_markdown,
    tail_markdown,
)

_ERROR_TEXTS: Final[dict[ErrorCode, str]] = {
    ErrorCode.SANDBOX_CREATION_FAILED: "I'm having trouble starting up. Please try again in a moment.",
    ErrorCode.SANDBOX_TIMEOUT: "Your request took too long. Please try a simpler question.",
    ErrorCode.SANDBOX_SETUP_FAILED: "Agent setup failed. Please try again.",
    ErrorCode.SANDBOX_LIMIT_REACHED: "All my workspaces are in use. Please try again in a few minutes.",
    ErrorCode.SANDBOX_LOST: "I lost my workspace in the middle of this. Please ask again.",
    ErrorCode.AGENT_EXECUTION_FAILED: "I encountered an error processing your request.",
    ErrorCode.AGENT_NO_ANSWER: "I finished without an answer. Please ask again, perhaps in other words.",
    ErrorCode.AGENT_IDLE: "I stopped because nothing moved for a long time. Please try again.",
    ErrorCode.MODEL_RATE_LIMITED: "The model is taking no more requests right now. Please try again in a minute.",
    ErrorCode.MODEL_OVERLOADED: "The model is overloaded right now. Please try again in a few minutes.",
    ErrorCode.MODEL_UNAVAILABLE: "I can't reach the model right now. Please try again in a few minutes.",
    ErrorCode.MODEL_CONTEXT_EXCEEDED: "This thread has grown too long for the model. Please start a new thread.",
    ErrorCode.MODEL_REFUSED: "The model declined to answer this. Please ask in a different way.",
    ErrorCode.MODEL_NOT_FOUND: "There is no such model. Please ask for another one.",
    ErrorCode.MODEL_AUTH_FAILED: "The model did not accept my key. Please tell the operator.",
    ErrorCode.MODEL_BILLING: "The account for the model has no credit left. Please tell the operator.",
    ErrorCode.BUDGET_EXCEEDED: "The money that this may cost is used up. Please ask the operator.",
    ErrorCode.LIMIT_EXCEEDED: "This reached the limit of what I may use for one request. Please ask for a smaller step.",
    ErrorCode.QUEUE_FULL: "Too many requests are waiting. Please try again in a few minutes.",
    ErrorCode.NOT_ALLOWED: "I'm not allowed to do this for you here. Please ask the operator for access.",
    ErrorCode.APPROVAL_EXPIRED: "Nobody said yes in time, which is no refusal. Please ask again when somebody can answer.",
    ErrorCode.REQUEST_INVALID: "I can't work with this request. Please check it and send it again.",
    ErrorCode.REPO_UNAVAILABLE: "I can't work with this repository. Please check its name, or ask the operator.",
    ErrorCode.INTERRUPTED: "I was interrupted and could not recover this. Please ask again.",
    ErrorCode.INTERNAL: "Something went wrong on my side. Please try again, and tell the operator if it happens again.",
}


_PLAIN_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|['-])*[,;:]?(?=\s|$)")
"""No option, path or id, which nobody would know again with a capital."""

_DETAIL_SAYS_IT: Final[dict[ErrorCode, str]] = {
    ErrorCode.NOT_ALLOWED: "",
    ErrorCode.REQUEST_INVALID: "",
    ErrorCode.MODEL_NOT_FOUND: "",
    ErrorCode.REPO_UNAVAILABLE: "",
    ErrorCode.BUDGET_EXCEEDED: "",
    ErrorCode.LIMIT_EXCEEDED: " Please ask for a smaller step.",
}
"""Where the detail is the sentence, and what follows it."""


def error_text(code: ErrorCode) -> str:
    """Returns one sentence or two for the person who asked."""
    return _ERROR_TEXTS[code]


def failure_text(code: ErrorCode, detail: str) -> str:
    """Returns what failed, or why nothing will happen; `detail` in lower case, without a full stop."""
    if code in _DETAIL_SAYS_IT and detail:
        return f"{as_sentence(detail)}{_DETAIL_SAYS_IT[code]}"
    return error_text(code) + (f" ({detail})" if detail else "")


def as_sentence(detail: str) -> str:
    """Returns a detail with its capital and its full stop, where it can have them."""
    is_plain = _PLAIN_WORD.match(detail)
    capital = detail[0].upper() if is_plain else detail[0]
    return f"{capital}{detail[1:]}{'' if detail.endswith(('?', '…')) else '.'}"


def duration_text(seconds: float) -> str:
    """Returns `12 s`, `1 min 12 s`, `1 h 2 min`."""
    whole = max(int(seconds), 0)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes of an hour
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def steps_text(steps: int) -> str:
    """Returns `3 steps`, or nothing when there were none."""
    return "" if steps == 0 else f"{steps} step{'s' if steps > 1 else ''}"


def spent_text(result: Outcome) -> str:
    """Returns `1.2k tokens · $0.0042`, or `1.2k tokens · cost unknown`; nothing where nothing was counted."""
    facts = []
    tokens = result.usage.tokens
    if tokens:
        facts.append(f"{_short(tokens)} token{'' if tokens == 1 else 's'}")
    if result.cost_usd is None and tokens:
        facts.append("cost unknown")
    elif result.cost_usd is not None and (result.cost_usd or tokens):
        facts.append(render_money(to_micro(result.cost_usd)))
    return " · ".join(facts)


def _short(number: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            text = f"{number / size:.1f}" if number < 10 * size else f"{number // size}"
            return f"{text.removesuffix('.0')}{letter}"
    return str(number)


def changes_text(changes: Changes | None) -> str:
    """Returns `2 files changed +10 -3`, or nothing."""
    if changes is None:
        return ""
    files = f"{changes.files} file{'' if changes.files == 1 else 's'} changed"
    return f"{files} +{changes.added} \u2212{changes.removed}"


def change_text(change: ChannelChange) -> str:
    """Returns the line that tells a channel of its new defaults, in mrkdwn; mentions nobody else than who changed them."""
    told = "reset this channel's defaults."
    if change.said != "reset":
        said = escape(change.said).replace("`", "'")
        told = f"changed this channel's defaults: `{said}`."
    return f"<@{change.user}> {told} Write `settings` to me to see all of them."


def announcement_text(run: Run, result: Outcome) -> str:
    """Returns the line that notifies the asker, in mrkdwn."""
    took = duration_text(result.duration_s)
    match result.state:
        case RunState.SUCCEEDED:
            return f"<@{run.request.user}> done ({took})"
        case RunState.STOPPED:
            return f"<@{run.request.user}> stopped ({took})"
        case _:
            return f"<@{run.request.user}> this did not work out ({took})"


MAX_ARGUMENT_CHARS: Final = 200
MAX_TAIL_CHARS: Final = 3_000
MAX_TOOL_LINES: Final = 4
MAX_PLAN_LINES: Final = 12
_MARKS: Final = {
    StepState.PENDING: "○",
    StepState.RUNNING: "▸",
    StepState.DONE: "✓",
    StepState.FAILED: "✗",
}
_PLAIN_PART_CHARS: Final = 3_000
"""Below the 4,000 that chat.update takes, with room for the closing line. Source: Slack Web API, chat.update, read 2026-11."""
_MAX_SECTION_CHARS: Final = 2_900
"""Source: Slack Block Kit, section text, 3,000 characters, read 2026-11."""

_MAX_LABEL_CHARS: Final = 75
"""Source: Slack Block Kit, button text, read 2026-11; names of repositories differ in their ends."""

_LOOKALIKE: Final = "\u02cb"
"""Looks like a backtick, but does not end a code span."""

_SAME_AGAIN: Final = frozenset({ErrorCode.MODEL_CONTEXT_EXCEEDED})
"""Where a retry in the same thread cannot end otherwise: its history is too long, and a new thread is what helps."""

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePart:
    blocks: tuple[Block, ...]
    """Empty for a message of plain text."""
    text: str
    """Escaped; what notifications show."""


def render_thinking(run: Run, position: QueuePosition, *, capacity: int) -> MessagePart:
    """Returns the message that stands at once. `capacity`: how many runs may go at a time."""
    text, buttons = "Thinking…", [_stop_button(run)]
    if position.ahead_in_thread and run.request.is_urgent:
        text = "Interrupting what goes on in this thread…"
    elif position.is_waiting:
        text = _waiting_text(position, capacity=capacity)
        if position.ahead_in_thread:
            buttons.append(_button(SEND_NOW_ACTION, "Send now", run))
    about = question_text(run)
    said = (_section(text), _context(about)) if about else (_section(text),)
    return MessagePart(blocks=(*said, _actions(*buttons)), text=text)


def question_text(run: Run) -> str:
    """Returns what its thread does not show of a question: what was asked, and when, and the repository that was chosen by a click; empty where it shows all."""
    request, facts = run.request, []
    if request.unseen:
        shown = escape(neutralise(_shortened(" ".join(request.unseen.split()))))
        facts.append(f"<@{request.user}> asked: “{shown}”")
    if request.picked_repo:
        facts.append(_chosen_text(run))
    if late_s := request.late_s:
        whole_s = late_s - late_s % 60 if late_s > 60 else late_s  # noqa: PLR2004 - seconds of a minute
        facts.append(f"asked {duration_text(whole_s)} ago, while I was away")
    return _facts(*facts)


def settled_text(run: Run) -> str:
    """Returns what stands where it was asked which repository is meant, once a run follows."""
    if run.request.picked_repo:
        return f"Which repository is meant? {_chosen_text(run)}."
    return "Which repository is meant? Not asked any more: the message was edited, or taken back."


def _chosen_text(run: Run) -> str:
    repo = run.request.picked_repo
    chosen = "no repository" if repo == NO_REPO else escape(neutralise(repo))
    return f"{chosen}, chosen by <@{run.request.user}>"


def render_progress(run: Run, shown: Progress) -> MessagePart:
    """Returns what goes on now, with the agent's plan, its newest tool calls, and the answer as far as it is written."""
    phase = escape(shown.phase.rstrip(".… "))
    written = neutralise(shown.before + shown.text, asker=run.request.user)
    tail = tail_markdown(written, max_chars=MAX_TAIL_CHARS)
    lines = [
        _lines([_step_line(step) for step in shown.plan[:MAX_PLAN_LINES]]),
        _lines(_tool_lines(shown)),
    ]
    blocks = (
        *([_markdown(tail)] if tail.strip() else []),
        _section(f"{phase}…"),
        *(_context(text) for text in lines if text),
        _context(
            _facts(question_text(run), steps_text(shown.steps), duration_text(shown.elapsed_s))
        ),
        _actions(_stop_button(run)),
    )
    return MessagePart(blocks=blocks, text=f"{phase}…")


def render_stop(run: Run) -> tuple[Block, ...]:
    """Returns the Stop button alone."""
    return (_actions(_stop_button(run)),)


def tool_text(tool: ToolCall) -> str:
    """Returns a tool call as one line of plain text."""
    return " ".join(f"{tool.name} {tool.argument}".split())


def _tool_lines(shown: Progress) -> list[str]:
    """Returns the newest calls, a line each, below one for all earlier ones."""
    newest = shown.tools[-MAX_TOOL_LINES:]
    lines = [f"{_MARKS[tool.state]} {_tool_line(tool)}" for tool in newest]
    if folded := shown.steps - len(newest):
        lines.insert(0, f"{steps_text(folded)} before")
    return lines


def _step_line(step: PlannedStep) -> str:
    title = " ".join(step.title.split())
    return f"{_MARKS[step.state]} {escape(neutralise(_shortened(title)))}"


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(lines)


def no_link(trace_id: str) -> str:
    """Returns no address."""
    del trace_id
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """Says how a deployment shows its runs: what of it stands in messages beside a run's own state, text and buttons."""

    capacity: int = 1
    """Runs that may go at once; shown to people who wait."""
    takes_keys: bool = False
    """People may give keys of their own."""
    trace_link: Callable[[str], str] = no_link
    """Returns the address of a trace by its id, to be shown with the run's below answers; empty = neither is."""
    operators_page: str = ""
    """Address of the page that has a run's at `/runs/ID`; empty = there is none, and its id alone is shown."""


PLAIN_STYLE: Final = ReplyStyle()


def render_result(
    run: Run, ended: Outcome, *, max_chars: int = MAX_PART_CHARS, style: ReplyStyle = PLAIN_STYLE
) -> tuple[MessagePart, ...]:
    """Returns the final messages, in order; the first takes the place of the thinking message."""
    answer = neutralise(ended.answer, asker=run.request.user)
    parts = [
        MessagePart(blocks=(_markdown(part),), text=plain_fallback(part))
        for part in split_markdown(answer, max_chars=max_chars)
    ]
    closing, text = _closing(run, ended)
    if address := style.trace_link(run.trace_id):
        page = style.operators_page
        shown = f"<{page}/runs/{run.id}|run>" if page else f"`{run.id}`"
        closing = (*closing, _context(f"<{address}|trace> · {shown}"))
    if style.takes_keys and run.request.options.command is not None:
        closing = (_actions(_button(KEYS_ACTION, BUTTON, run)), *closing)
    if not parts:
        return (MessagePart(blocks=closing, text=text),)
    last = parts.pop()
    is_answer = ended.state is RunState.SUCCEEDED
    return (
        *parts,
        MessagePart(blocks=(*last.blocks, *closing), text=last.text if is_answer else text),
    )


def render_plain_result(run: Run, ended: Outcome) -> tuple[MessagePart, ...]:
    """Returns the same without blocks, for when Slack refuses them."""
    _, text = _closing(run, ended)
    facts = _closing_facts(run, ended)
    texts = list(split_markdown(escape(neutralise(ended.answer)), max_chars=_PLAIN_PART_CHARS))
    if ended.state is RunState.SUCCEEDED and texts:
        texts[-1] = f"{texts[-1]}\n\n{facts}"
    else:
        texts.append(f"{text}\n{facts}".strip())
    return tuple(MessagePart(blocks=(), text=part) for part in texts)


def _closing(run: Run, ended: Outcome) -> tuple[tuple[Block, ...], str]:
    """Returns the blocks under the answer, and the text of a message without one."""
    facts = _closing_facts(run, ended)
    match ended.state:
        case RunState.SUCCEEDED if ended.candidates:
            picks = zip(PICK_ACTIONS, ended.candidates, strict=False)
            return (_actions(*(_pick_button(name, repo, run) for name, repo in picks)),), "Done"
        case RunState.SUCCEEDED:
            return (_context(facts), _feedback_buttons(run)), "Done"
        case RunState.STOPPED if ended.made_way:
            text = "Made way for a later message, which is answered with this one"
            return (_context(_facts(text, facts)),), text
        case RunState.STOPPED:
            by = f" by {_person(ended.stopped_by)}" if ended.stopped_by else ""
            when = f"after {duration_text(ended.duration_s)}" if run.attempt else "before it began"
            text = f"Stopped{by} {when}"
            return (_context(_facts(text, facts)),), text
        case _:
            code = ended.error_code or ErrorCode.AGENT_EXECUTION_FAILED
            text = failure_text(code, escape(ended.told))
            # Before an attempt Orion refuses it by itself, and would again.
            is_refused = code is ErrorCode.REQUEST_INVALID and not run.attempt
            is_same_again = code in _SAME_AGAIN or is_refused
            buttons = [] if is_same_again else [_button(RETRY_ACTION, "Retry", run)]
            if run.attempt:
                buttons.append(_button(LOG_ACTION, "Show log", run))
            actions = (_actions(*buttons),) if buttons else ()
            return (_section(text), _context(facts), *actions), text


def _closing_facts(run: Run, ended: Outcome) -> str:
    """Returns the line of small print; empty when a run that was stopped has used nothing."""
    took, used = duration_text(ended.duration_s), (changes_text(ended.changes), spent_text(ended))
    about = question_text(run)
    match ended.state:
        case RunState.SUCCEEDED:
            return _facts(about, took, steps_text(ended.steps), *used)
        case RunState.STOPPED:
            return _facts(about, steps_text(ended.steps), *used)
        case _:
            ids = (f"`{fact}`" for fact in (ended.error_code, run.id) if fact)
            return _facts(about, *ids, took, *used)


def _facts(*facts: str) -> str:
    return " · ".join(fact for fact in facts if fact)


def _waiting_text(position: QueuePosition, *, capacity: int) -> str:
    if position.ahead_in_thread:
        plural = "" if position.ahead_in_thread == 1 else "s"
        return f"Queued behind {position.ahead_in_thread} earlier message{plural} in this thread"
    slots = "The only slot is" if capacity == 1 else f"All {capacity} slots are"
    # About: people who have nothing going may still come before.
    return f"{slots} busy; you are about number {position.ahead_elsewhere}, as people take turns"


def _tool_line(tool: ToolCall) -> str:
    argument = _shortened(" ".join(tool.argument.split()))
    name = escape(tool.name)
    return f"{name} {_code(argument)}" if argument else name


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_ARGUMENT_CHARS else f"{line[: MAX_ARGUMENT_CHARS - 1]}…"


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
    return _button(STOP_ACTION, "Stop", run, style="danger")


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


def _pick_button(action: str, repo: str, run: Run) -> Block:
    label = "No repository" if repo == NO_REPO else repo
    return _button(action, label[-_MAX_LABEL_CHARS:], run)


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

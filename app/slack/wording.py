"""The product's voice: what happened and what to do, calmly; no stack, no secret, no blame."""

import re
from typing import Final

from app.errors import ErrorCode
from app.runs.costs import money_text, to_micro
from app.runs.model import Changes, Run, RunResult, RunState

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
    """One sentence or two for the person who asked."""
    return _ERROR_TEXTS[code]


def failure_text(code: ErrorCode, detail: str) -> str:
    """What failed, or why nothing will happen; `detail` in lower case, without a full stop."""
    if code in _DETAIL_SAYS_IT and detail:
        return f"{as_sentence(detail)}{_DETAIL_SAYS_IT[code]}"
    return error_text(code) + (f" ({detail})" if detail else "")


def as_sentence(detail: str) -> str:
    """With its capital and its full stop, where it can have them."""
    is_plain = _PLAIN_WORD.match(detail)
    capital = detail[0].upper() if is_plain else detail[0]
    return f"{capital}{detail[1:]}{'' if detail.endswith(('?', '…')) else '.'}"


def duration_text(seconds: float) -> str:
    """`12 s`, `1 min 12 s`, `1 h 2 min`."""
    whole = max(int(seconds), 0)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes of an hour
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def steps_text(steps: int) -> str:
    """`3 steps`, or nothing when there were none."""
    return "" if steps == 0 else f"{steps} step{'s' if steps > 1 else ''}"


def spent_text(result: RunResult) -> str:
    """`1.2k tokens · $0.0042`, or `1.2k tokens · cost unknown`; nothing where nothing was counted."""
    facts = []
    if result.tokens:
        facts.append(f"{_short(result.tokens)} token{'' if result.tokens == 1 else 's'}")
    if result.cost_usd is None and result.tokens:
        facts.append("cost unknown")
    elif result.cost_usd is not None and (result.cost_usd or result.tokens):
        facts.append(money_text(to_micro(result.cost_usd)))
    return " · ".join(facts)


def _short(number: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            text = f"{number / size:.1f}" if number < 10 * size else f"{number // size}"
            return f"{text.removesuffix('.0')}{letter}"
    return str(number)


def changes_text(changes: Changes | None) -> str:
    """`2 files changed +10 -3`, or nothing."""
    if changes is None:
        return ""
    files = f"{changes.files} file{'' if changes.files == 1 else 's'} changed"
    return f"{files} +{changes.added} \u2212{changes.removed}"


def announcement_text(run: Run, result: RunResult) -> str:
    """The line that notifies the asker, in mrkdwn."""
    took = duration_text(result.duration_s)
    match result.outcome:
        case RunState.SUCCEEDED:
            return f"<@{run.request.user}> done ({took})"
        case RunState.STOPPED:
            return f"<@{run.request.user}> stopped ({took})"
        case _:
            return f"<@{run.request.user}> this did not work out ({took})"

"""What is new of a pull request, as a message in its thread, with a button where an agent could do something about it."""

from typing import Any, Final

from app.pull_requests.news import MAX_ITEMS, can_be_fixed
from app.pull_requests.records import Notice, NoticeKind, PullRequest
from app.slack.actions import FIX_ACTION
from app.slack.blocks import Block, MessagePart
from app.slack.cards import MAX_SHOWN_CHARS, context, plain, quoted, section

_SIGNS: Final = {
    NoticeKind.CHECKS_FAILED: "🔴",
    NoticeKind.CHECKS_PASSED: "🟢",
    NoticeKind.CONFLICT: "⚠️",
    NoticeKind.REVIEW: "💬",
    NoticeKind.COMMENT: "💬",
    NoticeKind.MERGED: "🎉",
    NoticeKind.CLOSED: "🚫",
    NoticeKind.REOPENED: "↩️",
    NoticeKind.LOST: "❔",
}
_ENDS: Final = {
    NoticeKind.MERGED: "merged. Unless something was asked here since it was pushed, I keep nothing of this thread's files, and begin anew from the repository.",
    NoticeKind.CLOSED: "closed without being merged",
    NoticeKind.REOPENED: "open again",
    NoticeKind.LOST: "it is not there any more, or I may not read it: I look no longer",
}
_MAX_LINK_CHARS: Final = 150
_MAX_ITEM_CHARS: Final = 80


def render_notice(pull: PullRequest, notice: Notice) -> MessagePart:
    """Returns the message. What people and checks at the server are called, and say, pings nobody."""
    title = plain(f"{pull.name}#{pull.number}")
    said = _sentence(pull, notice)
    shown = f"{_SIGNS[notice.kind]} {_linked(title, pull.link)}: {said}"
    lines = _lines(notice, MAX_SHOWN_CHARS - len(shown))
    blocks: list[Block] = [section("\n".join([shown, *lines]))]
    if notice.quote:
        blocks.append(section(quoted(notice.quote)))
    if notice.more:
        blocks.append(context(f"and {notice.more} more like it, which I tell nowhere"))
    if notice.round:
        blocks.append(context(f"I am on it, for the {_ordinal(notice.round)} time."))
    elif can_be_fixed(notice):
        blocks.append(_button(pull, notice))
    return MessagePart(blocks=tuple(blocks), text=f"{title}: {said}")


def _sentence(pull: PullRequest, notice: Notice) -> str:
    at = f" at `{plain(notice.head[:7])}`" if notice.head else ""
    match notice.kind:
        case NoticeKind.CHECKS_FAILED:
            others = [f"{notice.passed} passed"] if notice.passed else []
            others += [f"{notice.pending} still going"] if notice.pending else []
            beside = f" ({', '.join(others)})" if others else ""
            return f"checks failed{at}{beside}"
        case NoticeKind.CHECKS_PASSED:
            which = "the check" if notice.passed == 1 else f"all {notice.passed} checks"
            return f"{which} passed{at}"
        case NoticeKind.CONFLICT:
            return f"it conflicts with `{plain(pull.base)}`, and cannot be merged{at}"
        case NoticeKind.REVIEW | NoticeKind.COMMENT:
            return _who_said(notice)
        case _:
            return _ENDS[notice.kind]


def _who_said(notice: Notice) -> str:
    item = notice.items[0]
    return f"{plain(notice.by) or 'somebody'} {_linked(plain(item.text), item.link)}"


def _lines(notice: Notice, room: int) -> list[str]:
    """Returns a line for each check that failed, as far as there is room for so many characters."""
    if notice.kind is not NoticeKind.CHECKS_FAILED:
        return []
    lines: list[str] = []
    shown = notice.items[: MAX_ITEMS - 1]  # one fewer than are kept, so that the dots are true
    for item in shown:
        line = f"• {_linked(plain(item.text[:_MAX_ITEM_CHARS]), item.link)}"
        room -= len(line) + 1
        if room < 0:
            return [*lines, "• …"]
        lines.append(line)
    return [*lines, "• …"] if len(shown) < len(notice.items) else lines


def _linked(text: str, link: str) -> str:
    """Returns a text that leads to a page; as it is where that is no page of the web, or could not stand in a link."""
    is_page = link.startswith(("https://", "http://")) and len(link) <= _MAX_LINK_CHARS
    is_safe = not any(sign in link for sign in "<>| \n")
    return f"<{link.replace('&', '&amp;')}|{text}>" if is_page and is_safe else text


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _button(pull: PullRequest, notice: Notice) -> dict[str, Any]:
    button = {
        "type": "button",
        "action_id": FIX_ACTION,
        "text": {"type": "plain_text", "text": "Fix it"},
        "value": f"{pull.id}:{notice.number}",
    }
    return {"type": "actions", "elements": [button]}

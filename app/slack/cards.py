"""The blocks that cards are made of: what comes from elsewhere pings nobody, and is as long as Slack takes it."""

from typing import Final

from app.approvals.showing import visible
from app.slack.blocks import Block
from app.slack.markdown import escape, neutralise

MAX_SHOWN_CHARS: Final = 2_900
"""Of a text, escaped. Source: Slack Block Kit, section text, 3,000 characters, read 2026-11."""
MAX_NAME_CHARS: Final = 200
MAX_QUOTED_LINES: Final = 40
_LOOKALIKE_FENCE: Final = "\u02cb" * 3


def code(text: str, *, blocks: int) -> list[Block]:
    """Returns a text as so many blocks of code as it needs, `blocks` at most; what does not fit is cut."""
    rest = text.replace("```", _LOOKALIKE_FENCE)
    found: list[Block] = []
    while rest and len(found) < blocks:
        piece = rest[:MAX_SHOWN_CHARS]
        while len(escape(neutralise(piece))) > MAX_SHOWN_CHARS:
            piece = piece[: len(piece) * 9 // 10]
        end = piece.rfind("\n") + 1
        if len(piece) < len(rest) and end > len(piece) * 2 // 3:
            piece = piece[:end]  # whole lines
        rest = rest[len(piece) :]
        mark = "…" if rest and len(found) == blocks - 1 else ""
        found.append(section(f"```\n{escape(neutralise(piece.rstrip()))}{mark}\n```"))
    return found


def quoted(text: str) -> str:
    """Returns a text as a quotation."""
    lines = text.splitlines()
    short = "\n".join([*lines[:MAX_QUOTED_LINES], *["…"][: len(lines) > MAX_QUOTED_LINES]])
    shown = cut(short, limit=MAX_SHOWN_CHARS - MAX_QUOTED_LINES - 1)
    return "\n".join(f">{line}" for line in shown.splitlines())


def cut(text: str, *, limit: int = MAX_SHOWN_CHARS) -> str:
    """Returns as much of it as a section can show, or `limit` characters, escaped."""
    shown = text[:limit]
    while len(escaped := escape(neutralise(shown))) > limit:
        shown = shown[: len(shown) * limit // len(escaped)]
    return escaped if shown == text else f"{escaped}…"


def plain(text: str) -> str:
    """Returns a name that may stand within code, with no more than `MAX_NAME_CHARS`."""
    short = text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}…"
    one_line = visible(short).replace("\n", "\\n").replace("\t", "\\t")
    return escape(neutralise(one_line)).replace("`", "\u02cb")


def section(text: str) -> Block:
    """Returns a block of mrkdwn."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def context(text: str) -> Block:
    """Returns a block of small mrkdwn."""
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text}]}

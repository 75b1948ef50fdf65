"""One text out of a conversation, for agents that take a prompt: what they do not remember goes before the message."""

import hashlib
from collections.abc import Sequence

from agent_scripts.adapter import TurnMessage

_MARK_CHARS = 12


def render_prompt(messages: Sequence[TurnMessage]) -> str:
    """The last message, behind the ones before it, if there are any.

    The line that divides them holds a digest of all of it, so that no message can contain it. What no UTF-8 text or C string
    can carry is gone: NUL, lone surrogates.
    """
    *earlier, last = [(message.role, _clean(message.text)) for message in messages]
    if not earlier:
        return last[1]
    everything = "\0".join(text for _, text in (*earlier, last))
    mark = hashlib.sha256(everything.encode()).hexdigest()[:_MARK_CHARS]
    names = {"user": "people wrote", "assistant": "you answered"}
    history = "\n".join(f"--- {mark} {names[role]} ---\n{text}" for role, text in earlier)
    return (
        "What was said in this thread before, for your information; answer only the message behind it.\n"
        f"{history}\n--- {mark} end of the history, answer this ---\n{last[1]}"
    )


def _clean(text: str) -> str:
    return (
        text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", errors="replace")
    )

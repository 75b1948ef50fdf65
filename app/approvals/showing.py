"""How a deed is shown to whoever is to allow it: all of it, or each part of it, with what is left out counted."""

import html
import json
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from app.approvals.rules import Deed

MAX_CHARS: Final = 8_000
"""As Slack counts them: `&` is five."""
_LONGEST_TEXTS: Final = (MAX_CHARS, 4_000, 2_000, 1_000, 500, 200)
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of characters that show nothing, or turn what stands around them."""


class TooLongToShowError(Exception):
    """Nobody could see what they allow."""


def render_deed(deed: Deed, mask: Callable[[str], str]) -> str:
    """Returns what a deed holds, as JSON, masked, `MAX_CHARS` at most; empty when it holds nothing.

    Every key is there; of texts that are too long the beginning and the end, with the number of characters between.

    Raises:
        TooLongToShowError: there are too many keys for that.
    """
    if not (deed.arguments or deed.beside):
        return ""
    for longest in _LONGEST_TEXTS:
        shorten = partial(_shorten, mask=mask, longest=longest)
        parts = [_write(shorten(deed.arguments))]
        if deed.beside:
            parts.append(f"Beside the arguments:\n{_write(shorten(deed.beside))}")
        shown = visible(mask("\n".join(parts)))
        if len(html.escape(shown, quote=False)) <= MAX_CHARS:
            return shown
    raise TooLongToShowError


def visible(text: str) -> str:
    """Returns the text with characters that nobody sees, or that turn others around, as their numbers (U+202E); line ends and tabs stay."""
    return "".join(
        f"<U+{ord(one):04X}>" if unicodedata.category(one) in _UNSEEN and one not in "\n\t" else one
        for one in text
    )


def _write(value: Mapping[str, Any]) -> str:
    """Returns JSON, keys in order, two spaces deep."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2)


def _shorten(value: Any, *, mask: Callable[[str], str], longest: int) -> Any:  # noqa: ANN401 - any JSON
    again = partial(_shorten, mask=mask, longest=longest)
    match value:
        case str():
            text = mask(value)  # before it is cut: a half of a secret is no secret to who masks
            left_out = len(text) - longest
            if left_out <= 0:
                return text
            half = longest // 2
            return f"{text[:half]} … {left_out:,} characters are left out here … {text[-half:]}"
        case Mapping():
            return {name: again(one) for name, one in value.items()}
        case list():
            return [again(one) for one in value]
        case _:
            return value

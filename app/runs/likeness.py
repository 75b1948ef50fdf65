"""Which word is a misspelt one of ours, and which is a word of its own; pure."""

import difflib
from collections.abc import Iterable

_NEAR = 0.8
"""One letter too many, too few, wrong or misplaced in a word of five."""
_OWN_WORDS = frozenset((
    "branches", "clad", "clade", "clause", "clouds", "cloudy", "clue", "code", "codec", "coded", "coder", "codes", "cursors",
    "cursory", "den", "dock", "docket", "encode", "encoded", "laude", "locale", "locales", "locals", "mod", "modal", "mode",
    "modem", "models", "modes", "opcode", "opcodes", "pilot", "precursor", "provide", "provided", "providers", "report",
    "reports",
))  # fmt: skip
"""As near to an agent, an option or a command as a misspelt one, but people write them for what they mean."""


def nearest(word: str, known: Iterable[str], *, likeness: float = _NEAR) -> str:
    """The known word that was probably meant; empty = none. `word` is in lower case, and none of them."""
    if word in _OWN_WORDS:
        return ""
    near = difflib.get_close_matches(word, known, n=1, cutoff=likeness)
    return near[0] if near else ""

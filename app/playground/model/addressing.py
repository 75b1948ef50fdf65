"""How the offline model judges for whom the newest message of a thread is: a few plain rules over the transcript it is shown.

They are not Orion's own, and far from a model's understanding: who asks for something to be done, or asks a question that nobody
else has given cause for, is taken to talk to Orion.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.playground.model.question import Question

_ASKED = re.compile(r"Answer with one word, (\w+) or (\w+)")
_AMONG_PEOPLE = re.compile(
    r"\b(?:we|our|let's|lets|i|i'll|i'm|i'd|me too|same|you were|you win|you're|he|she|btw"
    r"|ich|wir|dir|je|j'ai|nous|yo|vale|vou|vais|vens|vienes|ne parliamo|lo rinnovo|pogadam|cofamy|zullen)\b",
    re.IGNORECASE,
)
"""Talk of oneself, or of what people do together."""
_SMALL_WORDS = r"(?:(?:and|so|now|ok|okay|please|yes|no|hm+|then|hey|great|also|but|stimmt|bitte|noch|et|und|e|y|a|en|ja|oui|s[i\u00ed]|nein|non)[ ,]+)*"
_WISH = re.compile(
    rf"^{_SMALL_WORDS}(?:"
    r"(?:add|make|fix|use|show|list|write|replace|remove|export|sort|keep|try|run|check|close|drop|translate|rename|verify|break|give"
    r"|redo|do|put|include|explain|find|look (?:at|into)|erg\u00e4nze|verkleinere|zitiere|schreib\w*|zeig\w*|mach\w*|corrige\S*|ajoute|haz"
    r"|c\u00e1mbiala|separe|inclui|ricorda\w*|aggiungi|maak|\u043f\u043e\u043a\u0430\u0436\u0438|\u0443\u0434\u0430\u043b\u0438)\b"
    r"|(?:less|more|shorter|longer|without|as a|in a)\b|can you (?:open|write|give|show|list|explain|make|check)\b|how would you\b|(?:that's wrong|that can't be|you missed|it (?:failed|crashes))\b)"
    r"|\u304f\u3060\u3055\u3044\s*$|\u3082\u3089\u3048\u307e\u3059\u304b\s*$",
    re.IGNORECASE,
)
"""What is to be done or is not right, maybe behind small words."""
_YES_OR_NO = re.compile(
    r"^\s*(?:yes|no|ja|nein|oui|non|s[i\u00ed]|do it|go ahead)\b", re.IGNORECASE
)
_QUESTION = re.compile(r"(?:\w+\W+)+\w+\s*[?\uff1f]\s*$|\w[?\uff1f]\s.*\w|\bund\b.*\?$")
"""Of two words or more."""


@dataclass(frozen=True, slots=True)
class _Said:
    author: str
    is_orion: bool
    text: str


def judge_reply(question: Question) -> str | None:
    """Returns the word for the newest message; None where nobody asks for such a judgement."""
    asked = _ASKED.search(question.system)
    if asked is None:
        return None
    thread = [_read(line) for line in question.messages[-1].text.splitlines()]
    return asked[1] if _is_for_orion(thread) else asked[2]


def _read(line: str) -> _Said:
    try:
        said = json.loads(line)
        return _Said(str(said["from"]), bool(said["is_orion"]), str(said["text"]))
    except (ValueError, KeyError, TypeError):
        return _Said("", is_orion=False, text=line)


def _is_for_orion(thread: Sequence[_Said]) -> bool:
    *before, newest = thread
    others = {said.author for said in before if not said.is_orion and said.author != newest.author}
    if _WISH.search(newest.text):
        return True
    if any(re.search(rf"\b{re.escape(name)}\b", newest.text) for name in others if name):
        return False
    last = before[-1] if before else newest
    orions = [said.text for said in before if said.is_orion]
    if _YES_OR_NO.match(newest.text) and orions and orions[-1].rstrip().endswith("?"):
        return True
    if not _QUESTION.search(newest.text) or (not last.is_orion and "?" in last.text):
        return False
    if last.is_orion:
        return True
    return not _AMONG_PEOPLE.search(newest.text) and not _AMONG_PEOPLE.search(last.text)

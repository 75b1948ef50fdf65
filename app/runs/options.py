"""What a message may begin with to say where it shall run: `sandbox=docker`, `/docker`, `/provider docker`; pure.

    message = option* prompt
    option  = "sandbox=" WORD | "/provider" WORD | "/" WORD        WORD: one of `SANDBOX_WORDS`, in any case

Options end at the first word that is none. One that is nearly right is a problem to tell, not a part of the question.
"""

import difflib
import re
from dataclasses import dataclass

CLOUD = "cloud"
"""Whichever cloud this Orion is set up for."""
SANDBOX_WORDS = ("local", "docker", "vercel", "deno", CLOUD)

_KEY = "sandbox"
_WORDED = "/provider"
_NEAR, _NEAR_COMMAND = 0.75, 0.8
_OPTION = re.compile(r"(?P<key>[A-Za-z_]{3,20})=(?P<value>\S*)|(?P<command>/[A-Za-z]{2,20})")

_WRAPPED = re.compile(r"[`*]{0,2}(\S*?)[`*]{0,2}[,:]?")

_OTHERWISE_SAID = re.compile(
    rf"(?!sandbox=\S)(?:--|/)?(?:sandbox|provider)\s*[=:]\s*(?P<word>{'|'.join(SANDBOX_WORDS)})\b",
    re.IGNORECASE,
)
"""`sandbox = docker`, `--provider=deno`: not our form, and hardly a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A message, taken apart."""

    prompt: str
    """The rest: what the agent is told."""
    sandbox: str = ""
    """One of `SANDBOX_WORDS`; empty = the message does not say."""
    problem: str = ""
    """For the person who asked: lower case, no full stop; empty = none."""


def parse_options(text: str) -> Options:
    """What a message says of its run."""
    rest, asked = text.lstrip(), ""
    while rest:
        if said := _OTHERWISE_SAID.match(rest):
            return Options(
                prompt=rest, problem=f"write sandbox={said['word'].lower()}, without spaces"
            )
        word, _, after = _split(rest)
        word = _bare(word)
        found = _OPTION.fullmatch(word)
        if found is None:
            break
        value = _value(found)
        if word.lower() == _WORDED:
            value, _, after = _split(after.lstrip())
            value = _bare(value)
        if value is None:
            problem = _near_miss(found)
            if problem:
                return Options(prompt=rest, problem=problem)
            break
        value = value.lower()
        if value not in SANDBOX_WORDS:
            return Options(prompt=rest, problem=unknown_sandbox(value, SANDBOX_WORDS))
        if asked and asked != value:
            return Options(
                prompt=rest, problem=f"your message asks for two sandboxes, {asked} and {value}"
            )
        asked, rest = value, after.lstrip()
    return Options(prompt=rest if asked else text, sandbox=asked)


def unknown_sandbox(word: str, known: tuple[str, ...]) -> str:
    """What to say of a word that names none, for the person who asked."""
    if not word:
        return f"a sandbox is not named; there are: {', '.join(known)}"
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no sandbox {word[:40]!r} here; {hint}there are: {', '.join(known)}"


def _split(text: str) -> tuple[str, str, str]:
    """The first word, the white space behind it, and the rest."""
    match = re.match(r"(\S*)(\s*)(.*)", text, re.DOTALL)
    return (match[1], match[2], match[3]) if match else ("", "", "")


def _bare(word: str) -> str:
    """Without what people put around or behind it: `` `sandbox=docker`: ``, `*/docker*,`."""
    match = _WRAPPED.fullmatch(word)
    return match[1] if match else word


def _value(found: re.Match[str]) -> str | None:
    """What the word asks for; None when it is no option."""
    if found["key"]:
        return str(found["value"]) if found["key"].lower() == _KEY else None
    command = found["command"][1:].lower()
    return command if command in SANDBOX_WORDS else None


def _near_miss(found: re.Match[str]) -> str:
    """What to say when it was probably meant as an option."""
    if found["key"]:
        if difflib.get_close_matches(found["key"].lower(), (_KEY,), cutoff=_NEAR):
            return f"there is no option {found['key']!r}; did you mean {_KEY}=?"
        return ""
    command = found["command"].lower()
    known = (*(f"/{word}" for word in SANDBOX_WORDS), _WORDED)
    near = difflib.get_close_matches(command, known, n=1, cutoff=_NEAR_COMMAND)
    return f"there is no {command!r}; did you mean {near[0]}?" if near else ""

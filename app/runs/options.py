"""What a message may begin with to say how it shall be answered: `use codex`, `model=…`, `/docker`; pure.

    message = option* ( prompt | command )
    option  = KEY "=" VALUE                        KEY: of `option_values.CHECKS`
            | ("use" | "with") AGENT [":" | ","]   AGENT: one of the agents that there are
            | "/provider" WORD | "/" WORD          WORD: one of `SANDBOX_WORDS`
    command = "settings" ["channel"] ["reset" | option+]

Keys, agents and words in any case. Options end at the first word that is none, and `settings` with anything else behind it
is a prompt. An option that is nearly right is a problem to tell, not a part of the question.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent_scripts.registry import agent_names
from app.runs.option_values import CHECKS, SANDBOX_WORDS, SHOWN_CHARS, OptionError, unknown_word

_WORDED = "/provider"
_BEFORE_AGENT = ("use", "with")
_NEAR, _NEAR_COMMAND = 0.75, 0.8
_NO_MISS = ("mode", "report", "reports")
"""Near an option's name, but words of their own."""
_DEFAULTS = tuple(name for name in CHECKS if name != "pr")
"""What `settings` can keep."""
_PLURALS = {"pr": "prs", "branch": "branches", "sandbox": "sandboxes"}
_OPTION = re.compile(r"(?P<key>[A-Za-z_]{2,20})=(?P<value>\S*)|(?P<command>/[A-Za-z]{2,20})")

_WRAPPED = re.compile(r"[`*]{0,2}(\S*?)[`*]{0,2}[,:]?")

_OTHERWISE_SAID = re.compile(
    rf"(?!sandbox=\S)(?:--|/)?(?:sandbox|provider)\s*[=:]\s*(?P<word>{'|'.join(SANDBOX_WORDS)})\b",
    re.IGNORECASE,
)
"""`sandbox = docker`, `--provider=deno`: not our form, and hardly a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How somebody wants to be answered; what is empty, nobody said."""

    agent: str = ""
    model: str = ""
    sandbox: str = ""
    """One of `SANDBOX_WORDS`."""
    repo: str = ""
    """`owner/name`, an https URL, or `NO_REPO`."""
    branch: str = ""
    pr: str = ""
    """`yes`: a pull request with what is changed; of one message, never a default."""

    @property
    def said(self) -> Mapping[str, str]:
        """What is not empty, by the names of the options."""
        return {name: value for name in CHECKS if (value := getattr(self, name))}


class Scope(StrEnum):
    """Whose defaults a command is about."""

    PERSON = "you"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsCommand:
    """`settings …`: with neither of the two it only asks."""

    scope: Scope = Scope.PERSON
    is_reset: bool = False
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Wishes):
    """A message, taken apart."""

    prompt: str
    """The rest: what the agent is told."""
    command: SettingsCommand | None = None
    """Answered by Orion itself."""
    problem: str = ""
    """For the person who asked: lower case, no full stop; empty = none."""


def parse_options(text: str) -> Options:
    """What a message says of its run."""
    try:
        said, rest = _take_options(text)
        command = _command(rest)
    except OptionError as exc:
        return Options(prompt=text, problem=str(exc))
    return Options(prompt=rest if said else text, command=command, **said)


def _take_options(text: str) -> tuple[dict[str, str], str]:
    """The options at the beginning, and what is behind them.

    Raises:
        OptionError: one is nearly right, or there are two for one thing.
    """
    said: dict[str, str] = {}
    rest = text.lstrip()
    while rest:
        if otherwise := _OTHERWISE_SAID.match(rest):
            raise OptionError(f"write sandbox={otherwise['word'].lower()}, without spaces")
        found = _take_option(rest)
        if found is None:
            break
        key, value, rest = found
        value = CHECKS[key](value)
        if said.setdefault(key, value) != value:
            kinds = _PLURALS.get(key, f"{key}s")
            raise OptionError(f"your message asks for two {kinds}, {said[key]} and {value}")
    return said, rest


def _take_option(text: str) -> tuple[str, str, str] | None:
    """Key, value and what follows; None: it begins with no option."""
    word, after = _split(text)
    if word.lower() in _BEFORE_AGENT:
        return _take_agent(after)
    found = _OPTION.fullmatch(_bare(word))
    if found is None:
        return None
    if found["command"]:
        return _take_command(found["command"].lower(), after)
    key = found["key"].lower()
    if key in CHECKS:
        return key, str(found["value"]), after
    _refuse_near_key(found["key"])
    return None


def _take_agent(text: str) -> tuple[str, str, str] | None:
    word, after = _split(text)
    name = word.rstrip(":,").lower()
    is_meant = word.endswith(":") and difflib.get_close_matches(name, agent_names(), cutoff=_NEAR)
    return ("agent", name, after) if name in agent_names() or is_meant else None


def _take_command(command: str, after: str) -> tuple[str, str, str] | None:
    if command == _WORDED:
        value, after = _split(after)
        return "sandbox", _bare(value), after
    if command[1:] in SANDBOX_WORDS:
        return "sandbox", command[1:], after
    _refuse_near_command(command)
    return None


def _bare(word: str) -> str:
    """Without what people put around or behind it: `` `sandbox=docker`: ``, `*/docker*,`."""
    match = _WRAPPED.fullmatch(word)
    return match[1] if match else word


def _command(text: str) -> SettingsCommand | None:
    word, rest = _split(text)
    if word.lower().rstrip("?!.:") != "settings":
        return None
    scope, (first, behind) = Scope.PERSON, _split(rest)
    if first.lower() == Scope.CHANNEL:
        scope, rest = Scope.CHANNEL, behind
    first, behind = _split(rest)
    if first.lower() == "reset":
        if behind:
            raise OptionError("settings reset forgets all of them, with nothing behind it")
        return SettingsCommand(scope=scope, is_reset=True)
    said, left = _take_options(rest)
    if found := _OPTION.match(left):
        raise OptionError(unknown_word("setting", found["key"] or found["command"], _DEFAULTS))
    if said and left:
        word, _ = _split(left)
        raise OptionError(
            f"settings takes {', '.join(_DEFAULTS)}, and nothing behind them: {word[:SHOWN_CHARS]!r}"
        )
    return None if left else SettingsCommand(scope=scope, wishes=Wishes(**said))


def _split(text: str) -> tuple[str, str]:
    """The first word and what follows it."""
    word, *after = text.split(None, 1) or [""]
    return word, after[0].lstrip() if after else ""


def _refuse_near_key(key: str) -> None:
    """Raises: OptionError, when it was probably meant as an option."""
    near = difflib.get_close_matches(key.lower(), CHECKS, n=1, cutoff=_NEAR)
    if near and key.lower() not in _NO_MISS:
        raise OptionError(f"there is no option {key!r}; did you mean {near[0]}=?")


def _refuse_near_command(command: str) -> None:
    """Raises: OptionError, when it was probably meant as an option."""
    known = (*(f"/{word}" for word in SANDBOX_WORDS), _WORDED)
    near = difflib.get_close_matches(command, known, n=1, cutoff=_NEAR_COMMAND)
    if near:
        raise OptionError(f"there is no {command!r}; did you mean {near[0]}?")

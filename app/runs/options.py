"""What a message may begin with to say how it shall be answered: `use codex`, `model=…`, `/docker`; pure.

    message = [greeting] option* ( prompt | command )
    option  = KEY "=" VALUE                        KEY: of `option_values.CHECKS`; VALUE: not code, as `None` or `f(x)`
            | ("use" | "with") AGENT [MARK]        AGENT: one of the agents that there are; once in a message
            | "/provider" WORD | "/" WORD          WORD: one of `SANDBOX_WORDS`
    MARK    = ":" | "," | ";" | "." | "!" | "-" | end of the line, an option or a command behind it
    command = "settings" ["channel"] ["reset" | option+]

Keys, agents and words in any case, in Slack's emphasis or not. Options end at the first word that is none, and `settings`
with anything else behind it is a prompt. `use codex to …` without a mark may as well be a sentence: that agent answers, but
the words stay in the prompt. An option that is nearly right, and another agent with a mark behind the first, are problems to
tell, not parts of the question; what may be meant otherwise is left whole.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent_scripts.registry import agent_names, ambiguous_names
from app.runs.likeness import nearest
from app.runs.option_values import (
    CHECKS,
    NO_REPO,
    SANDBOX_WORDS,
    SHOWN_CHARS,
    OptionError,
    is_code,
    is_evident,
    unknown_word,
)

INVISIBLE = "\u200b-\u200f\u2060-\u2064\u00ad\ufeff\ufe0e\ufe0f"
"""Characters that Slack's editor leaves between words, for a class of a regular expression."""

_WORDED = "/provider"
_KEY_LIKENESS = 0.75
"""Of a key: less than of other words, for its value must be right, too."""
_DEFAULTS = tuple(name for name in CHECKS if name != "pr")
"""What `settings` can keep."""
_PLURALS = {"pr": "prs", "branch": "branches", "sandbox": "sandboxes"}
_OPTION = re.compile(r"(?P<key>[A-Za-z_]{2,20})=(?P<value>\S*)|(?P<command>/[A-Za-z]{2,20})")
_WRAPPED = re.compile(r"[`*]{0,2}(\S*?)[`*]{0,2}[,:;.]?")
_BLANK = re.compile(rf"\A[\s{INVISIBLE}]*")
_GREETING = re.compile(
    rf"{_BLANK.pattern}(?:hey|hi|hello|hallo|ok|okay|please)[,:!.]?\s+", re.IGNORECASE
)
"""`hey @Orion use codex: …`, of which the mention is not here any more."""
_ADDRESSED = re.compile(
    r"(?P<wrap>[`*_]{0,2})(?P<word>use|with)\s+(?P<inner>[`*_]{0,2})(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?P<mark>[:,;.!\u2026]*)(?P=inner)(?P=wrap)(?P<behind>\s*[:,;.!\u2026]+|\s+[-\u2013\u2014]+(?=\s))?"
    rf"(?=[\s:{INVISIBLE}]|$)",
    re.IGNORECASE,
)
_TALKED_OF = frozenset(
    ("api", "apis", "being", "i", "is", "key", "keys", "my", "our", "sdk", "sdks", "we")
)
"""Behind an agent's name: the sentence is about it."""
_KEYS = "|".join(CHECKS)
_OTHERWISE_SAID = re.compile(
    rf"[`*]{{0,2}}(?!(?:{_KEYS})=\S)(?:--|/)?(?P<key>{_KEYS}|provider)\s*(?P<sign>[=:])\s*(?P<value>\S+)",
    re.IGNORECASE,
)
"""`sandbox = docker`, `--model=opus`: not our form, and with such a value hardly a question."""
_SPACED_MODEL = re.compile(
    r"""[`*]{0,2}model=["'\u201c]?(?P<name>[a-z/-]+)[ \t]+(?P<version>\d{1,2}(?:\.\d+)*(?:o|-[a-z]+)?)(?=[\s`*"',.:;!?\u201d]|$)""",
    re.IGNORECASE,
)


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
    greeting = _GREETING.match(text)
    try:
        said, rest = _take_options(text[greeting.end() :] if greeting else text)
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
    rest = _strip(text)
    is_addressed = False
    while rest:
        found = _take_option(rest)
        if found is None and not is_addressed:
            found = _take_agent(rest)
            is_addressed = True
        if found is None:
            _refuse_second_agent(rest, said)
            break
        key, value, rest = found
        value = CHECKS[key](value)
        if said.setdefault(key, value) != value:
            kinds = _PLURALS.get(key, f"{key}s")
            raise OptionError(f"your message asks for two {kinds}, {said[key]} and {value}")
    return said, rest


def _refuse_second_agent(text: str, said: Mapping[str, str]) -> None:
    """Raises: OptionError, when another one is addressed, with a mark: it would not be the one that answers."""
    name = _marked_agent(text)
    if name and name != said.get("agent", name):
        raise OptionError(f"your message asks for two agents, {said['agent']} and {name}")


def _take_option(text: str) -> tuple[str, str, str] | None:
    """Key, value and what follows; None: it begins with none but perhaps an agent's.

    Raises:
        OptionError: it is nearly one.
    """
    _refuse_otherwise_said(text)
    word, after = _split(text)
    found = _OPTION.fullmatch(_bare(word))
    if found is None:
        return None
    if found["command"]:
        return _take_command(found["command"].lower(), after)
    key, value = found["key"].lower(), str(found["value"])
    if key != "pr" and (key, value) != ("repo", NO_REPO) and is_code(value):
        return None
    if key in CHECKS:
        return key, value, after
    near = nearest(key, CHECKS, likeness=_KEY_LIKENESS)
    if near and "_" not in key and is_evident(near, value):
        raise OptionError(f"there is no option {found['key']!r}; did you mean {near}=?")
    return None


def _take_agent(text: str) -> tuple[str, str, str] | None:
    """As `_take_option`; a misspelt name is the value. Without a mark all of the text follows."""
    found = _ADDRESSED.match(text)
    if found is None:
        return None
    name, after = found["name"].lower(), _strip(text[found.end() :])
    is_marked = _is_mark(found) or _ends_line(text[found.end() :]) or _begins_otherwise(after)
    agent = name if name in agent_names() else nearest(name, agent_names())
    if not agent and is_marked:
        agent = next((one for one in agent_names() if name.startswith(f"{one}-")), "")
    if not agent:
        return None
    if is_marked:
        return "agent", name, after
    is_talked_of = _split(after)[0].lower().rstrip(",.:;?!") in _TALKED_OF
    return None if is_talked_of or agent in ambiguous_names() else ("agent", name, text)


def _marked_agent(text: str) -> str:
    """Whom it begins to address, with a mark; empty = nobody that there is."""
    found = _ADDRESSED.match(text)
    name = found["name"].lower() if found and _is_mark(found) else ""
    return name if name in agent_names() else ""


def _is_mark(found: re.Match[str]) -> bool:
    """`With claude, …` may begin a sentence as well."""
    mark = found["mark"] or (found["behind"] or "").strip()
    return bool(mark) and not (mark == "," and found["word"].lower() == "with")


def _ends_line(text: str) -> bool:
    return not text.partition("\n")[0].strip()


def _begins_otherwise(text: str) -> bool:
    """With an option that names no agent, or with a command: it is no sentence that goes on there."""
    first, *more = text.lower().split() or [""]
    is_command = _is_settings(first) and all(
        word in (Scope.CHANNEL, "reset") or "=" in word for word in more
    )
    return is_command or bool(_marked_agent(text)) or _take_option(text) is not None


def _take_command(command: str, after: str) -> tuple[str, str, str] | None:
    if command == _WORDED:
        value, after = _split(after)
        return "sandbox", _bare(value), after
    if command[1:] in SANDBOX_WORDS:
        return "sandbox", command[1:], after
    if near := nearest(command[1:], (*SANDBOX_WORDS, _WORDED[1:])):
        raise OptionError(f"there is no {command!r}; did you mean /{near}?")
    return None


def _refuse_otherwise_said(text: str) -> None:
    """Raises: OptionError, when an option is meant, but not written as we read it."""
    if found := _SPACED_MODEL.match(text):
        name, version = found["name"], found["version"]
        raise OptionError(
            f"a model's name has no spaces: write model={name}-{version}, or a comma behind model={name}"
        )
    found = _OTHERWISE_SAID.match(text)
    if found is None:
        return
    key, value = found["key"].lower().replace("provider", "sandbox"), _bare(found["value"])
    is_closed = key in ("sandbox", "agent", "pr")
    if is_evident(key, value) and (is_closed or found["sign"] == "="):
        raise OptionError(f"write {key}={CHECKS[key](value)}, without spaces")


def _bare(word: str) -> str:
    """Without what people put around or behind it: `` `sandbox=docker`: ``, `*/docker*,`."""
    match = _WRAPPED.fullmatch(word)
    return match[1] if match else word


def _command(text: str) -> SettingsCommand | None:
    word, rest = _split(text)
    if not _is_settings(word):
        return None
    scope, (first, behind) = Scope.PERSON, _split(rest)
    if first.lower() == Scope.CHANNEL:
        scope, rest = Scope.CHANNEL, behind
    first, behind = _split(rest)
    if first.lower().rstrip(".!") == "reset":
        return _reset(scope, behind)
    said, left = _take_options(rest)
    words = [_OPTION.fullmatch(_bare(word)) for word in left.split()]
    if words and words[0] and all(words):
        raise OptionError(_no_setting(words[0]))
    if said and left and left != rest:
        raise OptionError(
            f"settings takes {', '.join(_DEFAULTS)}, and nothing behind them: {left[:SHOWN_CHARS]!r}"
        )
    return None if left else SettingsCommand(scope=scope, wishes=Wishes(**said))


def _is_settings(word: str) -> bool:
    return _bare(word.lower()).rstrip("?!.:") == "settings"


def _reset(scope: Scope, behind: str) -> SettingsCommand | None:
    """None: it is a sentence that goes on."""
    if not behind:
        return SettingsCommand(scope=scope, is_reset=True)
    if all(word in CHECKS or _OPTION.fullmatch(_bare(word)) for word in behind.lower().split()):
        raise OptionError("settings reset forgets all of them, with nothing behind it")
    return None


def _no_setting(found: re.Match[str]) -> str:
    if found["key"] and found["key"].lower() in CHECKS:
        return f"{found['value'][:SHOWN_CHARS]!r} is no {found['key'].lower()}"
    return unknown_word("setting", found["key"] or found["command"], _DEFAULTS)


def _split(text: str) -> tuple[str, str]:
    """The first word and what follows it."""
    word, *after = text.split(None, 1) or [""]
    return word, _strip(after[0]) if after else ""


def _strip(text: str) -> str:
    """Without what nobody sees at its beginning."""
    return _BLANK.sub("", text)

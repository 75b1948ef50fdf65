"""What a message may begin with to say how it shall be answered: `use codex`, `model=…`, `/docker`; pure.

    message = [greeting] option* ( prompt | command )
    option  = KEY "=" VALUE                        KEY: of `CHECKS`; VALUE: not code, as `None` or `f(x)`
            | ("use" | "with") AGENT [MARK]        AGENT: one of the agents that there are; once in a message
            | "/provider" WORD | "/" WORD          WORD: one of `SANDBOX_WORDS`
    MARK    = ":" | "," | ";" | "." | "!" | "-" | end of the line, an option or a command behind it
    command = "settings" ["channel"] ["reset" | option+]

Keys, agents and words in any case, in Slack's emphasis or not. Options end at the first word that is none, and `settings`
with anything else behind it is a prompt. `use codex to …` without a mark may as well be a sentence: that agent answers, but
the words stay in the prompt. An option that is nearly right, and another agent with a mark behind the first, are problems to
tell, not parts of the question; what may be meant otherwise is left whole.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TypedDict
from urllib.parse import urlsplit

from agent_scripts.registry import agent_names, agent_specs, ambiguous_names
from sandbox_runtime.registry import provider_names

_NEAR = 0.8
"""One letter too many, too few, wrong or misplaced in a word of five."""
_OWN_WORDS = frozenset((
    "branches", "clouds", "cloudy", "den", "dock", "docket", "locale", "locales", "locals", "mod", "modal", "mode", "modem",
    "models", "modes", "provide", "provided", "providers", "report", "reports",
))  # fmt: skip
"""As near to an option or a command as a misspelt one, but people write them for what they mean; agents name theirs."""


def nearest(word: str, known: Iterable[str], *, cutoff: float = _NEAR) -> str:
    """Returns the known word that was probably meant; empty = none. `word` is in lower case, and none of them."""
    if word in _OWN_WORDS or word in _words_near_agents():
        return ""
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return near[0] if near else ""


@cache
def _words_near_agents() -> frozenset[str]:
    return frozenset(word for spec in agent_specs() for word in spec.other_words)


CLOUD = "cloud"
"""Whichever cloud this Orion is set up for."""
SANDBOX_WORDS = (*provider_names(), CLOUD)
NO_REPO = "none"
"""For those who have a default: this time, or by default, none at all."""
MAX_MODEL_CHARS = 200
MAX_REPO_CHARS = 500
MAX_BRANCH_CHARS = 200
MAX_LABEL_CHARS = 63
"""Of a part of a host's name."""
SHOWN_CHARS = 40

_AGENT = re.compile(r"[A-Za-z][A-Za-z-]{0,30}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
"""Ids of the providers and of gateways (`openai/gpt-5.4`); never a flag."""
_WINDOW = re.compile(r"\[[^\[\]]{1,20}\]$")
"""`[1m]`: a mark of Claude Code's, which takes it off before it asks for the model."""
_OWNER = re.compile(r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}")
"""Source: GitHub, rules shown at sign-up, read 2026-11: alphanumeric or single hyphens, none at the ends, 39 characters."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_AT_GITHUB = re.compile(r"(?:^|[/@.])github\.com[:/]([^/]+/[^/]+?)(?:\.git)?/?$", re.IGNORECASE)
_NOT_IN_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
"""Source: git-check-ref-format(1), rules 3 to 10."""

_CODE = re.compile(
    r"none|null|nil|undefined|true|false|self\..*|=.*|.*[($].*", re.IGNORECASE | re.DOTALL
)
_WORD_WITH_LETTER = re.compile(r"(?=.*[^\W\d_])[\w./:@+\[\]-]+")


class OptionError(ValueError):
    """The message is for the person who asked: lower case, no full stop."""


def check_sandbox(word: str) -> str:
    """Returns a sandbox's word in lower case; whether there is such a sandbox here is not looked at.

    Raises:
        OptionError
    """
    if not word:
        raise OptionError("a sandbox is not named; write it behind sandbox=")
    return word.lower()


def check_agent(word: str) -> str:
    """Returns an agent's name in lower case, if it has the form of one; whether there is such an agent here is not looked at.

    Raises:
        OptionError
    """
    if not _AGENT.fullmatch(word):
        raise OptionError(unknown_word("agent", word, agent_names()))
    return word.lower()


def check_model(name: str) -> str:
    """Returns a model's name, if it has the form of one: at most 200 characters, without spaces and control characters.

    Raises:
        OptionError
    """
    window = _WINDOW.search(name)
    if window and _MODEL.fullmatch(name[: window.start()]):
        raise OptionError(
            f"write {_cut(name[: window.start()])}; I cannot ask for a {window[0]} window"
        )
    if len(name) > MAX_MODEL_CHARS or not _MODEL.fullmatch(name):
        raise OptionError(f"{_cut(name)} is no name of a model, such as model=sonnet")
    return name


def check_repo(text: str) -> str:
    """Returns a repository's name, if it has the form of one: `owner/name` as on GitHub, an https URL without credentials, or `NO_REPO`.

    Raises:
        OptionError
    """
    if text == NO_REPO:
        return NO_REPO
    name = text.rstrip("/").removesuffix(".git")
    if _is_named(name):
        return name
    if _is_url(text):
        scheme, _, rest = text.partition("://")
        return f"{scheme.lower()}://{rest}"
    near = _AT_GITHUB.search(text)
    form = f"repo={near[1]}" if near and _is_named(near[1]) else "repo=owner/name or repo=https://…"
    raise OptionError(
        f"{_cut(_without_credentials(text))} is no repository; write {form}, without credentials"
    )


def check_branch(name: str) -> str:
    """Checks a branch's name by the rules of git-check-ref-format(1).

    Raises:
        OptionError
    """
    parts = name.split("/")
    is_wrong = (
        not 0 < len(name) <= MAX_BRANCH_CHARS
        or _NOT_IN_BRANCH.search(name)
        or name.startswith(("-", "/"))
        or name.endswith((".", "/"))
        or name in ("@", "HEAD")
        or any(part.startswith(".") or part.endswith(".lock") for part in parts)
    )
    if is_wrong:
        raise OptionError(f"{_cut(name)} cannot be the name of a branch")
    return name


def check_pr(word: str) -> str:
    """Raises: OptionError."""
    word = word.lower()
    if word != "yes":
        raise OptionError(f"write pr=yes for a pull request, not pr={word[:SHOWN_CHARS]}")
    return word


CHECKS: Mapping[str, Callable[[str], str]] = {
    "sandbox": check_sandbox,
    "agent": check_agent,
    "model": check_model,
    "repo": check_repo,
    "branch": check_branch,
    "pr": check_pr,
}
"""All options by their names."""


def is_code(value: str) -> bool:
    """Whether it is what a program has behind `=`: `None`, `build(x)`, `$NAME`."""
    return _CODE.fullmatch(value) is not None


def is_evident(key: str, value: str) -> bool:
    """Whether the value tells by itself that this option is meant, however the key is written."""
    if key == "agent":
        return value.lower() in agent_names()
    if key == "sandbox":
        return value.lower() in SANDBOX_WORDS
    if is_code(value) or not _WORD_WITH_LETTER.fullmatch(value):
        return False
    try:
        CHECKS[key](value)
    except OptionError:
        return False
    return True


def unknown_word(kind: str, word: str, known: Iterable[str]) -> str:
    """Returns what to say of a word that names none, for the person who asked."""
    known = tuple(known)
    if not word:
        article = "an" if kind[0] in "aeiou" else "a"
        return f"{article} {kind} is not named; there are: {', '.join(known)}"
    if not known:
        return f"there is no {kind} {_cut(word)} here; there are none to choose from"
    by_case = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), by_case, n=1)
    near = near or [one for one in by_case if one.startswith(word.lower())]
    which = f"did you mean {by_case[near[0]]}? There" if near else "there"
    return f"there is no {kind} {_cut(word)} here; {which} are: {', '.join(known)}"


def _is_named(text: str) -> bool:
    owner, slash, name = text.partition("/")
    return bool(
        slash
        and _OWNER.fullmatch(owner)
        and _NAME.fullmatch(name)
        and name not in (".", "..", ".git")
    )


def _is_url(text: str) -> bool:
    if len(text) > MAX_REPO_CHARS or not text.isascii() or not text.isprintable():
        return False
    try:
        url = urlsplit(text)
        has_host = _is_host(url.hostname or "") and url.port != 0
    except ValueError:
        return False
    is_plain = not ({"@", "?", "#", "\\", "%", " "} & set(text)) and ".." not in text
    return url.scheme == "https" and has_host and is_plain and url.path.strip("/") != ""


def _is_host(name: str) -> bool:
    """Whether a text is a host's name. Source: RFC 1035, 2.3.4; a dot at the end is DNS's own."""
    parts = name.removesuffix(".").split(".")
    return all(0 < len(part) <= MAX_LABEL_CHARS for part in parts)


def _without_credentials(text: str) -> str:
    """Returns the text without user and password: all before the last `@`, as a password may hold slashes."""
    return re.sub(r"^(https?://)?.*@", r"\1…@", text, flags=re.IGNORECASE)


def _cut(text: str) -> str:
    return repr(text[:SHOWN_CHARS])


INVISIBLE = "\u200b-\u200f\u2060-\u2064\u00ad\ufeff\ufe0e\ufe0f"
"""Characters that Slack's editor leaves between words, for a class of a regular expression."""

_WORDED = "/provider"
_KEY_CUTOFF = 0.75
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
class RunOptions:
    """Says how somebody wants to be answered; what is empty, nobody said."""

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
        """Returns what is not empty, by the names of the options."""
        return {name: value for name in CHECKS if (value := getattr(self, name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """What a run gets of something, and from whom that comes."""

    name: str
    value: str
    """Empty = none."""
    source: str
    """For people: `you`, `channel`, the name of a setting, a place in `orion.toml`."""


class Scope(StrEnum):
    """Says whose defaults a command is about."""

    PERSON = "you"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsCommand:
    """`settings …`: with neither of the two it only asks."""

    scope: Scope = Scope.PERSON
    is_reset: bool = False
    options: RunOptions = field(default_factory=RunOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(RunOptions):
    """A message, taken apart."""

    prompt: str
    """The rest: what the agent is told."""
    command: SettingsCommand | None = None
    """Answered by Orion itself."""
    problem: str = ""
    """For the person who asked: lower case, no full stop; empty = none."""


def parse_options(text: str) -> MessageOptions:
    """Returns what a message says of its run."""
    greeting = _GREETING.match(text)
    try:
        said, rest = _take_options(text[greeting.end() :] if greeting else text)
        command = _command(rest)
    except OptionError as exc:
        return MessageOptions(prompt=text, problem=str(exc))
    return MessageOptions(prompt=rest if said else text, command=command, **said)


def _take_options(text: str) -> tuple[dict[str, str], str]:
    """Returns the options at the beginning, and what is behind them.

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
    """Returns key, value and what follows; None: it begins with none but perhaps an agent's.

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
    near = nearest(key, CHECKS, cutoff=_KEY_CUTOFF)
    if near and "_" not in key and is_evident(near, value):
        raise OptionError(f"there is no option {found['key']!r}; did you mean {near}=?")
    return None


def _take_agent(text: str) -> tuple[str, str, str] | None:
    """Takes an agent, as `_take_option` does; a misspelt name is the value. Without a mark all of the text follows."""
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
    """Returns whom the text begins to address, with a mark; empty = nobody that there is."""
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
    """Whether it begins with an option that names no agent, or with a command: it is no sentence that goes on there."""
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
    """Returns the word without what people put around or behind it: `` `sandbox=docker`: ``, `*/docker*,`."""
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
    return None if left else SettingsCommand(scope=scope, options=RunOptions(**said))


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
    """Returns the first word and what follows it."""
    word, *after = text.split(None, 1) or [""]
    return word, _strip(after[0]) if after else ""


def _strip(text: str) -> str:
    """Returns the text without what nobody sees at its beginning."""
    return _BLANK.sub("", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults(RunOptions):
    """Defaults of one person or channel."""

    model_agent: str = ""
    """Whose the model is: with another agent it does not count."""


class DefaultChanges(TypedDict, total=False):
    agent: str
    model: str
    model_agent: str
    sandbox: str
    repo: str
    branch: str

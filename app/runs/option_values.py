"""Which values the options of a message may have; pure. Each check gives the value as it counts, or raises what to say."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from agent_scripts.registry import agent_names

CLOUD = "cloud"
"""Whichever cloud this Orion is set up for."""
SANDBOX_WORDS = ("local", "docker", "vercel", "deno", CLOUD)
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
"""`[1m]`: a wish of Claude Code, which takes it off before it asks for the model."""
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
    """That there is one: which sandboxes there are here, whoever knows says.

    Raises:
        OptionError
    """
    if not word:
        raise OptionError("a sandbox is not named; write it behind sandbox=")
    return word.lower()


def check_agent(word: str) -> str:
    """Its form alone: which agents there are here, whoever knows says.

    Raises:
        OptionError
    """
    if not _AGENT.fullmatch(word):
        raise OptionError(unknown_word("agent", word, agent_names()))
    return word.lower()


def check_model(name: str) -> str:
    """Its form alone: at most 200 characters, without spaces and control characters.

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
    """`owner/name` as on GitHub, an https URL without credentials, or `NO_REPO`.

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
    """By the rules of git-check-ref-format(1) for branches.

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
    """What to say of a word that names none, for the person who asked."""
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
    """Source: RFC 1035, 2.3.4; a dot at the end is DNS's own."""
    parts = name.removesuffix(".").split(".")
    return all(0 < len(part) <= MAX_LABEL_CHARS for part in parts)


def _without_credentials(text: str) -> str:
    """All before the last `@`: a password may hold slashes."""
    return re.sub(r"^(https?://)?.*@", r"\1…@", text, flags=re.IGNORECASE)


def _cut(text: str) -> str:
    return repr(text[:SHOWN_CHARS])

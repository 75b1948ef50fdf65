"""Decides what is secret in a text, and replaces it by `[redacted:kind]`.

Known secrets go first, by exact value and in every spelling they travel in; then shapes that only secrets have; then
values whose name says so. Every scan is linear in the length of the text, whatever it holds: repetitions are
possessive, start at a token's boundary, or are bounded. Mask whole texts, and mask before clipping: a secret may
straddle a cut.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final
from urllib.parse import quote, quote_plus

MIN_SECRET_CHARS: Final = 8
"""Shorter values would blank ordinary words."""
MAX_SHORT_CHARS, REMEMBERED = 64, 1_000
"""Texts whose masked form is kept, so as not to be found again: the last so many."""
MAX_DEPTH: Final = 40
"""Nesting that `mask_value` follows; what lies deeper is dropped, so hostile JSON cannot exhaust the stack."""

# Shapes of credentials. Sources: the vendors' documentation of their key formats and GitHub's list of secret scanning
# patterns, read 2026-11. The group's name is the kind.
_SHAPES: Final = re.compile(
    r"""
      (?P<private_key>-----BEGIN\ [A-Z0-9 ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----
          (?s:.*?)(?=-----|\Z)  # no possessive group: Python 3.11.2 leaves those a step too late
          (?:-----END\ [A-Z0-9 ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----)?)
    | (?P<anthropic>sk-ant-[\w-]{20,})
    | (?P<openrouter>sk-or-v1-[0-9a-f]{32,})
    | (?P<langfuse>[ps]k-lf-[\w-]{20,})
    | (?P<openai>sk-(?:(?:proj|svcacct|admin)-[\w-]{20,}|[A-Za-z0-9]{32,}))
    | (?P<vercel>\bvc[a-z]_\w{20,})
    | (?P<google>AIza[\w-]{35,}|ya29\.[\w-]{10,})
    | (?P<cursor>\b(?:cur|key|crsr)_(?=[A-Za-z_]{0,60}[0-9])\w{20,})
    | (?P<github>gh[pousr]_[A-Za-z0-9]{36,}|ghs_\d{1,20}_[\w.-]{20,}|github_pat_\w{22,})
    | (?P<gitlab>glpat-[\w-]{20,})
    | (?P<npm>\bnpm_\w{36,})
    | (?P<pypi>pypi-[\w-]{50,})
    | (?P<huggingface>\bhf_\w{30,})
    | (?P<slack>xox[abeoprs](?:\.xox[bp])?-[\w-]{10,}|xapp-\d-[\w-]{20,}
          |hooks\.slack\.com/(?:services|workflows|triggers)/[^\s"'<>]++)
    | (?P<aws>\b(?:AKIA|ASIA)[0-9A-Z]{16,}  # and the secret key behind it, which has no shape of its own
          (?:\W{1,4}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?)
    | (?P<jwt>(?<![\w-])eyJ[\w-]++\.eyJ[\w-]++(?:\.[\w-]*+)?)
    """,
    re.VERBOSE,
)
_STARTS: Final = (
    *("-----BEGIN ", "sk-", "pk-lf-", "vc", "AIza", "ya29.", "cur_", "key_", "crsr_"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "pypi-", "hf_"),
    *("xox", "xapp-", "hooks.slack.com/", "AKIA", "ASIA", "eyJ"),
)
"""One of them begins whatever has one of these shapes: looked for by themselves they are found forty times as fast in a large file."""
# Greedy up to the last @ before a slash: a password may hold an @. No two starts share a character, so it is linear.
_USERINFO: Final = re.compile(r"""(?<=://)[^\s/"'<>\\]+@""")
_QUERY: Final = re.compile(
    r"""(?<=[?&])((?:key|api_?key|token|access_token|auth|sig|signature|secret|password|X-[\w-]{1,20}-Signature)=)"""
    r"""[^&\s"'<>#\\]++""",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"""\b(bearer|basic)(\s{1,4})(?=[A-Za-z._~+/-]{0,80}[0-9=])[\w.~+/-]{16,}+=*+""", re.IGNORECASE
)

_NAMED: Final = re.compile(r"""(?<![\w-])([\w-]{3,80}+)(\\{0,4}["']?\s{0,8}[:=]\s{0,8})""")
_SCHEME: Final = r"(?:(?:bearer|basic|digest|token|negotiate|apikey)\s{1,4})?"
_VALUE: Final = re.compile(
    rf"""
      (?P<double>")(?:[^"\\]++|\\.)*+
    | (?P<single>')(?:[^'\\]++|\\.)*+
    | (?P<escaped>\\{{1,4}}["'])[^"'\\]*+
    | (?P<bare>{_SCHEME}[^\s"'`,;&<>)}}\\]++)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_MARK: Final = re.compile(r"""\[redacted:[a-z-]+\]""")
_WORDS: Final = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]++|[A-Z]")
_CERTAIN: Final = frozenset(
    {
        "password",
        "passwd",
        "passphrase",
        "passw",
        "pwd",
        "secret",
        "secrets",
        "credential",
        "credentials",
    }
    | {"apikey", "token", "authorization", "cookie"}
)
_KEY_OWNERS: Final = frozenset(
    {
        "api",
        "access",
        "secret",
        "private",
        "signing",
        "encryption",
        "auth",
        "service",
        "account",
        "storage",
    }
    | {"master", "shared", "deploy", "license", "ssh", "webhook"}
)
_PLAIN_VALUES: Final = frozenset({"true", "false", "none", "null", "undefined", "{", "(", "["})


def _well_formed(text: str) -> str:
    """Returns the text without lone surrogates, which JSON can carry and nothing can send on."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of that name holds a secret (`max_tokens`, `primary_key` and `PWD` do not)."""
    return _begins_secret_name(name[:80])  # remembered, so bounded


@lru_cache(maxsize=REMEMBERED)
def _begins_secret_name(name: str) -> bool:
    if name.upper() in ("PWD", "OLDPWD"):  # the shell's directories
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(word in _CERTAIN for word in words):
        return True
    return any(
        word == "key" and (before in _KEY_OWNERS or name.isupper())
        for before, word in pairwise(words)
    )


def _places_of(start: str, text: str) -> Iterator[int]:
    at = text.find(start)
    while at >= 0:
        yield at
        at = text.find(start, at + 1)


class Masker:
    """Replaces secrets in texts and in nested values. Masking twice changes nothing more."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings = {
            spelling
            for secret in secrets
            if len(secret) >= MIN_SECRET_CHARS
            for spelling in _spellings(secret)
            # A spelling that is part of our own mark would be "found" in every masked text.
            if len(spelling) >= MIN_SECRET_CHARS and spelling not in "[redacted:secret]"
        }
        self._spellings = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        self._mask_short = lru_cache(maxsize=REMEMBERED)(self._mask)

    def mask(self, text: str) -> str:
        # A log says the same names and ids again and again.
        return self._mask_short(text) if len(text) <= MAX_SHORT_CHARS else self._mask(text)

    def _mask(self, text: str) -> str:
        text = _well_formed(text)
        for spelling in self._spellings:
            if spelling in text:
                text = text.replace(spelling, "[redacted:secret]")
        text = _SHAPES.sub(_mark_shape, text)
        if "://" in text:
            text = _USERINFO.sub("[redacted:userinfo]@", text)
        if "=" in text or ":" in text:
            text = _mask_named(_QUERY.sub(r"\1[redacted:query]", text))
        return _BEARER.sub(r"\1\2[redacted:header]", text)

    def has_secret(self, data: bytes) -> bool:
        """Whether a known secret, or what has the shape of one, is in a file; what is packed or encrypted is not looked into."""
        if b"\0" in data and self.has_secret(
            data.replace(b"\0", b"").lstrip(b"\xff\xfe")
        ):  # as in UTF-16, behind its mark
            return True
        if any(spelling.encode() in data for spelling in self._spellings):
            return True
        text = data.decode("latin-1")
        return any(_SHAPES.match(text, at) for start in _STARTS for at in _places_of(start, text))

    def mask_value(self, value: object) -> object:
        """Returns the same shape of dicts and lists with every text masked; whatever is no plain data becomes masked text."""
        return self._mask_value(value, MAX_DEPTH)

    def _mask_value(self, value: object, depth: int) -> object:
        match value:
            case None | bool() | int() | float():
                masked: object = value
            case str():
                masked = self.mask(value)
            case bytes() | bytearray():
                masked = self.mask(value.decode(errors="replace"))
            case Mapping() | list() | tuple() | set() | frozenset() if depth == 0:
                masked = "[too deep]"
            case Mapping():
                masked = {
                    self.mask(str(key)): self._mask_field(key, item, depth)
                    for key, item in value.items()
                }
            case list() | tuple() | set() | frozenset():
                masked = [self._mask_value(item, depth - 1) for item in value]
            case _:
                masked = self.mask(str(value))
        return masked

    def _mask_field(self, key: object, item: object, depth: int) -> object:
        if isinstance(item, str) and item and isinstance(key, str) and is_secret_name(key):
            return item if _MARK.fullmatch(item) else "[redacted:field]"
        return self._mask_value(item, depth - 1)


def _mark_shape(match: re.Match[str]) -> str:
    return f"[redacted:{(match.lastgroup or 'secret').replace('_', '-')}]"


def _mask_named(text: str) -> str:
    """Masks `NAME=value`, `"name": "value"` and header lines whose name says that the value is secret."""
    pieces: list[str] = []
    done = 0
    for match in _NAMED.finditer(text):
        if match.start() < done or not is_secret_name(match[1]):
            continue
        value = _VALUE.match(text, match.end())
        if value is None:
            continue
        opening = value["double"] or value["single"] or value["escaped"] or ""
        body = value[0][len(opening) :]
        is_assigned = bool(opening) or "=" in match[2]
        if not _is_secret_value(body, name=match[1], is_assigned=is_assigned):
            continue
        mark = body if _MARK.fullmatch(body) else "[redacted:field]"
        pieces += (text[done : match.end()], opening, mark)
        done = value.end()
    return "".join((*pieces, text[done:]))


def _is_secret_value(body: str, *, name: str, is_assigned: bool) -> bool:
    if not body or body.lower() in _PLAIN_VALUES:
        return False
    if is_assigned or "pass" in name.lower() or "author" in name.lower():
        return True
    # `Token: a unit of text` is prose; a header or a YAML value is longer and has a digit.
    return len(body) >= MIN_SECRET_CHARS and any(character.isdigit() for character in body)


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    yield html.escape(secret)
    yield html.escape(secret, quote=False)
    for is_ascii in (True, False):
        escaped = json.dumps(secret, ensure_ascii=is_ascii)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")
        yield json.dumps(escaped, ensure_ascii=is_ascii)[1:-1]
    for encoded in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield encoded
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
    for core in _base64_cores(secret.encode(errors="surrogatepass")):
        yield core
        yield core.replace("+", "-").replace("/", "_")


def _base64_cores(secret: bytes) -> Iterator[str]:
    """Yields what stays the same of a secret's base64 wherever it stands in the encoded bytes: one core per alignment."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + secret).decode()
        # 8 bits a byte, 6 a character: characters that also hold bits of a neighbour are no part of the core.
        first = -(-offset * 8 // 6)
        last = (offset + len(secret)) * 8 // 6
        yield encoded[first:last]

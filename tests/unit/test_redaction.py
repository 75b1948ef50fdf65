"""What is secret is replaced, what is not stays, and no text takes more than linear time."""

import base64
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.redaction import Masker, is_secret_name
from tests.long import long_but

KNOWN = 'p@ss/w+rd "x" & <é>'
HEX40 = "0123456789abcdef0123456789abcdef01234567"


def in_base64(text: str, *, before: bytes, after: bytes) -> str:
    return base64.b64encode(before + text.encode() + after).decode()


@pytest.mark.parametrize(
    "spelled",
    [
        KNOWN,
        quote(KNOWN, safe=""),
        quote(KNOWN, safe="").lower(),
        quote(KNOWN),
        json.dumps(KNOWN)[1:-1],
        json.dumps(KNOWN, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(KNOWN)[1:-1])[1:-1],
        "p@ss/w+rd &quot;x&quot; &amp; &lt;é&gt;",
    ],
)
def test_a_known_secret_is_found_in_every_spelling(spelled: str) -> None:
    """Raw, URL-encoded, JSON-escaped (twice) and HTML-escaped secrets are masked whole."""
    assert Masker([KNOWN]).mask(f"a {spelled} b") == "a [redacted:secret] b"


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"user:"])
@pytest.mark.parametrize("after", [b"", b"x", b"xy"])
def test_a_known_secret_is_found_inside_base64(before: bytes, after: bytes) -> None:
    """Wherever it stands in the encoded bytes, hardly more than a character at each edge stays."""
    known = "quite-a-secret-value-0"
    encoded = in_base64(known, before=before, after=after)
    masked = Masker([known]).mask(encoded)
    assert "[redacted:secret]" in masked
    left = masked.replace("[redacted:secret]", "")
    assert len(left) <= len(base64.b64encode(before)) + len(base64.b64encode(after)) + 4


def test_short_secrets_are_ignored() -> None:
    """A secret under 8 characters would blank ordinary words."""
    assert Masker(["seven77"]).mask("seven77 wonders") == "seven77 wonders"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sk-ant-api03-" + "a" * 30, "anthropic"),
        ("sk-or-v1-" + "0" * 40, "openrouter"),
        ("sk-lf-" + HEX40, "langfuse"),
        ("sk-proj-" + "Ab1" * 10, "openai"),
        ("sk-" + "Ab1" * 12, "openai"),
        ("vcp_" + "Ab1" * 10, "vercel"),
        ("AIza" + "S" * 35, "google"),
        ("ya29.abcdefghijkl", "google"),
        ("crsr_" + "a1" * 12, "cursor"),
        ("ghp_" + "A" * 36, "github"),
        ("ghs_123456_eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJhcHAifQ." + "A" * 40, "github"),
        ("github_pat_" + "A" * 24, "github"),
        ("glpat-" + "A" * 20, "gitlab"),
        ("npm_" + "A" * 36, "npm"),
        ("pypi-" + "A" * 60, "pypi"),
        ("hf_" + "A" * 34, "huggingface"),
        ("xoxb-1234567890-abc", "slack"),
        ("xoxe.xoxp-1-abcdefghijkl", "slack"),
        ("xapp-1-A0123456789-abcdefghij", "slack"),
        ("hooks.slack.com/services/T0/B0/xyz", "slack"),
        ("AKIAABCDEFGHIJKLMNOP", "aws"),
        (f"AKIAABCDEFGHIJKLMNOP / {'wJa/+' * 8}", "aws"),
        ("eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl", "jwt"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc-def\n-----END RSA PRIVATE KEY-----",
            "private-key",
        ),
    ],
)
def test_shapes_of_keys_are_masked(text: str, kind: str) -> None:
    """A key of a known vendor is replaced whole by its kind, wherever it stands."""
    assert Masker().mask(f"it is {text}\nand") == f"it is [redacted:{kind}]\nand"
    assert Masker().has_secret(b"\xff\x00" * 500 + f" {text}\n".encode())
    assert Masker().has_secret(text.encode("utf-16"))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://u:p@ss@host/x", "https://[redacted:userinfo]@host/x"),
        ("https://token@host/x", "https://[redacted:userinfo]@host/x"),
        ("GET /x?key=abc&a=1", "GET /x?key=[redacted:query]&a=1"),
        ("curl -H 'x-api-key: abc12345'", "curl -H 'x-api-key: [redacted:field]'"),
        ("Authorization: Bearer abc def", "Authorization: [redacted:field] def"),
        ('{"authorization": "Basic abc"}', '{"authorization": "[redacted:field]"}'),
        ("use bearer abcdef0123456789xyz", "use bearer [redacted:header]"),
        ("MY_KEY=abc ls", "MY_KEY=[redacted:field] ls"),
        ("export DB_PASSWORD='a b'", "export DB_PASSWORD='[redacted:field]'"),
        ('{"apiKey":"a\\"b","n":1}', '{"apiKey":"[redacted:field]","n":1}'),
        ('"{\\"client_secret\\": \\"abc\\"}"', '"{\\"client_secret\\": \\"[redacted:field]\\"}"'),
        ('cmd="export TOKEN=abc"', 'cmd="export TOKEN=[redacted:field]"'),
        ("password: hunter", "password: [redacted:field]"),
        ("ANTHROPIC_API_KEY=sk-ant-api03-" + "a" * 30, "ANTHROPIC_API_KEY=[redacted:anthropic]"),
    ],
)
def test_values_are_masked_by_their_name_or_place(text: str, masked: str) -> None:
    """URLs, queries, headers, assignments and JSON fields lose the value and keep the rest."""
    assert Masker().mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=4096, input_tokens: 12",
        "sorted(rows, key=len)",
        "primary_key=True",
        "Token: a unit of text",
        "The key: ask early",
        "run_0123456789abcdef01234567 in C0123456789 at 1732000000.000100",
        "https://example.com/a?page=2#b",
        "a monkey and a keyboard",
        "sk-learn, vc_dimension, key_concepts_of_distributed_systems",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    """Words about keys and tokens, ids, times and code are no secrets."""
    assert Masker().mask(text) == text
    assert not Masker().has_secret(text.encode())


def test_nested_values_keep_their_shape() -> None:
    """Texts are masked in depth, by value and by field name; numbers stay; foreign objects become masked text."""
    masker = Masker(["canary-value"])
    value = {
        "a": ["canary-value", {"b": ("x canary-value", 1, None, True)}],
        "bot_token": "short",
        "input_tokens": 7,
        "error": ValueError("canary-value"),
        "raw": b"canary-value",
    }
    assert masker.mask_value(value) == {
        "a": ["[redacted:secret]", {"b": ["x [redacted:secret]", 1, None, True]}],
        "bot_token": "[redacted:field]",
        "input_tokens": 7,
        "error": "[redacted:secret]",
        "raw": "[redacted:secret]",
    }


def test_deep_nesting_ends() -> None:
    """Hostile nesting cannot exhaust the stack."""
    value: list[object] = []
    value.append(value)
    assert "[too deep]" in str(Masker().mask_value(value))


@pytest.mark.parametrize(
    "name", ["SLACK_BOT_TOKEN", "apiKey", "db-password", "X-Api-Key", "FOO_KEY"]
)
def test_names_of_secrets(name: str) -> None:
    """Names as environments, JSON and headers write them."""
    assert is_secret_name(name)


@given(
    st.text(
        st.sampled_from(
            ["a", "-", "_", ".", "=", ":", "/", "@", '"', "'", "\\", " ", "\n", "1", "[", "]"]
        )
        | st.characters()
    ),
    st.sampled_from(["api_key", "sk-ant-", "eyJ", "://", "password", "bearer ", "canary-value"]),
    st.text(),
)
def test_masking_is_idempotent_and_hides_known_secrets(head: str, seed: str, tail: str) -> None:
    """Masking a masked text changes nothing, and a known secret is never in the result."""
    masker = Masker(["canary-value", "another+secret/1"])
    once = masker.mask(f"{head}{seed}{tail}another+secret/1{head}")
    assert masker.mask(once) == once
    assert "canary-value" not in once
    assert "another+secret/1" not in once


_SLOWEST = ("a-", "eyJa.", "-----BEGIN ", "://a@", "api_key: ", 'token:"', "&sig=a")


@pytest.mark.parametrize(
    "seed",
    long_but(
        [
            "a",
            "a-",
            "_",
            "sk-ant-",
            "eyJ",
            "eyJa.",
            "eyJa.eyJ",
            "-----BEGIN PRIVATE KEY-----",
            "-----BEGIN ",
            "-",
            "://",
            "://a@",
            "a://b",
            "key=",
            "api_key=",
            "api_key: ",
            'token:"',
            'token:\\"',
            "token='",
            "=\\",
            "\\",
            "authorization: bearer ",
            "bearer ",
            "ghp_",
            "key_",
            "keykey",
            "&sig=a",
            " ",
            "[redacted:",
            "=",
            "secret",
        ],
        lambda seed: seed in _SLOWEST,
    ),
)
def test_hostile_megabytes_take_linear_time(seed: str) -> None:
    """Sixteen times the text takes at most some forty times the time: a quadratic scan would take 256 times."""
    masker = Masker(["secret-value-1", "secret-value-2"])

    def seconds_for(size: int) -> float:
        # The end makes every scan run that a cheap look would skip.
        text = (seed * (size // len(seed) + 1))[:size] + " a=b c: d ://"
        began = time.process_time()
        masker.mask(text)
        return time.process_time() - began

    seconds_for(10_000)
    small = min(seconds_for(62_500) for _ in range(3))
    assert seconds_for(1_000_000) < max(40 * small, 0.3)


def test_lone_surrogates_are_replaced() -> None:
    """JSON can carry half a character; nothing behind the masker can send it."""
    assert Masker().mask("a \ud800 b").encode() == b"a ? b"


def test_the_working_directory_is_no_secret() -> None:
    """PWD ends like a password's name and is shown all the same."""
    assert Masker().mask("PWD=/work OLDPWD=/tmp") == "PWD=/work OLDPWD=/tmp"
    assert "hunter2" not in Masker().mask("DB_PWD=hunter2")

"""The request check: whose signatures, which bodies, before anybody else sees them."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slack_bolt.async_app import AsyncApp

from app.slack.signature import MAX_BODY_BYTES, Refusal, check_request
from tests.unit.slack.building import KEY, deliver, deliver_json, mention, signed

OTHER_KEY = "other"
NO_KEY = ""


async def test_url_verification_needs_a_signature(bolt: AsyncApp) -> None:
    """The challenge comes back for Slack only."""
    payload = {"type": "url_verification", "token": "t", "challenge": "abc"}
    status, body = await deliver_json(bolt, payload)
    assert (status, json.loads(body)) == (200, {"challenge": "abc"})
    raw = json.dumps(payload).encode()
    assert (await deliver(bolt, raw, signed(raw, secret=OTHER_KEY)))[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Slack-Request-Timestamp": "soon", "X-Slack-Signature": "v0=" + "a" * 64},
        {"X-Slack-Request-Timestamp": "\u0661\u0662", "X-Slack-Signature": "v0=" + "a" * 64},
        {"X-Slack-Request-Timestamp": "1800000000", "X-Slack-Signature": "v0=\u00e9"},
        {"X-Slack-Request-Timestamp": "1" * 400, "X-Slack-Signature": "v0=" + "a" * 64},
        {"X-Slack-Request-Timestamp": str(int(time.time())), "X-Slack-Signature": "v0=" + "a" * 64},
    ],
)
def test_malformed_signatures_are_refused(headers: dict[str, str]) -> None:
    """Missing, non-numeric, non-ASCII and wrong values are all a plain 401."""
    rejection = check_request(headers=headers, body=b"{}", signing_secret=KEY, now=time.time())
    assert rejection is not None
    assert rejection.status == 401


@pytest.mark.parametrize(
    ("age_s", "is_fresh"), [(0, True), (299, True), (-299, True), (301, False), (-301, False)]
)
def test_old_and_future_requests_are_refused(age_s: int, is_fresh: bool) -> None:
    """Five minutes either way, as Slack says; what is refused is told so that it holds for both."""
    now = 1_800_000_000.0
    body = json.dumps(mention()).encode()
    rejection = check_request(
        headers=signed(body, at=now - age_s), body=body, signing_secret=KEY, now=now
    )
    assert (rejection is None) is is_fresh
    if rejection is not None:
        assert rejection.error == "signature: made more than 300 s before or after now"


def test_an_empty_secret_accepts_nothing() -> None:
    """A forgotten secret is no open door."""
    headers = signed(b"{}", secret=NO_KEY)
    assert (
        check_request(headers=headers, body=b"{}", signing_secret="", now=time.time()) is not None
    )


@given(st.binary(max_size=200), st.integers(0, 255), st.integers(0, 10_000))
def test_any_changed_byte_breaks_the_signature(body: bytes, byte: int, position: int) -> None:
    """A body that differs from the signed one in one byte is refused as unsigned."""
    changed = bytearray(body or b"x")
    index = position % len(changed)
    changed[index] = byte if changed[index] != byte else (byte + 1) % 256
    headers = signed(body or b"x")
    rejection = check_request(
        headers=headers, body=bytes(changed), signing_secret=KEY, now=time.time()
    )
    assert rejection == Refusal(status=401, error="signature: wrong")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"type":' * 100_000, "nested too deeply"),
        (b'{"type": NaN}', "NaN"),
        (b'{"type": "event_callback", "event": {"type": "message", "text": "\\ud800"}}', "not UTF-8"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"type": 5}', "type"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not readable"),
        (json.dumps(mention(text=5)).encode(), "event.text"),
        (json.dumps(mention(ts="now")).encode(), "event.ts"),
        (json.dumps(mention(thread_ts=1.5)).encode(), "event.thread_ts"),
        (json.dumps(mention(user=["U1"])).encode(), "event.user"),
        (json.dumps(mention(channel="C 1")).encode(), "event.channel"),
        (json.dumps({**mention(), "event": None}).encode(), "event"),
        (json.dumps({**mention(), "event": {"text": "x"}}).encode(), "event.type"),
        (json.dumps({**mention(), "authorizations": {}}).encode(), "authorizations"),
        (json.dumps({**mention(), "authorizations": ["x"]}).encode(), "authorizations[0]"),
        (json.dumps({**mention(), "authorizations": [{"team_id": 7}]}).encode(), "authorizations[0].team_id"),
        (json.dumps({**mention(), "team_id": {}}).encode(), "team_id"),
        (json.dumps({"type": "block_actions", "actions": []}).encode(), "actions"),
        (json.dumps({"type": "block_actions", "actions": [{"value": 1}]}).encode(), "actions[0].value"),
        (b'{"type": "url_verification"}', "challenge"),
    ],
)  # fmt: skip
def test_malformed_bodies_are_refused_by_name(body: bytes, error: str) -> None:
    """A signed body of the wrong shape is a 400 that names the field."""
    rejection = check_request(headers=signed(body), body=body, signing_secret=KEY, now=time.time())
    assert rejection is not None
    assert rejection.status == 400
    assert error in rejection.error


def test_large_bodies_and_other_types_are_refused() -> None:
    """More than 1 MiB is a 413, whatever the signature; other content types are a 400."""
    large = b"x" * (MAX_BODY_BYTES + 1)
    rejection = check_request(headers={}, body=large, signing_secret=KEY, now=0)
    assert rejection is not None
    assert rejection.status == 413
    headers = signed(b"{}", content_type="text/plain")
    rejection = check_request(headers=headers, body=b"{}", signing_secret=KEY, now=time.time())
    assert rejection is not None
    assert rejection.status == 400

"""Messages of the queue: what is read, and what is refused."""

import pytest

from app.dispatch.vercel_queue import MAX_BODY_BYTES, WakeUp, message_key, read_wake_up

KEY = message_key("signing-secret")
RIGHT = WakeUp(run_id="run_1", number=3, deployment="dpl_1").signed(KEY)


def _read(body: bytes) -> WakeUp:
    return read_wake_up(body, key=KEY, deployment="dpl_1")


def test_what_was_signed_is_read() -> None:
    """As it was sent."""
    assert _read(RIGHT.model_dump_json().encode()) == RIGHT


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"run_id": "run_2"}, "not signed"),
        ({"number": 4}, "not signed"),
        ({"signature": ""}, "not signed"),
        ({"version": 2}, "another form .version"),
        ({"number": -1}, "another form .number"),
    ],
)
def test_what_was_changed_is_refused(changed: dict[str, object], reason: str) -> None:
    """By its signature, or its form."""
    body = RIGHT.model_copy(update=changed).model_dump_json().encode()
    with pytest.raises(ValueError, match=reason):
        _read(body)


def test_of_another_deployment() -> None:
    """Signed all the same."""
    other = RIGHT.model_copy(update={"deployment": "dpl_2"}).signed(KEY)
    with pytest.raises(ValueError, match="another deployment, 'dpl_2'"):
        _read(other.model_dump_json().encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{}", b'{"run_id": 1}'])
def test_of_another_form(body: bytes) -> None:
    """JSON or not."""
    with pytest.raises(ValueError, match="another form"):
        _read(body)


def test_too_long() -> None:
    """Whatever is in it."""
    with pytest.raises(ValueError, match="longer than 4096 bytes"):
        _read(b" " * (MAX_BODY_BYTES + 1))

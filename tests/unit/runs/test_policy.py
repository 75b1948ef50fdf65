"""Who may ask, and what is refused."""

from dataclasses import replace

import pytest

from app.errors import ErrorCode
from app.runs.policy import Refusal
from app.runs.testing import RunPolicy, RunRequest, Surface, find_invalid, find_refusal, may_stop
from tests.building import make_request

STRICT = RunPolicy(
    allowed_users=frozenset({"U1"}),
    allowed_channels=frozenset({"C1"}),
    runs_per_user_hour=3,
    queue_limit=5,
)


@pytest.mark.parametrize(
    ("request_", "runs", "unfinished", "code"),
    [
        (make_request(), 1, 1, None),
        (make_request(), 3, 5, None),
        (make_request(user="U2"), 1, 1, ErrorCode.NOT_ALLOWED),
        (make_request(channel="C2"), 1, 1, ErrorCode.NOT_ALLOWED),
        (make_request(channel="D2", surface=Surface.DM), 1, 1, None),
        (make_request(is_external=True), 1, 1, ErrorCode.NOT_ALLOWED),
        (make_request(text=" \u200b\ufeff "), 1, 1, ErrorCode.REQUEST_INVALID),
        (make_request(text="", file_names=("a.txt",)), 1, 1, None),
        (make_request(), 4, 1, ErrorCode.NOT_ALLOWED),
        (make_request().model_copy(update={"late_s": 60}), 4, 1, None),
        (make_request(), 1, 6, ErrorCode.QUEUE_FULL),
    ],
)
def test_refusals(request_: RunRequest, runs: int, unfinished: int, code: ErrorCode | None) -> None:
    """Each limit refuses with its own code, and only beyond the limit."""
    refusal = find_refusal(request_, STRICT, runs_last_hour=runs, unfinished=unfinished)
    assert (refusal.code if refusal else None) == code


def test_an_app_starts_so_many_runs_in_a_thread() -> None:
    """Two apps that answer each other come to an end; the list of people is not about apps."""
    request = make_request(user="B2").model_copy(update={"is_bot": True})
    policy = replace(STRICT, bot_turns=2)
    told = [
        find_refusal(request, policy, runs_last_hour=1, unfinished=1, bot_turns=turns)
        for turns in (1, 2, 3)
    ]
    assert told[:2] == [None, None]
    assert told[2] == Refusal(
        code=ErrorCode.NOT_ALLOWED, detail="other apps may start 2 runs in one thread"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sandbox=dokcer fix", "'dokcer' here; did you mean docker? There are: local, docker"),
        ("/provider Mars fix", "'mars' here; there are: local, docker"),
        ("sandbox=vercle fix", "'vercle' here; there are: local, docker"),
        ("sandbox=vercel fix", "'vercel' here; there are: local, docker"),
    ],
)
def test_only_the_sandboxes_that_are_here_are_told(text: str, told: str) -> None:
    """Not all that Orion knows of, however the word is written."""
    policy = RunPolicy(sandboxes={"local": "local", "docker": "docker"})
    assert find_invalid(make_request(text=text), policy) == f"there is no sandbox {told}"


def test_where_there_are_no_sandboxes_none_are_told() -> None:
    """As where agents work in a developer's directory."""
    told = find_invalid(make_request(text="sandbox=docker fix"), RunPolicy())
    assert told == "there is no sandbox 'docker' here; there are none to choose from"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (make_request(text="remember"), "write what I shall know here after `remember`"),
        (make_request(text="forget"), "after `forget`: its number"),
        (make_request(text="forget 1"), ""),
        (make_request(text="what do you know here?"), ""),
        *((make_request(text=text), "as a reply in a thread") for text in ("mute", "Unmute!")),
        (make_request(text="mute the alarms"), ""),
        (make_request(text="stop"), ""),
        (make_request(text="mute", thread_ts="1795302360.000100"), ""),
        (make_request(text="mute", channel="D1", surface=Surface.DM), ""),
    ],
)
def test_what_a_word_for_orion_lacks_is_told(request_: RunRequest, told: str) -> None:
    """Before an agent would puzzle over it: something behind it, or at the top of a channel a thread."""
    said = find_invalid(request_, RunPolicy())
    assert told in said
    assert bool(said) is bool(told)


def test_one_attempt_at_a_time() -> None:
    """A message that is being answered is not tried again beside that."""
    refusal = find_refusal(make_request(), STRICT, runs_last_hour=1, unfinished=2, is_going=True)
    assert refusal is not None
    assert refusal.code is ErrorCode.REQUEST_INVALID
    assert "already" in refusal.detail


def test_empty_lists_mean_everyone() -> None:
    """Without lists everyone in the workspace may ask and stop; other companies only when allowed."""
    assert (
        find_refusal(make_request(user="U7"), RunPolicy(), runs_last_hour=1, unfinished=1) is None
    )
    assert may_stop("U7", RunPolicy())
    assert not may_stop("U7", STRICT)
    external = make_request(is_external=True)
    policy = RunPolicy(allow_external=True)
    assert find_refusal(external, policy, runs_last_hour=1, unfinished=1) is None

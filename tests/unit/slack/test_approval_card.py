"""The card of what waits for a yes, and what it is afterwards."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.approvals.records import Approval, ApprovalAnswer, ApprovalState
from app.approvals.rules import DeedKind
from app.playground.slack.block_kit import check_blocks
from app.slack.actions import (
    ALLOW_ACTION,
    ALLOW_THREAD_ACTION,
    CHOOSE_ACTIONS,
    DENY_ACTION,
    WRITE_ACTION,
)
from app.slack.approval_card import render_approval

NOW = datetime(2026, 11, 27, 9, 30, tzinfo=UTC)
WAITING = Approval(
    id="apv_1",
    run_id="run_1",
    team="T1",
    channel="C1",
    thread_key="T1-C1-1.0",
    thread_ts="1.0",
    asker="U1",
    kind=DeedKind.TOOL,
    target="linear.create_issue",
    shown='{\n  "title": "a bug"\n}',
    digest="d" * 64,
    number=1,
    rule='tool = "linear.*"',
    by=("asker", "U9"),
    people=1,
    asked_at=NOW,
    until=NOW + timedelta(hours=1),
)
YES = ApprovalAnswer(user="U9", is_allowed=True, at=NOW)


def shown(approval: Approval) -> str:
    part = render_approval(approval)
    return json.dumps([dict(block) for block in part.blocks], ensure_ascii=False)


def actions_of(approval: Approval) -> list[str]:
    rows = [block for block in render_approval(approval).blocks if block["type"] == "actions"]
    return [button["action_id"] for row in rows for button in row["elements"]]


def test_it_says_what_exactly_for_whom_and_until_when() -> None:
    """Its buttons carry the row's id; which rule asks is there for whoever wants to change it."""
    text = shown(WAITING)
    assert "`linear.create_issue`" in text
    assert "a bug" in text
    assert "for <@U1> or <@U9>" in text
    assert "10:30 UTC" in text
    assert "rule `tool" in text
    assert actions_of(WAITING) == [ALLOW_ACTION, DENY_ACTION, ALLOW_THREAD_ACTION]
    assert text.count("apv_1") == 3


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ApprovalState.ALLOWED, "*Allowed*"),
        (ApprovalState.USED, "*Allowed, and let through*"),
        (ApprovalState.DENIED, "*Denied*"),
        (ApprovalState.EXPIRED, "which is no refusal"),
        (ApprovalState.WITHDRAWN, "the run has ended"),
    ],
)
def test_afterwards_it_is_the_record(state: ApprovalState, words: str) -> None:
    """With who said what, and no button."""
    ended = replace(WAITING, state=state, answers=(YES,), ended_at=NOW)
    assert words in shown(ended)
    assert "<@U9> said yes" in shown(ended)
    assert actions_of(ended) == []


def test_two_people_and_one_has_said_yes() -> None:
    """It still asks, and says so."""
    half = replace(WAITING, people=2, by=("operators", "asker"), answers=(YES,))
    assert f"for 2 people together: an operator, <@{WAITING.asker}> · until" in shown(half)
    assert "<@U9> said yes" in shown(half)
    assert ALLOW_ACTION in actions_of(half)


def test_a_host_may_be_tried() -> None:
    """Whether it could be reached is not known by then."""
    used = replace(WAITING, kind=DeedKind.HOST, state=ApprovalState.USED, answers=(YES,))
    assert "Allowed" in shown(used)
    assert "let through" not in shown(used)


def test_too_few_have_said_yes_in_time() -> None:
    """It does not say that nobody did."""
    half = replace(WAITING, people=2, answers=(YES,), state=ApprovalState.EXPIRED)
    assert "too few people answered in time" in shown(half)
    assert "nobody answered" not in shown(half)


HOSTILE: list[dict[str, Any]] = [
    {"shown": "```\n<!channel> <@U2> *bold* ``` `x` & <https://evil.example|here>"},
    {"target": "a.`<!here>`"},
    {"rule": 'tool = "`<!everyone>`"'},
    {"shown": "x" * 100_000},
    {"shown": "&" * 10_000},
    {"target": "t" * 1_000},
]


@pytest.mark.parametrize("changes", HOSTILE)
def test_what_an_agent_wrote_is_shown_and_does_nothing(changes: dict[str, Any]) -> None:
    """It pings nobody, ends no code, and stays within Slack's limits."""
    part = render_approval(replace(WAITING, **changes))
    text = shown(replace(WAITING, **changes))
    for ping in ("<!channel>", "<!here>", "<!everyone>", "<@U2>", "<https://evil"):
        assert ping not in text
    assert check_blocks([dict(block) for block in part.blocks])
    text.encode()


def test_all_of_it_is_shown() -> None:
    """As many blocks as it takes; a name cannot go on behind its own code."""
    text = "\n".join(f'"key{number}": "{"x" * 60}&"' for number in range(100))
    whole = "".join(
        block["text"]["text"]
        for block in render_approval(replace(WAITING, shown=text)).blocks
        if block["type"] == "section"
    )
    assert all(f"key{number}" in whole for number in range(100))
    assert "…" not in whole
    assert "a.b\\n*reviewed* <U+202E>" in shown(
        replace(WAITING, target="a.b\n*reviewed* \u202e")
    ).replace("\\\\", "\\").replace("&lt;", "<").replace("&gt;", ">")


QUESTION = replace(
    WAITING,
    kind=DeedKind.QUESTION,
    target="Which *name* shall it have?",
    shown="",
    rule="",
    by=("asker",),
    options=("the old one", "a new <one>"),
    otherwise="I keep the old one.",
)


def test_a_question_is_asked_with_what_may_be_chosen() -> None:
    """And what happens without an answer; nothing of it is a rule's."""
    text = shown(QUESTION)
    assert "I need to know:*\\nWhich *name* shall it have?" in text
    assert "for <@U1>" in text
    assert "without an answer: I keep the old one." in text
    assert "rule" not in text
    assert actions_of(QUESTION) == [*CHOOSE_ACTIONS[:2], WRITE_ACTION, DENY_ACTION]
    check_blocks([dict(block) for block in render_approval(QUESTION).blocks])


@pytest.mark.parametrize(
    ("state", "said", "words"),
    [
        (ApprovalState.ALLOWED, "a\nb <!channel>", ("*Answered*", ">a\\n>b ", "answered <!date")),
        (ApprovalState.USED, "yes", ("*Answered*", ">yes")),
        (ApprovalState.DENIED, "", ("*Left to me*", "<@U9> answered")),
        (ApprovalState.EXPIRED, None, ("*Nobody answered in time*", "without an answer: I keep")),
        (ApprovalState.WITHDRAWN, None, ("*Not needed any more*",)),
    ],
)
def test_a_question_becomes_its_record(
    state: ApprovalState, said: str | None, words: tuple[str, ...]
) -> None:
    """Nobody is pinged by what was answered."""
    answers = () if said is None else (replace(YES, text=said),)
    text = shown(replace(QUESTION, state=state, answers=answers))
    assert all(one in text for one in words), text
    assert "<!channel>" not in text
    assert actions_of(replace(QUESTION, state=state)) == []


def test_a_long_question_fits() -> None:
    long = replace(QUESTION, target="&" * 2_000, otherwise="<" * 2_000, options=("x" * 75,) * 8)
    check_blocks([dict(block) for block in render_approval(long).blocks])
    answered = replace(long, state=ApprovalState.USED, answers=(replace(YES, text="&" * 2_000),))
    check_blocks([dict(block) for block in render_approval(answered).blocks])


def test_a_group_is_named_as_that() -> None:
    text = shown(replace(WAITING, by=("backend", "U9")))
    assert "for `backend` or <@U9>" in text


def test_an_answer_of_many_lines_fits() -> None:
    """Each line of a quotation takes a sign more."""
    said = replace(YES, text="<\n" * 2_000)
    card = replace(
        WAITING, kind=DeedKind.QUESTION, state=ApprovalState.ALLOWED, answers=(said,), shown=""
    )
    check_blocks([dict(block) for block in render_approval(card).blocks])

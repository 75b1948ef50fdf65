"""Rebuilding a thread as turns."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.runs.testing import (
    FAILED_UNANSWERED,
    LEFT_OUT,
    STOPPED_UNANSWERED,
    Conversation,
    Outcome,
    Run,
    RunId,
    RunState,
    ThreadMessage,
    build_messages,
)
from tests.building import make_request, make_run

ROOT = "1795302300.000100"


def message(ts: str, text: str, *, user: str = "U1", name: str = "Ada") -> ThreadMessage:
    return ThreadMessage(ts=ts, user=user, author_name=name, text=text, is_own=False)


def answered(ts: str, question: str, answer: str, state: RunState = RunState.SUCCEEDED) -> Run:
    run = make_run(make_request(ts=ts, thread_ts=ROOT, text=question))
    return replace(run, state=state, outcome=Outcome(state=state, answer=answer), attempt=1)


def test_an_app_that_asks_is_called_by_its_name() -> None:
    """Slack tells the author of its message under no person's id."""
    request = make_request(ts=ROOT, thread_ts=ROOT, text="disk full", user="UPAGER")
    asked = make_run(request.model_copy(update={"is_bot": True}))
    run = replace(
        asked,
        state=RunState.SUCCEEDED,
        outcome=Outcome(state=RunState.SUCCEEDED, answer="ok"),
        attempt=1,
    )
    thread = [message(ROOT, "disk full", user="", name="Pager")]
    request = make_request(ts="1795302390.000100", thread_ts=ROOT, text="why?")
    turns = build_messages(request, records=[run], thread=thread)
    assert turns[0].text == "Pager: disk full"


def test_who_asks_about_a_message_is_not_called_as_its_author() -> None:
    """By the shortcut a person's question bears the moment of another one's message."""
    run = answered(ROOT, "why is that?", "because")
    thread = [message(ROOT, "it is red", user="U2", name="Sam")]
    request = make_request(ts="1795302390.000100", thread_ts=ROOT, text="and now?", user="U3")
    turns = build_messages(request, records=[run], thread=thread)
    assert turns[0].text == "U1: why is that?"


def test_a_single_message_is_one_turn() -> None:
    """Without history there is just the question."""
    turns = build_messages(make_request(text="hello"), records=(), thread=())
    assert [(turn.role, turn.text) for turn in turns] == [("user", "hello")]


def test_own_records_come_first_and_slack_fills_in() -> None:
    """Answers come from the records; what others wrote, and the order, from Slack; nothing twice."""
    records = [answered("1795302301.000100", "first?", "one")]
    thread = [
        message(ROOT, "the deploy failed", name="Bob", user="U2"),
        message("1795302301.000100", "<raw> first?"),
        ThreadMessage(
            ts="1795302302.000100",
            user="",
            author_name="Orion",
            text="one (as Slack has it)",
            is_own=True,
            run_id=records[0].id,
        ),
        message("1795302303.000100", "thanks", name="Bob", user="U2"),
    ]
    request = make_request(ts="1795302304.000100", thread_ts=ROOT, text="second?")
    turns = build_messages(request, records=records, thread=thread)
    assert [(turn.role, turn.text) for turn in turns] == [
        ("user", "Bob: the deploy failed\n\nAda: first?"),
        ("assistant", "one"),
        ("user", "Bob: thanks\n\nsecond?"),
    ]


def test_answers_of_lost_records_come_from_slack() -> None:
    """When the record is gone, the answer that stands in Slack is used; notices of the bot are not."""
    gone = make_run().id
    thread = [
        message(ROOT, "q"),
        ThreadMessage(
            ts="1795302302.000100", user="", author_name="Orion", text="a", is_own=True, run_id=gone
        ),
        ThreadMessage(
            ts="1795302303.000100", user="", author_name="Orion", text="done", is_own=True
        ),
    ]
    request = make_request(ts="1795302304.000100", thread_ts=ROOT, text="more?")
    turns = build_messages(request, records=(), thread=thread)
    assert [turn.text for turn in turns] == ["q", "a", "more?"]


def test_records_alone_are_enough() -> None:
    """With Slack unreadable the records still give the conversation."""
    records = [
        answered(ROOT, "q1", "a1"),
        answered("1795302302.000100", "q2", "half", RunState.STOPPED),
    ]
    request = make_request(ts="1795302304.000100", thread_ts=ROOT, text="q3")
    turns = build_messages(request, records=records, thread=())
    assert [turn.text for turn in turns] == [
        "q1",
        "a1",
        "q2",
        "half\n\n[this answer was cut off]",
        "q3",
    ]


def test_a_question_that_was_tried_again_counts_once() -> None:
    """Of several runs of a message the one with an answer is history, whichever came first."""
    failed = answered("2.000001", "why?", "", RunState.FAILED)
    again = replace(
        answered("2.000001", "why?", "because"),
        id=RunId("run_again"),
        created_at=failed.created_at + timedelta(seconds=9),
    )
    refused = replace(failed, id=RunId("run_refused"), created_at=again.created_at)
    request = make_request(ts="3.000001", thread_ts=ROOT, text="and now?")
    turns = build_messages(request, records=(failed, again, refused), thread=())
    assert [turn.text for turn in turns] == ["why?", "because", "and now?"]


def test_a_question_that_never_began_is_no_history() -> None:
    """Withdrawn, refused or given up: neither from the record nor as Slack has it does it reach the next question."""
    ended = ("2.000001", RunState.STOPPED), ("3.000001", RunState.FAILED)
    records = [replace(answered(ts, "run: rm -rf /", "", state), attempt=0) for ts, state in ended]
    thread = [message(ts, "run: rm -rf /", user="U2", name="Eve") for ts, _ in ended]
    request = make_request(ts="4.000001", thread_ts=ROOT, text="what is 2+2?")
    turns = build_messages(request, records=records, thread=thread)
    assert [turn.text for turn in turns] == ["what is 2+2?"]


def test_a_question_without_an_answer_ends_there() -> None:
    """What failed or was stopped before it said anything does not run into the next question."""
    records = [
        answered("2.000001", "do this", "", RunState.FAILED),
        answered("3.000001", "do that", "", RunState.STOPPED),
    ]
    request = make_request(ts="4.000001", thread_ts=ROOT, text="and now?")
    turns = build_messages(request, records=records, thread=())
    assert [(turn.role, turn.text) for turn in turns] == [
        ("user", "do this"),
        ("assistant", FAILED_UNANSWERED),
        ("user", "do that"),
        ("assistant", STOPPED_UNANSWERED),
        ("user", "and now?"),
    ]


def test_later_messages_are_not_history() -> None:
    """A run that was asked after this one is not part of its past."""
    records = [answered("1795302399.000100", "later", "later answer")]
    request = make_request(ts="1795302304.000100", thread_ts=ROOT, text="now")
    assert [turn.text for turn in build_messages(request, records=records, thread=())] == ["now"]


def test_a_long_thread_keeps_root_and_newest() -> None:
    """Of 1,000 messages the root and the newest stay, with a mark between, within the bound."""
    thread = [message(f"17953023{n:05d}.000100", f"message {n} " + "x" * 200) for n in range(1000)]
    request = make_request(ts="1795399999.000100", thread_ts=thread[0].ts, text="and now?")
    turns = build_messages(request, records=(), thread=thread, max_chars=20_000)
    text = turns[0].text
    assert len(text) < 21_000
    assert text.startswith("message 0 ")
    assert LEFT_OUT in text
    assert "message 999 " in text
    assert "message 500 " not in text
    assert text.endswith("and now?")


def test_files_are_named() -> None:
    """An attached file is told by its name, also with an empty text."""
    request = make_request(text="", file_names=("report.pdf",))
    assert build_messages(request, records=(), thread=())[0].text == (
        "[attached in Slack, not readable here: report.pdf]"
    )


@given(
    st.lists(
        st.tuples(st.booleans(), st.text(max_size=50), st.sampled_from(["U1", "U2"])), max_size=30
    ),
    st.integers(min_value=200, max_value=2000),
)
def test_turns_always_alternate(entries: list[tuple[bool, str, str]], max_chars: int) -> None:
    """Whatever the thread, roles alternate, the first and the last are the user's, and the request is there."""
    thread = [
        ThreadMessage(
            ts=f"17953020{n:02d}.000100",
            user=user,
            author_name=user,
            text=text,
            is_own=is_own,
            run_id=make_run(make_request(ts=f"{n}.000001")).id if is_own else None,
        )
        for n, (is_own, text, user) in enumerate(entries)
    ]
    request = make_request(
        ts="1795399999.000100", thread_ts="1795302000.000100", text="the question"
    )
    turns = build_messages(request, records=(), thread=thread, max_chars=max_chars)
    assert [turn.role for turn in turns] == [
        ["user", "assistant"][n % 2] for n in range(len(turns))
    ]
    assert turns[-1].role == "user"
    assert turns[-1].text.endswith("the question")


def test_what_was_said_since_an_answer() -> None:
    """What failed, what other people wrote while and after it was answered; neither the answer nor what came before."""
    records = [
        answered("1795302301.000100", "first?", "one"),
        answered("1795302303.000100", "rename alpha", "", RunState.FAILED),
    ]
    thread = [
        message(ROOT, "the deploy failed", name="Bob", user="U2"),
        message("1795302302.000100", "while it was answered", name="Bob", user="U2"),
    ]
    request = make_request(ts="1795302304.000100", thread_ts=ROOT, text="please do it now")
    said = Conversation(request=request, records=records, thread=thread)
    since = said.messages(after_ts="1795302301.000100")
    assert [(turn.role, turn.text) for turn in since] == [
        ("user", "Bob: while it was answered\n\nU1: rename alpha"),
        ("assistant", FAILED_UNANSWERED),
        ("user", "please do it now"),
    ]
    assert said.messages(after_ts="1795302303.000100")[0].text == "please do it now"
    assert said.messages() == build_messages(request, records=records, thread=thread)

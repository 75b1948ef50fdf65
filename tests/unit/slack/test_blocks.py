"""What a thread is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import ErrorCode
from app.runs.options import NO_REPO
from app.runs.testing import (
    Outcome,
    PlannedStep,
    Progress,
    QueuePosition,
    Run,
    RunState,
    StepState,
    ToolCall,
    Usage,
)
from app.slack.actions import PICK_ACTIONS
from app.slack.blocks import (
    ReplyStyle,
    error_text,
    render_plain_result,
    render_progress,
    render_result,
    render_thinking,
    spent_text,
)
from app.slack.manifest import manifest
from tests.building import make_request, make_run

if TYPE_CHECKING:
    from app.slack.blocks import MessagePart


def blocks_of(part: MessagePart, kind: str) -> list[dict[str, Any]]:
    return [dict(block) for block in part.blocks if block["type"] == kind]


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_has_its_sentence(code: ErrorCode) -> None:
    """Each code has a text of whole sentences, without code, stack or blockquote."""
    text = error_text(code)
    assert text.endswith(".")
    assert code not in text
    assert "\n" not in text
    assert not text.startswith(">")


def test_quoted_sentences_are_verbatim() -> None:
    """The sentences that the design names are exactly those."""
    assert error_text(ErrorCode.SANDBOX_CREATION_FAILED) == (
        "I'm having trouble starting up. Please try again in a moment."
    )
    assert (
        error_text(ErrorCode.SANDBOX_TIMEOUT)
        == "Your request took too long. Please try a simpler question."
    )
    assert error_text(ErrorCode.SANDBOX_SETUP_FAILED) == "Agent setup failed. Please try again."
    assert (
        error_text(ErrorCode.AGENT_EXECUTION_FAILED)
        == "I encountered an error processing your request."
    )


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (QueuePosition(), "Thinking…"),
        (QueuePosition(ahead_in_thread=1), "Queued behind 1 earlier message in this thread"),
        (QueuePosition(ahead_in_thread=2), "Queued behind 2 earlier messages in this thread"),
        (
            QueuePosition(ahead_elsewhere=3),
            "All 32 slots are busy; you are about number 3, as people take turns",
        ),
    ],
)
def test_thinking_says_why_it_waits(run: Run, position: QueuePosition, text: str) -> None:
    """The first message says what is waited for and can be stopped."""
    part = render_thinking(run, position, capacity=32)
    assert part.text == text
    (actions,) = blocks_of(part, "actions")
    button, *others = actions["elements"]
    assert (button["action_id"], button["value"], button["style"]) == (
        "orion_stop",
        run.id,
        "danger",
    )
    sends = [(other["action_id"], other["value"]) for other in others]
    assert sends == ([("orion_send_now", run.id)] if position.ahead_in_thread else [])


def test_an_urgent_message_says_that_others_stop_for_it() -> None:
    """There is nothing to press but Stop."""
    run = make_run(make_request(ts="2.000001", thread_ts="1.000001", text="!now"))
    part = render_thinking(run, QueuePosition(ahead_in_thread=1), capacity=32)
    assert part.text == "Interrupting what goes on in this thread…"
    (actions,) = blocks_of(part, "actions")
    assert [button["action_id"] for button in actions["elements"]] == ["orion_stop"]


def test_progress_names_tools_steps_and_time(run: Run) -> None:
    """One compact message: the answer so far, phase, tools with their state and argument as code, steps, time, Stop."""
    shown = Progress(
        phase="Working",
        elapsed_s=72,
        tools=(
            ToolCall(number=1, name="read", argument="a.txt", state=StepState.FAILED),
            ToolCall(number=2, name="shell", argument="echo `id`\n<!here>"),
        ),
        steps=3,
        text="So far",
    )
    part = render_progress(run, shown)
    tools, facts = (block["elements"][0]["text"] for block in blocks_of(part, "context"))
    before, read, shell = tools.split("\n")
    assert (before, read) == ("1 step before", "✗ read `a.txt`")
    assert shell.startswith("▸ shell `echo ˋidˋ ")  # noqa: RUF001 - the look-alike is meant
    assert facts == "3 steps · 1 min 12 s"
    assert "<!here>" not in tools
    assert blocks_of(part, "markdown") == [{"type": "markdown", "text": "So far"}]
    assert blocks_of(part, "actions")


def test_progress_shows_the_plan_and_folds_what_is_over(run: Run) -> None:
    """A plan is a list with marks, in the agent's order; of twenty calls four have a line."""
    titles = {
        StepState.DONE: "read <!channel>",
        StepState.RUNNING: "write",
        StepState.PENDING: "test",
    }
    plan = tuple(PlannedStep(title=title, state=state) for state, title in titles.items())
    tools = tuple(ToolCall(number=n, name=f"t{n}", state=StepState.DONE) for n in range(20))
    part = render_progress(
        run, Progress(phase="Working", elapsed_s=1, plan=plan, tools=tools, steps=20)
    )
    told, calls, _ = (block["elements"][0]["text"] for block in blocks_of(part, "context"))
    first, *rest = told.split("\n")
    assert first.startswith("✓ read @")
    assert rest == ["▸ write", "○ test"]
    assert calls.split("\n") == ["16 steps before", "✓ t16", "✓ t17", "✓ t18", "✓ t19"]


def test_what_was_written_before_a_tool_call_stays(run: Run) -> None:
    """Whichever way it is shown in: a stream that Slack takes no more of goes on here."""
    shown = Progress(phase="Writing", elapsed_s=1, before="First I look.\n\n", text="It is")
    (markdown,) = blocks_of(render_progress(run, shown), "markdown")
    assert markdown["text"] == "First I look.\n\nIt is"


def test_a_long_answer_so_far_is_cut_from_the_front(run: Run) -> None:
    """Progress shows at most 3,000 characters of the answer, its end."""
    text = "\n".join(f"line {n}" for n in range(2_000))
    (markdown,) = blocks_of(
        render_progress(run, Progress(phase="Writing", elapsed_s=1, text=text)), "markdown"
    )
    assert len(markdown["text"]) <= 3_000
    assert markdown["text"].endswith("line 1999")


def test_answer_has_footer_and_feedback(run: Run) -> None:
    """The last part carries duration, steps and both thumbs."""
    ended = Outcome(state=RunState.SUCCEEDED, answer="Hello <!channel>", duration_s=12, steps=3)
    (part,) = render_result(run, ended)
    assert "<!channel>" not in json.dumps([dict(block) for block in part.blocks])
    (context,) = blocks_of(part, "context")
    assert context["elements"][0]["text"] == "12 s · 3 steps"
    (actions,) = blocks_of(part, "context_actions")
    (buttons,) = actions["elements"]
    assert buttons["action_id"] == "orion_feedback"
    assert buttons["positive_button"]["value"] == f"up:{run.id}"
    assert buttons["negative_button"]["value"] == f"down:{run.id}"


@pytest.mark.parametrize(
    ("tokens", "cost_usd", "said"),
    [
        (1234, None, "1.2k tokens · cost unknown"),
        (1234, 0.0042, "1.2k tokens · $0.0042"),
        (1234, 0.0, "1.2k tokens · $0"),
        (0, 0.5, "$0.50"),
        (0, None, ""),
    ],
)
def test_what_was_used_says_what_it_cost(tokens: int, cost_usd: float | None, said: str) -> None:
    """Where tokens were counted and nobody knows their price, that is said."""
    used = Outcome(state=RunState.SUCCEEDED, usage=Usage(output_tokens=tokens), cost_usd=cost_usd)
    assert spent_text(used) == said


def test_stopped_run_keeps_what_was_written(run: Run) -> None:
    """The partial answer stays, and below it stands who stopped it and when, and how many steps it had taken."""
    ended = Outcome(state=RunState.STOPPED, answer="Half", stopped_by="U7", duration_s=42, steps=3)
    (part,) = render_result(replace(run, attempt=1), ended)
    assert blocks_of(part, "markdown")[0]["text"] == "Half"
    small_print = blocks_of(part, "context")[0]["elements"][0]["text"]
    assert small_print == "Stopped by <@U7> after 42 s · 3 steps"
    (unbegun,) = render_result(run, replace(ended, answer="", steps=0))
    assert unbegun.text == "Stopped by <@U7> before it began"
    assert not blocks_of(part, "context_actions")


def test_failed_run_says_what_happened(run: Run) -> None:
    """Sentence, code and run id, with the partial answer above."""
    ended = Outcome(
        state=RunState.FAILED, answer="Half", error_code=ErrorCode.SANDBOX_TIMEOUT, duration_s=600
    )
    (part,) = render_result(run, ended)
    assert blocks_of(part, "markdown")[0]["text"] == "Half"
    assert blocks_of(part, "section")[0]["text"]["text"] == error_text(ErrorCode.SANDBOX_TIMEOUT)
    assert f"`SANDBOX_TIMEOUT` · `{run.id}`" in blocks_of(part, "context")[0]["elements"][0]["text"]
    assert part.text == error_text(ErrorCode.SANDBOX_TIMEOUT)


@pytest.mark.parametrize(
    ("code", "offered"),
    [
        (ErrorCode.MODEL_OVERLOADED, ["orion_retry", "orion_show_log"]),
        (ErrorCode.MODEL_CONTEXT_EXCEEDED, ["orion_show_log"]),
    ],
)
def test_retry_is_offered_where_it_can_help(run: Run, code: ErrorCode, offered: list[str]) -> None:
    """A thread that is too long for the model is too long again; the sentence says what helps: a new one."""
    failed = Outcome(state=RunState.FAILED, error_code=code)
    (part,) = render_result(replace(run, attempt=1), failed)
    (actions,) = blocks_of(part, "actions")
    assert [button["action_id"] for button in actions["elements"]] == offered
    (unbegun,) = render_result(run, failed)
    assert len(blocks_of(unbegun, "actions")) == len(offered) - 1


@pytest.mark.parametrize(
    ("code", "attempt", "is_offered"),
    [
        (ErrorCode.REQUEST_INVALID, 0, False),
        (ErrorCode.REQUEST_INVALID, 1, True),
        (ErrorCode.NOT_ALLOWED, 0, True),
        (ErrorCode.INTERNAL, 0, True),
    ],
)
@pytest.mark.parametrize("text", ["settings", "forget 99", "remember so", "branch=main hello"])
def test_what_orion_refuses_by_itself_it_refuses_again(
    run: Run, text: str, code: ErrorCode, attempt: int, *, is_offered: bool
) -> None:
    """What an agent, a model's server or Orion's side made of it may end otherwise; who was not allowed may be, or somebody else is."""
    asked = replace(run, request=run.request.model_copy(update={"text": text}), attempt=attempt)
    (part,) = render_result(asked, Outcome(state=RunState.FAILED, error_code=code))
    buttons = [
        button["action_id"] for row in blocks_of(part, "actions") for button in row["elements"]
    ]
    assert ("orion_retry" in buttons) is is_offered


def test_a_limit_is_named(run: Run) -> None:
    """Which limit was reached is the sentence; the code is the same for all of them."""
    ended = Outcome(
        state=RunState.FAILED,
        error_code=ErrorCode.LIMIT_EXCEEDED,
        detail="its <files> took too much",
    )
    (part,) = render_result(run, ended)
    assert part.text == "Its &lt;files&gt; took too much. Please ask for a smaller step."
    (unnamed,) = render_result(run, replace(ended, detail=""))
    assert unnamed.text == error_text(ErrorCode.LIMIT_EXCEEDED)


@given(
    answer=st.text(max_size=30_000)
    | st.lists(st.sampled_from(["<&>" * 900, "# h\n", "word ", "\n\n"])).map("".join),
    outcome=st.sampled_from([RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED]),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_result_fits_slack(run: Run, answer: str, outcome: RunState) -> None:
    """Whatever the answer, each message has a text below 4,000 characters and blocks within their limits."""
    ended = Outcome(state=outcome, answer=answer, error_code=ErrorCode.INTERNAL)
    for parts in (render_result(run, ended), render_plain_result(run, ended)):
        assert parts
        for part in parts:
            assert 0 < len(part.text) < 4_000
            assert sum(len(block["text"]) for block in blocks_of(part, "markdown")) <= 10_000
            assert len(part.blocks) <= 10


def test_without_blocks_the_same_is_said(run: Run) -> None:
    """The line of facts stands below the answer, or below what is said instead of one."""
    ended = Outcome(state=RunState.SUCCEEDED, answer="Hello", duration_s=12, steps=3)
    (done,) = render_plain_result(run, ended)
    assert done.text == "Hello\n\n12 s · 3 steps"
    *rest, last = render_plain_result(run, replace(ended, answer="word\n" * 2_000))
    assert last.text.endswith("word\n\n12 s · 3 steps")
    assert not [part for part in rest if "3 steps" in part.text]
    failed = replace(ended, state=RunState.FAILED, error_code=ErrorCode.SANDBOX_TIMEOUT)
    _, why = render_plain_result(run, failed)
    assert why.text.startswith(error_text(ErrorCode.SANDBOX_TIMEOUT))
    assert why.text.endswith(f"\n`SANDBOX_TIMEOUT` · `{run.id}` · 12 s")
    stopped = replace(ended, state=RunState.STOPPED, answer="", steps=0)
    (part,) = render_plain_result(run, stopped)
    assert part.text == "Stopped before it began"
    (part,) = render_plain_result(run, replace(stopped, made_way=True))
    assert part.text == "Made way for a later message, which is answered with this one"


@pytest.mark.parametrize(
    ("request_changes", "said"),
    [
        ({"late_s": 12}, "asked 12 s ago, while I was away"),
        ({"late_s": 60}, "asked 1 min ago, while I was away"),
        ({"late_s": 3 * 3600 + 299}, "asked 3 h 4 min ago, while I was away"),
        (
            {"unseen": "why\n<b> & so?"},
            "asked: \u201cwhy &lt;b&gt; &amp; so?\u201d",
        ),
        ({"unseen": "w" * 500}, "www\u2026\u201d"),
    ],
)
def test_what_its_thread_does_not_show_of_a_question(
    run: Run, request_changes: dict[str, object], said: str
) -> None:
    """In the thinking message, in its progress, and in the end whichever it is, once in each."""
    run = replace(run, request=run.request.model_copy(update=request_changes))
    ended = Outcome(state=RunState.SUCCEEDED, answer="yes")
    messages = [
        render_thinking(run, QueuePosition(), capacity=1),
        render_progress(run, Progress(phase="Working", elapsed_s=1.0)),
        *render_result(run, ended),
        *render_plain_result(run, ended),
        *render_result(run, replace(ended, state=RunState.STOPPED)),
        *render_result(
            run, replace(ended, state=RunState.FAILED, error_code=ErrorCode.SANDBOX_TIMEOUT)
        ),
    ]
    for message in messages:
        shown = json.dumps(
            [message.text, [dict(block) for block in message.blocks]], ensure_ascii=False
        )
        assert shown.count(said) == 1


def test_manifest_names_exactly_what_is_used() -> None:
    """HTTP needs a public URL, Socket Mode none; agent_view alone is declared."""
    http = manifest(public_url="https://orion.test/", socket_mode=False)
    events = http["settings"]["event_subscriptions"]
    assert events["request_url"] == "https://orion.test/slack/events"
    assert http["settings"]["interactivity"]["request_url"] == events["request_url"]
    assert set(events["bot_events"]) == {
        *("app_mention", "message.channels", "message.groups", "message.im", "message.mpim"),
        *("agent_session_stopped", "app_home_opened", "reaction_added"),
        *("subteam_members_changed", "subteam_updated"),
    }
    assert "agent_view" in http["features"]
    assert "assistant_view" not in http["features"]
    socket = manifest(public_url=None, socket_mode=True)
    assert "request_url" not in json.dumps(socket)
    with pytest.raises(ValueError, match="public URL"):
        manifest(public_url=None, socket_mode=False)


def test_a_trace_is_linked_where_the_operator_wants_it(run: Run) -> None:
    """With the run's id, or a link to its page, below the answer and its buttons, and below a failure; not while nobody knows the address."""
    style = ReplyStyle(trace_link=lambda trace_id: f"https://traces.acme.org/{trace_id}")
    run = replace(run, trace_id="0123")
    said = f"<https://traces.acme.org/0123|trace> · `{run.id}`"
    done = Outcome(state=RunState.SUCCEEDED, answer="yes")
    for ended in (done, replace(done, state=RunState.FAILED, error_code=ErrorCode.INTERNAL)):
        (*_, last) = blocks_of(render_result(run, ended, style=style)[-1], "context")
        assert last["elements"][0]["text"] == said
        assert said not in str(render_result(run, ended))
        linked = replace(style, operators_page="https://orion.acme.org/ops")
        (*_, last) = blocks_of(render_result(run, ended, style=linked)[-1], "context")
        run_link = f"<https://orion.acme.org/ops/runs/{run.id}|run>"
        assert last["elements"][0]["text"] == f"<https://traces.acme.org/0123|trace> · {run_link}"


@pytest.mark.parametrize(
    ("repo", "said"),
    [("acme/api", "acme/api, chosen by <@U1>"), (NO_REPO, "no repository, chosen by <@U1>")],
)
def test_what_goes_on_in_a_repository_says_who_chose_it(run: Run, repo: str, said: str) -> None:
    """While it is worked on, and below the answer."""
    request = run.request.model_copy(update={"picked_repo": repo, "user": "U1"})
    run = replace(run, request=request)
    thinking = render_thinking(run, QueuePosition(), capacity=1)
    assert blocks_of(thinking, "context")[0]["elements"][0]["text"] == said
    done = Outcome(state=RunState.SUCCEEDED, answer="yes")
    (part,) = render_result(run, done)
    assert blocks_of(part, "context")[0]["elements"][0]["text"].startswith(f"{said} · ")


def test_of_several_repositories_each_has_a_button(run: Run) -> None:
    """As many as there may be, within Slack's limits; no thumbs below a question; without blocks the names are in the text."""
    candidates = (*(f"https://git.acme.org/{'deep/' * 20}r{n}" for n in range(9)), NO_REPO)
    ended = Outcome(state=RunState.SUCCEEDED, answer="Which one?", candidates=candidates)
    (part,) = render_result(run, ended)
    (block,) = blocks_of(part, "actions")
    buttons = block["elements"]
    assert [button["action_id"] for button in buttons] == list(PICK_ACTIONS)
    assert {button["value"] for button in buttons} == {run.id}
    labels = [button["text"]["text"] for button in buttons]
    assert labels[-1] == "No repository"
    assert all(len(label) <= 75 for label in labels)
    assert [label[-3:] for label in labels[:-1]] == [f"/r{n}" for n in range(9)]
    assert blocks_of(part, "context_actions") == []
    assert render_plain_result(run, ended)[0].text.startswith("Which one?")

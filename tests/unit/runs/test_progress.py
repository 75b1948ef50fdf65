"""What a person sees of an agent's events."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from agent_scripts.events import AgentEvent, PlanStep, TextDelta, ToolFinished, ToolStarted
from app.runs.testing import PlannedStep, ProgressTracker, StepState, ToolCall


@pytest.mark.parametrize("is_error", [False, True])
def test_progress_names_tools_masked_with_their_state(*, is_error: bool) -> None:
    """A tool shows with its name, its masked argument and its state, from its start on."""
    tracker = ProgressTracker(lambda text: text.replace("secret", "*"))
    tracker.enter("Thinking")
    assert tracker.current(elapsed_s=1).phase == "Thinking"
    tracker.feed(ToolStarted(tool_id="1", name="shell", argument="cat secret"))
    shown = tracker.current(elapsed_s=2)
    running = ToolCall(number=1, name="shell", argument="cat *", state=StepState.RUNNING)
    assert (shown.tools, shown.steps) == ((running,), 1)
    tracker.feed(ToolFinished(tool_id="1", is_error=is_error, output_bytes=3))
    (ended,) = tracker.current(elapsed_s=3).tools
    assert ended.state is (StepState.FAILED if is_error else StepState.DONE)
    assert tracker.current(elapsed_s=3).steps == 1


def test_of_many_tools_the_newest_are_shown() -> None:
    """All are counted; a late end of one that is shown no more changes nothing."""
    tracker = ProgressTracker(str)
    for number in range(60):
        tracker.feed(ToolStarted(tool_id=str(number), name="shell", argument="ls"))
    tracker.feed(ToolFinished(tool_id="0", is_error=True, output_bytes=0))
    shown = tracker.current(elapsed_s=1)
    assert [tool.number for tool in shown.tools] == list(range(11, 61))
    assert (shown.steps, shown.phase) == (60, "Working")


def test_a_plan_is_shown_as_it_was_told_last_and_is_no_step() -> None:
    """Its steps are masked, and the next telling replaces all of them."""
    tracker = ProgressTracker(lambda text: text.replace("secret", "*"))
    read = PlanStep(title="read secret", status="in_progress")
    tracker.feed(ToolStarted(tool_id="1", name="todo", argument="", plan=(read,)))
    shown = tracker.current(elapsed_s=1)
    assert shown.plan == (PlannedStep(title="read *", state=StepState.RUNNING),)
    assert (shown.tools, shown.steps) == ((), 0)
    done, new = PlanStep(title="a", status="completed"), PlanStep(title="b", status="pending")
    tracker.feed(ToolStarted(tool_id="1", name="todo", argument="", plan=(done, new)))
    states = [step.state for step in tracker.current(elapsed_s=1).plan]
    assert states == [StepState.DONE, StepState.PENDING]


def test_substance_differs_when_the_tool_does() -> None:
    """Two tools of one name are two things to show, elapsed time alone is none."""
    tracker = ProgressTracker(str)
    tracker.feed(ToolStarted(tool_id="1", name="shell", argument="ls"))
    first = tracker.current(elapsed_s=1)
    assert first.substance == tracker.current(elapsed_s=9).substance
    tracker.feed(ToolStarted(tool_id="2", name="shell", argument="pwd"))
    assert tracker.current(elapsed_s=1).substance != first.substance


@pytest.mark.parametrize("pieces", [["one"], ["\n\n", "tw", "o\n"], ["\n", "three", "\n\n\n"]])
def test_what_was_shown_of_a_text_is_added_to_alone(pieces: Sequence[str]) -> None:
    """Whatever newlines it has at its ends when the next tool starts: a stream takes back nothing."""
    tracker, shown = ProgressTracker(str), [""]
    for number in range(3):
        events: list[AgentEvent] = [TextDelta(text=piece) for piece in pieces]
        for event in (*events, ToolStarted(tool_id=str(number), name="shell", argument="ls")):
            tracker.feed(event)
            now = tracker.current(elapsed_s=1)
            shown.append(now.before + now.text)
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))
    assert shown[-1].count(pieces[-1].strip() or pieces[-2].strip()) == 3


def test_text_so_far_is_kept_and_bounded() -> None:
    """Deltas add up, a tool begins a new text, and only the newest part is kept."""
    tracker = ProgressTracker(str)
    for piece in ("Hel", "lo"):
        tracker.feed(TextDelta(text=piece))
    assert tracker.current(elapsed_s=0).text == "Hello"
    tracker.feed(ToolStarted(tool_id="1", name="shell", argument="ls"))
    assert tracker.current(elapsed_s=0).text == ""
    tracker.feed(TextDelta(text="x" * 50_000 + "end"))
    assert len(tracker.current(elapsed_s=0).text) == 12_000
    assert tracker.current(elapsed_s=0).text.endswith("end")


def test_while_people_are_waited_for_it_says_so() -> None:
    """However many at once; then it goes on with what it said."""
    tracker = ProgressTracker(str)
    tracker.enter("Working")
    with tracker.waiting(), tracker.waiting():
        assert tracker.current(elapsed_s=1).phase == "Waiting for a person's answer"
    assert tracker.current(elapsed_s=1).phase == "Working"

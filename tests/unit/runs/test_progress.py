"""What a person sees of an agent's events."""

from agent_scripts.events import TextDelta, ToolFinished, ToolStarted
from app.runs.testing import ProgressTracker


def test_progress_names_the_running_tool_masked() -> None:
    """While a tool runs its name and masked argument show; afterwards they are gone, and the count stays."""
    tracker = ProgressTracker(lambda text: text.replace("secret", "*"))
    tracker.enter("Thinking")
    assert tracker.current(elapsed_s=1).phase == "Thinking"
    tracker.feed(ToolStarted(tool_id="1", name="shell", argument="cat secret"))
    shown = tracker.current(elapsed_s=2)
    assert (shown.tool, shown.tool_argument, shown.steps) == ("shell", "cat *", 1)
    tracker.feed(ToolFinished(tool_id="1", is_error=False, output_bytes=3))
    assert tracker.current(elapsed_s=3).tool == ""
    assert tracker.current(elapsed_s=3).steps == 1


def test_substance_differs_when_the_tool_does() -> None:
    """Two tools of one name are two things to show, elapsed time alone is none."""
    tracker = ProgressTracker(str)
    tracker.feed(ToolStarted(tool_id="1", name="shell", argument="ls"))
    first = tracker.current(elapsed_s=1)
    assert first.substance == tracker.current(elapsed_s=9).substance
    tracker.feed(ToolStarted(tool_id="2", name="shell", argument="pwd"))
    assert tracker.current(elapsed_s=1).substance != first.substance


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

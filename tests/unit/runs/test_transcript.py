"""What is kept of a run's output."""

from app.runs.testing import HEAD_CHARS, MAX_CHARS, Transcript, last_lines


def _mask(line: str) -> str:
    return line.replace("hunter2", "[redacted]")


def test_lines_are_kept_in_order_and_masked() -> None:
    """A short log is whole."""
    transcript = Transcript()
    for line in ("one", "the word is hunter2", ""):
        transcript.add(line)
    assert transcript.text(_mask) == "one\nthe word is [redacted]\n"
    assert Transcript().text(_mask) == ""


def test_a_long_log_keeps_its_beginning_and_its_end() -> None:
    """Whole lines go from the middle, and it is said how many."""
    transcript = Transcript()
    count = 20_000
    for number in range(count):
        transcript.add(f"line {number:06d} " + "x" * 50)
    lines = transcript.text(_mask).split("\n")
    assert lines[0].startswith("line 000000 ")
    assert lines[-1].startswith(f"line {count - 1:06d} ")
    (gap,) = [index for index, line in enumerate(lines) if line.endswith("lines left out]")]
    left_out = int(lines[gap].split()[0][1:])
    assert left_out + len(lines) - 1 == count
    assert sum(len(line) + 1 for line in lines[:gap]) <= HEAD_CHARS
    assert sum(len(line) + 1 for line in lines) <= MAX_CHARS + 40


def test_one_endless_line_is_bounded_after_it_is_masked() -> None:
    """A secret at the place where it is cut does not show."""
    transcript = Transcript()
    transcript.add("hunter2" * MAX_CHARS)
    text = transcript.text(_mask)
    assert len(text) <= MAX_CHARS
    assert "hunter" not in text


def test_the_last_lines_are_whole() -> None:
    """A line that does not fit is left out, unless it is all there is."""
    assert last_lines("one\ntwo\nthree\n", max_chars=100) == "one\ntwo\nthree\n"
    assert last_lines("one\ntwo\nthree\n", max_chars=8) == "three\n"
    assert last_lines("x" * 50, max_chars=8) == "x" * 8

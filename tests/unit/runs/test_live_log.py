"""The file by which others follow a run that is going."""

from pathlib import Path

from app.runs.testing import MAX_BYTES, LiveLogs, RunId

RUN = RunId("run_1")


def test_lines_are_there_while_the_run_goes(tmp_path: Path) -> None:
    """Each at once, for the service's user only; nothing is left at the end, nor of a process that was killed."""
    logs = LiveLogs(tmp_path / "logs")
    with logs.record(RUN) as write:
        write("one")
        write("two \udcff")
        assert logs.path(RUN).read_text() == "one\ntwo ?\n"
        assert (tmp_path / "logs").stat().st_mode & 0o077 == 0
    with logs.record(RUN, goes_on=True) as write:  # the next slice of the run
        write("three")
        assert logs.path(RUN).read_text() == "one\ntwo ?\nthree\n"
    logs.remove(RUN)
    logs.remove(RUN)
    assert not logs.path(RUN).exists()
    logs.path(RUN).write_text("of a killed process")
    logs.clear()
    assert not logs.path(RUN).exists()


def test_another_attempt_is_another_file(tmp_path: Path) -> None:
    """Who follows the first one's sees it."""
    logs = LiveLogs(tmp_path)
    logs.path(RUN).write_text("first\n")
    with logs.path(RUN).open() as first, logs.record(RUN) as write:
        write("second")
        assert first.read() == "first\n"
        assert logs.path(RUN).read_text() == "second\n"


def test_no_disk_costs_no_run(tmp_path: Path) -> None:
    """Where no file can be made, lines go nowhere."""
    (tmp_path / "logs").write_text("in the way")
    with LiveLogs(tmp_path / "logs").record(RUN) as write:
        write("one")


def test_a_log_is_bounded(tmp_path: Path) -> None:
    """What is past the bound is in the record only."""
    logs = LiveLogs(tmp_path)
    half = "x" * (MAX_BYTES // 2)
    with logs.record(RUN) as write:
        for _ in range(3):
            write(half)
        assert logs.path(RUN).stat().st_size <= MAX_BYTES

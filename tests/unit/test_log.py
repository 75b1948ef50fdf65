"""One fact is one masked line, whoever logs it."""

import io
import json
import logging
from collections.abc import Callable

import pytest
import structlog

from app.errors import ErrorCode, OrionError
from app.log import _ExportFailures, configure_logging, get_logger
from app.redaction import Masker

CANARY = "canary-secret-4711"
Lines = Callable[[], list[dict[str, object]]]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(stream: io.StringIO) -> Lines:
    configure_logging(fmt="json", level="info", masker=Masker([CANARY]), stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_carries_event_context_and_time(lines: Lines) -> None:
    """Event, values, the run's context, level, logger and UTC time are keys of one line."""
    with structlog.contextvars.bound_contextvars(run_id="run_1", thread="T-C-1"):
        get_logger("app.runs").info("run.started", attempt=2)
    get_logger("app.runs").debug("run.unheard")
    (line,) = lines()
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "event": "run.started",
        "attempt": 2,
        "run_id": "run_1",
        "thread": "T-C-1",
        "level": "info",
        "logger": "app.runs",
    }


def test_no_secret_is_in_any_field(lines: Lines, stream: io.StringIO) -> None:
    """Events, values, nested values, field names, messages of libraries, exceptions and tracebacks are masked."""
    hush = "hush"
    get_logger("app").info(f"x.{CANARY}", value=CANARY, nested=[{"a": CANARY}], bot_token=hush)
    logging.getLogger("library").warning("said %s", CANARY, extra={"sandbox_id": CANARY})
    try:
        json.loads(f"{CANARY}: [")
    except ValueError as exc:
        bug = TypeError(CANARY)
        bug.__cause__ = exc
        get_logger("app").error("run.failed", exc_info=bug)
        logging.getLogger("library").exception("broken")
    assert len(lines()) == 4
    assert CANARY not in stream.getvalue()
    assert "hush" not in stream.getvalue()
    assert lines()[0]["value"] == "[redacted:secret]"


def test_only_bugs_have_tracebacks(lines: Lines) -> None:
    """A coded failure or one of the outside is told in one sentence, a bug with its stack."""
    for exc in (OrionError(ErrorCode.QUEUE_FULL, "full"), TimeoutError("slow"), KeyError("bug")):
        get_logger("app").error("run.failed", exc_info=exc)
    coded, outside, bug = lines()
    assert coded["error"] == "OrionError: full"
    assert "exception" not in coded
    assert "exception" not in outside
    assert "Traceback" not in str(outside)
    assert "KeyError" in str(bug["exception"])


def test_debug_shows_every_traceback(stream: io.StringIO) -> None:
    """At level debug an expected failure has its stack too."""
    configure_logging(fmt="json", level="DEBUG", masker=Masker(), stream=stream)
    get_logger("app").error("run.failed", exc_info=TimeoutError("slow"))
    assert "TimeoutError: slow" in json.loads(stream.getvalue())["exception"]


def test_libraries_are_tamed(lines: Lines) -> None:
    """Chatty libraries are heard from WARNING on, at whatever level the service is; each line once."""
    for name in (
        "slack_bolt.App",
        "httpx",
        "uvicorn.access",
        "sqlalchemy.engine",
        "langfuse",
    ):
        logging.getLogger(name).info("chatter")
    logging.getLogger("slack_bolt.App").warning("odd")
    logging.getLogger("uvicorn.error").error("no port")
    assert [line["event"] for line in lines()] == ["odd", "no port"]


def test_a_value_cannot_forge_a_line(stream: io.StringIO) -> None:
    """Line breaks and terminal escapes in events and values are shown, not obeyed."""
    configure_logging(fmt="console", level="info", masker=Masker(), stream=stream)
    get_logger("app").info("run.started", user="a\nrun.failed\x1b[2J")
    logging.getLogger("library").warning("first\nsecond")
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


def test_export_failures_are_counted_and_told_once_in_30_s() -> None:
    """A dead Langfuse costs one line with a count in 30 s; only lost batches count, not retries."""
    seconds = 100.0
    failures = _ExportFailures(now=lambda: seconds)
    exporter = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

    def log(name: str, level: int, message: str) -> logging.LogRecord | None:
        record = logging.LogRecord(name, level, "", 0, message, ("x",), None)
        return record if failures.filter(record) else None

    first = log(exporter, logging.WARNING, "Transient error %s, retrying")
    assert first is not None
    assert (first.getMessage(), first.__dict__["detail"]) == (
        "trace.export_failed",
        "Transient error x, retrying",
    )
    for _ in range(5):
        assert log(exporter, logging.ERROR, "Failed to export %s") is None
    assert (
        log("opentelemetry.sdk._shared_internal", logging.WARNING, "Queue full, dropping %s")
        is None
    )
    seconds += 31
    second = log("langfuse", logging.ERROR, "Failed to send %s")
    assert second is not None
    assert second.__dict__["count"] == 7
    assert failures.lost == 7
    assert log("app.runs", logging.ERROR, "mine %s") is not None

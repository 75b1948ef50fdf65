"""Decides what a log line looks like, which libraries may speak, and that nothing secret is in it.

One fact is one line: an event name `subject.past_verb` with values as keys. The service logs by `get_logger`, libraries
and the lower packages by stdlib `logging`; both end in the same handler, whose last processor before rendering masks.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Literal, TextIO, cast

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.types import EventDict, Processor, WrappedLogger
from typing_extensions import override

from app.errors import OrionError
from app.redaction import Masker

LogFormat = Literal["console", "json"]

EXPORT_LOG_INTERVAL_S: Final = 30.0
MAX_VALUE_CHARS: Final = 2_000
MAX_TRACEBACK_CHARS: Final = 8_000

# What a library may say at most, whatever the service's own level is.
_LIBRARY_LEVELS: Final = {
    "uvicorn": logging.WARNING,
    # One line a request, with the whole path: the service logs what it decided instead.
    "uvicorn.access": logging.WARNING,
    # Logs request bodies, so people's messages, at INFO. Source: slack-bolt 1.30, logger.messages, read 2026-11.
    "slack_bolt": logging.WARNING,
    "slack_sdk": logging.WARNING,
    "langfuse": logging.WARNING,
    "opentelemetry": logging.WARNING,
    "httpx": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore": logging.WARNING,
    "urllib3": logging.ERROR,
    "sqlalchemy": logging.WARNING,
    "alembic": logging.WARNING,
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
}
_CONTROL_CHARACTERS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): " ",
}


class _ExportFailures(logging.Filter):
    """Turns the trace exporter's stream of complaints into one line in 30 s, and counts what was lost.

    A dead Langfuse makes 77 lines a minute at 200 spans/s. Neither SDK has a counter, so their log lines are the only
    sign of a loss. Source: langfuse 5.0.4 and opentelemetry-sdk 1.45.2, measured 2026-11.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.lost = 0
        self._now = now
        self._unsaid = 0
        self._said_at: float | None = None
        self._lock = threading.Lock()

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("langfuse", "opentelemetry.")):
            return True
        message = record.getMessage()
        with self._lock:
            # Everything else at WARNING is a retry, by which nothing is lost yet.
            if record.levelno >= logging.ERROR or "dropp" in message.lower():
                self.lost += 1
            self._unsaid += 1
            now = self._now()
            if self._said_at is not None and now - self._said_at < EXPORT_LOG_INTERVAL_S:
                return False
            record.count, self._unsaid, self._said_at = self._unsaid, 0, now
        record.msg, record.args = "trace.export_failed", ()
        # One line: the cause in words, no stack of a library.
        record.exc_info, record.detail = None, message
        return True


_export_failures: Final = _ExportFailures()


def export_failures() -> int:
    """Returns how many batches of spans or scores were lost on their way to Langfuse since the process began."""
    return _export_failures.lost


def get_logger(name: str) -> BoundLogger:
    """Returns a logger whose lines carry `name`; usable at import, before `configure_logging`."""
    return structlog.stdlib.get_logger(name)


def configure_logging(
    *,
    fmt: LogFormat,
    level: str,
    masker: Masker,
    stream: TextIO | None = None,
    is_alone: bool = False,
) -> None:
    """Sends every log line of this process to `stream` (default: stderr). Harmless to repeat; the last call counts.

    `is_alone`: and to nobody else, as handlers that others have put there mask nothing.

    Raises:
        ValueError: unknown level.
    """
    is_debug = logging.getLevelNamesMapping().get(level.upper(), 0) == logging.DEBUG
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(_export_failures)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *_common_processors()],
            processors=[
                ProcessorFormatter.remove_processors_meta,
                _drop_noise,
                _describe_exception(is_debug=is_debug),
                _mask_with(masker),
                *_renderers(fmt, is_terminal=handler.stream.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [
        other
        for other in root.handlers
        if not is_alone and not isinstance(other.formatter, ProcessorFormatter)
    ]
    root.addHandler(handler)
    root.setLevel(level.upper())
    _tame_libraries(is_debug=is_debug)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_common_processors(),
            structlog.stdlib.PositionalArgumentsFormatter(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a second configure_logging must reach loggers made before it
    )


def _common_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _tame_libraries(*, is_debug: bool) -> None:
    for name, at_least in _LIBRARY_LEVELS.items():
        library = logging.getLogger(name)
        library.setLevel(at_least)
        library.propagate = True
        # langfuse gives httpx one of its own. Source: langfuse 5.0.4, logger.py, read 2026-11.
        library.handlers = [logging.NullHandler()]
    # `service.started` says it; but a failed start is told at ERROR here.
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if is_debug else logging.WARNING)


def _drop_noise(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    # uvicorn repeats its message here with escape sequences for a terminal.
    event.pop("color_message", None)
    return event


def _describe_exception(*, is_debug: bool) -> Processor:
    """`error` names the exception; the traceback only follows for bugs, or when debugging."""

    def describe(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        exc_info = event.pop("exc_info", None)
        event.pop("stack_info", None)
        if exc_info is True:
            exc_info = sys.exc_info()
        exc = exc_info[1] if isinstance(exc_info, tuple) else exc_info
        if not isinstance(exc, BaseException):
            return event
        event.setdefault("error", f"{type(exc).__name__}: {exc}")
        if is_debug or not _is_expected(exc):
            event["exception"] = "".join(traceback.format_exception(exc))
        return event

    return describe


def _is_expected(exc: BaseException) -> bool:
    """Failures that happen to a service that is sound: its own coded ones, and those of the outside."""
    has_code = isinstance(getattr(exc, "code", None), StrEnum)
    return has_code or isinstance(exc, OrionError | OSError)


def _mask_with(masker: Masker) -> Processor:
    def mask(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        masked = cast(dict[str, object], masker.mask_value(dict(event)))
        for key, value in masked.items():
            if isinstance(value, str):
                # Only now: before masking, a cut could leave half a secret. A traceback's end tells most.
                is_traceback = key == "exception"
                masked[key] = (
                    value[-MAX_TRACEBACK_CHARS:] if is_traceback else value[:MAX_VALUE_CHARS]
                )
        # A line break in a value would forge a second line.
        masked["event"] = str(masked.get("event", "")).translate(_CONTROL_CHARACTERS)
        return masked

    return mask


def _renderers(fmt: LogFormat, *, is_terminal: bool) -> list[Processor]:
    if fmt == "json":
        return [structlog.processors.JSONRenderer(ensure_ascii=False)]
    return [
        _escape_values,
        structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def _escape_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and key != "exception":
            event[key] = value.translate(_CONTROL_CHARACTERS)
    return event

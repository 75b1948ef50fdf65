"""Prints the steps of a run as they end: a trace for a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from app.runs.model import ModelCall, Progress, RunResult, Usage
from app.runs.ports import StepKind, TraceStep

Print = Callable[[str], None]


class ReportedStep:
    """A step whose facts are printed when it ends."""

    def __init__(self, name: str, write: Print) -> None:
        self._name = name
        self._write = write
        self._started = time.perf_counter()
        self._facts: list[str] = []
        self._failure = ""

    def set(self, **metadata: str | float | bool) -> None:
        self._facts += [f"{name}={value}" for name, value in metadata.items()]

    def fail(self, code: str, detail: str) -> None:
        self._failure = f"{code}: {detail}"

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        if error:
            seconds = (ended_at - started_at).total_seconds()
            self._write(f"  attempt {number} failed after {seconds:.2f} s: {error}")

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None:
        seconds = (ended_at - started_at).total_seconds()
        self._write(
            f"  tool {name}: {argument[:80]} ({seconds:.2f} s{', failed' if is_error else ''})"
        )

    def generation(self, call: ModelCall) -> None:
        seconds = (call.ended_at - call.started_at).total_seconds()
        tokens = f"{call.usage.input_tokens} in, {call.usage.output_tokens} out"
        self._write(f"  model {call.model}: HTTP {call.status}, {tokens} ({seconds:.2f} s)")

    def end(self) -> None:
        seconds = time.perf_counter() - self._started
        mark = "FAIL" if self._failure else "ok"
        self._write(
            f"{mark:4} {self._name:20} {seconds:7.3f} s  {self._failure or ' '.join(self._facts)}"
        )


class ReportedTrace:
    """A `RunTrace` that prints."""

    def __init__(self, write: Print) -> None:
        self._write = write

    @contextmanager
    def step(self, name: str, kind: StepKind = StepKind.SPAN) -> Iterator[TraceStep]:  # noqa: ARG002 - all look the same here
        step = ReportedStep(name, self._write)
        try:
            yield step
        except Exception as exc:
            step.fail(type(exc).__name__, str(exc))
            raise
        finally:
            step.end()

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None: ...

    def finish(self, result: RunResult, *, usage: Usage, delivery: str) -> None: ...


class SilentReply:
    """Nobody watches a verification's progress."""

    def show(self, progress: Progress) -> None: ...

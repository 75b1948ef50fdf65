"""`orion traces check`: whether Langfuse has the traces of the last runs, with their steps."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from app.cli.commands.probes import list_observations
from app.cli.commands.runs import open_records
from app.runs.model import Run, RunFileKind
from app.settings.settings import Settings
from app.tracing.steps import MODEL_CALL, StepRecord, read_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCheck:
    """The observations that Langfuse has of one run that is over, against the steps of its record."""

    run_id: str
    trace_id: str
    observations: int = 0
    missing_steps: int = 0
    """Of those that the record has."""
    left_out: str = ""
    """Why there is to be no trace; empty = there is to be one."""

    @property
    def is_ok(self) -> bool:
        return bool(self.left_out or (self.observations and not self.missing_steps))

    @property
    def row(self) -> Mapping[str, object]:
        return {**asdict(self), "ok": self.is_ok}

    @property
    def line(self) -> str:
        if self.left_out:
            return f"-    {self.run_id}  {self.left_out}"
        said = f"{self.observations} observation{'s' * (self.observations > 1)}"
        if not self.observations:
            said = "no trace"
        elif self.missing_steps:
            said += f", without {self.missing_steps} of the record's steps"
        return f"{'ok' if self.is_ok else 'FAIL':4} {self.run_id}  {self.trace_id}  {said}"


async def check_traces(settings: Settings, *, limit: int) -> Sequence[TraceCheck]:
    """Returns what Langfuse has of each of the last runs that are over, the newest first. Raises: TryError."""
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    from app.tracing.langfuse import is_sampled

    sampler = TraceIdRatioBased(settings.langfuse.sample_rate)
    checks = []
    async with open_records(settings) as store:
        for run in await store.recent(limit=limit):
            if not run.state.is_final:
                continue
            if run.reply_ts is None and not run.attempt:
                checks.append(_left_out(run, "refused, so there is none"))
            elif not is_sampled(run.trace_id, sampler):
                checks.append(_left_out(run, "left out by LANGFUSE_SAMPLE_RATE"))
            else:
                kept = await store.files.load(run.id, RunFileKind.STEPS)
                checks.append(await _check(settings, run, read_steps(kept)))
    return checks


async def _check(settings: Settings, run: Run, steps: Sequence[StepRecord]) -> TraceCheck:
    found = await list_observations(settings, run.trace_id)
    return TraceCheck(
        run_id=run.id,
        trace_id=run.trace_id,
        observations=len(found),
        missing_steps=count_missing(steps, found),
    )


def _left_out(run: Run, why: str) -> TraceCheck:
    return TraceCheck(run_id=run.id, trace_id=run.trace_id, left_out=why)


def count_missing(steps: Sequence[StepRecord], names: Collection[str]) -> int:
    """Returns how many of a record's steps are not among a trace's observations; a model call has its model's name in the record."""
    found = Counter(names)
    unfound = Counter(step.name for step in steps) - found
    return max(0, unfound.total() - found[MODEL_CALL])

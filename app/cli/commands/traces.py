"""`orion traces check`: whether Langfuse has the traces of the last runs."""

from collections.abc import Callable

from app.cli.commands.probes import TryError, count_observations
from app.cli.commands.runs import open_records
from app.settings.settings import Settings


async def check_traces(settings: Settings, *, limit: int, write: Callable[[str], None]) -> bool:
    """Writes a line for each of the last runs that are over; returns whether none is missing that should be there."""
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    from app.tracing.langfuse import is_sampled

    sampler = TraceIdRatioBased(settings.langfuse.sample_rate)
    async with open_records(settings) as store:
        runs = [run for run in await store.recent(limit=limit) if run.state.is_final]
    is_whole = True
    for run in runs:
        if run.reply_ts is None and not run.attempt:
            write(f"-    {run.id}  refused, so there is none")
            continue
        if not is_sampled(run.trace_id, sampler):
            write(f"-    {run.id}  left out by LANGFUSE_SAMPLE_RATE")
            continue
        try:
            count = await count_observations(settings, run.trace_id)
        except TryError as exc:
            write(f"FAIL {exc}")
            return False
        is_whole &= count > 0
        said = f"{count} observation{'s' * (count > 1)}" if count else "no trace"
        write(f"{'ok' if count else 'FAIL':4} {run.id}  {run.trace_id}  {said}")
    if not runs:
        write("no run is over yet")
    return is_whole

"""A store as two weeks of a busy company leave it: some 100,000 runs that are over, in their threads, with what they have cost."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import sqlalchemy as sa

from app.errors import ErrorCode
from app.playground.slack.types import TEAM_ID
from app.runs.session import SessionStatus
from app.runs.testing import (
    EffectiveSetting,
    Outcome,
    Run,
    RunFileKind,
    RunId,
    RunRequest,
    RunState,
    Session,
    SpentCall,
    Surface,
    Transcript,
    Usage,
    run_id_for,
    session_id_for,
    to_micro,
)
from app.store.engine import open_engine
from app.store.runs import _to_row as row_of_run
from app.store.runs import open_store
from app.store.sessions import _to_row as row_of_session
from app.store.tables import runs, sessions
from tests.unit.agent_scripts.transcripts import recorded

KEPT = timedelta(days=13)
"""A day less than Orion keeps by default, so that nothing goes while it is looked at."""
PEOPLE, CHANNELS, RUNS_OF_THREAD = 400, 60, 3
FAILED, STOPPED = 0.07, 0.03
"""Shares."""
AT_ONCE = 2_000
"""Rows in one transaction."""
SEED = 20261201
CODES = (
    ErrorCode.AGENT_IDLE,
    ErrorCode.AGENT_EXECUTION_FAILED,
    ErrorCode.MODEL_OVERLOADED,
    ErrorCode.MODEL_RATE_LIMITED,
    ErrorCode.SANDBOX_LOST,
    ErrorCode.SANDBOX_TIMEOUT,
)
MODELS = (
    ("claude", "claude-sonnet-5-5"),
    ("codex", "gpt-5.4"),
    ("anthropic", "claude-opus-5"),
    ("gemini", "gemini-3-pro"),
)
SENTENCE = "The shop waits for a migration that nobody has asked for since the last release. "
EFFECTIVE = tuple(
    EffectiveSetting(name=name, value=value, source=source)
    for name, value, source in (
        ("agent", "claude", "ORION_AGENT"),
        ("sandbox", "local", "channel"),
        ("repository", "acme/shop", "you"),
        ("network", "pypi, npm", "orion.toml"),
    )
)
LONG_RUN = timedelta(minutes=10)
CALL_LINES = slice(1, 16)
"""Of the recording with tools: what one tool call prints, and what it came to."""
CALLS = 40


async def fill_store(path: Path, count: int) -> RunId:
    """Makes it, with so many runs; returns the id of one that took ten minutes. Of that one alone the log is there, as nothing that lists runs reads logs.

    By the tables themselves: one by one it would take half an hour.
    """
    now = datetime.now(UTC)
    made = _made(count, now)
    async with open_store(path) as store:
        with open_engine(path) as engine:
            while some := list(islice(made, AT_ONCE)):
                await asyncio.to_thread(_write, engine, some)
                await store.spending.add([_call_of(run) for run in some])
        dice = random.Random(SEED)  # noqa: S311 - the same run each time
        long_run = _make(0, now - KEPT, dice, took=LONG_RUN)
        await store.add(long_run)
        await store.files.save(long_run.id, RunFileKind.LOG, _log_of(long_run))
    return long_run.id


def _write(engine: sa.Engine, some: Sequence[Run]) -> None:
    begun = [run for run in some if run.request.message_ts == run.thread.thread_ts]
    with engine.begin() as connection:
        connection.execute(sa.insert(runs), [row_of_run(run) for run in some])
        connection.execute(sa.insert(sessions), [row_of_session(_session_of(run)) for run in begun])


def _made(count: int, now: datetime) -> Iterator[Run]:
    """The oldest first, and the same each time."""
    dice = random.Random(SEED)  # noqa: S311
    for number in range(1, count + 1):
        at = now - KEPT * ((count - number + 1) / (count + 1))
        yield _make(number, at, dice, took=timedelta(seconds=dice.expovariate(1 / 60)))


def _make(number: int, at: datetime, dice: random.Random, *, took: timedelta) -> Run:
    """A run that is over; three in a row are of one thread."""
    first = number - number % RUNS_OF_THREAD
    channel = f"C0STORED{first % CHANNELS}"
    agent, model = MODELS[0] if took is LONG_RUN else dice.choice(MODELS)
    request = RunRequest(
        run_id=run_id_for(team=TEAM_ID, channel=channel, message_ts=_ts(number)),
        team=TEAM_ID,
        channel=channel,
        thread_ts=_ts(first),
        message_ts=_ts(number),
        user=f"U0STORED{dice.randrange(PEOPLE)}",
        text=f"No. {number}: {SENTENCE * dice.randint(1, 4)}",
        surface=Surface.CHANNEL,
        received_at=at,
    )
    outcome = _outcome(dice, took_s=took.total_seconds(), can_fail=took is not LONG_RUN)
    return Run(
        id=request.run_id,
        request=request,
        state=outcome.state,
        created_at=at,
        placed_at=at,
        started_at=at,
        deadline_at=at + timedelta(minutes=30),
        ended_at=at + took,
        reply_ts=_ts(number),
        attempt=1,
        agent=agent,
        model=model,
        provider=dice.choice(("local", "docker")),
        effective=EFFECTIVE,
        sandbox_id=f"sb_{number:016x}",
        outcome=outcome,
        delivery="sent" if dice.random() < 0.99 else "failed(channel_not_found)",
        trace_id=f"{number:032x}",
    )


def _outcome(dice: random.Random, *, took_s: float, can_fail: bool) -> Outcome:
    luck = dice.random() if can_fail else 1.0
    state = RunState.SUCCEEDED
    if luck < FAILED + STOPPED:
        state = RunState.FAILED if luck < FAILED else RunState.STOPPED
    usage = Usage(input_tokens=dice.randrange(20_000), output_tokens=900, model_calls=1)
    return Outcome(
        state=state,
        answer=SENTENCE * dice.randint(2, 20),
        error_code=dice.choice(CODES) if state is RunState.FAILED else None,
        stopped_by="U0STORED1" if state is RunState.STOPPED else None,
        duration_s=took_s,
        steps=dice.randrange(30),
        usage=usage,
        cost_usd=usage.tokens * 3e-6,
    )


def _ts(number: int) -> str:
    return f"1795{number:06d}.000100"


def _call_of(run: Run) -> SpentCall:
    """Of all its model calls the only one that is kept here."""
    request, result = run.request, run.result
    return SpentCall(
        id=f"call-{run.id}",
        run_id=run.id,
        agent=run.agent,
        model=run.model,
        team=request.team,
        user=request.user,
        channel=request.channel,
        at=run.created_at,
        usage=result.usage,
        cost=to_micro(result.cost_usd or 0),
    )


def _session_of(run: Run) -> Session:
    session_id = session_id_for(run.thread)
    return Session(
        id=session_id,
        name=f"brave-otter-{session_id[4:]}",
        thread=run.thread,
        provider=run.provider,
        status=SessionStatus.STOPPED,
        agent=run.agent,
        model=run.model,
        prompt=run.request.text[:200],
        repo="acme/shop",
        created_at=run.created_at,
        used_at=run.created_at,
        snapshot_slug=f"snap-{session_id}",
    )


def _log_of(run: Run) -> str:
    """Claude Code's recording with tools, its first call made again and again over the run's time; as Orion keeps it."""
    lines, _ = recorded("claude", "tools")
    said = [lines[0]]
    for number in range(CALLS):
        said += [line.replace("_offline_", f"_{number}_") for line in lines[CALL_LINES]]
    said += lines[CALL_LINES.stop :]
    assert run.started_at is not None
    kept = Transcript()
    for number, line in enumerate(said):
        at = run.started_at + LONG_RUN * (number / (len(said) - 1))
        kept.add(f"{at:%H:%M:%S.%f}"[:-3] + f" | {line}")
    return kept.text(str)

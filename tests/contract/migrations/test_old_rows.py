"""What an older Orion has written, brought along: sums from its calls, and a real file of its."""

import asyncio
import gzip
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import (
    AgentMemory,
    Defaults,
    Run,
    RunFileKind,
    RunId,
    RunState,
    Session,
    SessionStatus,
    SpentCall,
    Thread,
    Usage,
)
from app.store.engine import UnreadableStoreError
from tests.building import make_run
from tests.contract.migrations.database import NEWEST, Database, open_once

OLD_FILE = Path("tests/data/store/version-6.db.gz")
"""By the Orion whose newest tables were those, from an `orion serve` that answered and was stopped; some rows by its stores alone."""
SEALED_WITH = "an-own-keys-secret-for-tests-only-0123456789"


async def test_sums_of_days_begin_with_what_was_spent(database: Database) -> None:
    """Of yesterday and today: a budget that was used up stays so; keys of people and unknown costs count for none."""
    now = datetime.now(UTC)
    calls = [
        SpentCall(
            id=f"{number}",
            run_id=RunId("run_1"),
            agent="claude",
            model="m",
            team="T1",
            user=user,
            channel="C1",
            at=now - timedelta(days=age),
            usage=Usage(),
            cost=cost,
            is_own_key=is_own_key,
        )
        for number, (user, age, cost, is_own_key) in enumerate(
            [
                ("U1", 0, 5, False),
                ("U2", 0, 7, False),
                ("U1", 0, None, False),
                ("U1", 0, 9, True),
                ("U1", 30, 11, False),
            ]
        )
    ]
    async with database.open() as store:
        await store.spending.add(calls)
    kept = ("by", "until", "environment")
    added = (
        *("spent_days", "grants", "grant_calls", "installation"),
        *(
            "welcomes",
            "muted_threads",
            "channel_notes",
            "heard",
            "approvals",
            "approval_hits",
            "accounts",
            "account_codes",
            "pull_requests",
            "slack_facts",
            "audit",
        ),
    )
    database.execute(
        *(f"DROP TABLE orion_{name}" for name in added),
        "ALTER TABLE orion_runs DROP COLUMN checkpoint",
        "ALTER TABLE orion_runs DROP COLUMN drained",
        "ALTER TABLE orion_runs DROP COLUMN effective",
        *(f"DROP INDEX ix_orion_runs_{name}" for name in ("created", "delivery")),
        *(
            f"ALTER TABLE orion_processes DROP COLUMN {name}"
            for name in ("settings", "host", "version")
        ),
        *(f"ALTER TABLE orion_sessions DROP COLUMN kept_{name}" for name in kept),
        "ALTER TABLE orion_schema DROP COLUMN oldest",
        "UPDATE orion_schema SET version = 10",
    )
    assert database.migrate() == (10, NEWEST)
    async with database.open() as store:
        assert await store.spending.sums(now.date()) == {
            ("user", "T1", "U1"): 5,
            ("user", "T1", "U2"): 7,
            ("channel", "T1", "C1"): 12,
            ("all", "", ""): 12,
        }
        assert not await store.spending.sums((now - timedelta(days=30)).date())


@pytest.fixture
def old(tmp_path: Path) -> Database:
    """A database that an older Orion has worked with."""
    path = tmp_path / "orion.db"
    path.write_bytes(gzip.decompress(OLD_FILE.read_bytes()))
    return Database(path)


async def test_an_old_file_is_brought_along(old: Database) -> None:
    """It waits for `migrate`; then all that was in it is there, and people go on where they were."""
    with pytest.raises(UnreadableStoreError, match=r"older Orion .*version 6.*`orion migrate`"):
        await open_once(old)
    assert await asyncio.to_thread(old.migrate) == (6, NEWEST)
    async with old.open() as store:
        await store.examine()
        runs = {run.request.text: run for run in await store.recent(limit=100)}
        _assert_runs_are_there(runs)
        answered = runs["run: echo kept > notes.txt"]
        assert "echo kept" in await store.files.load(answered.id, RunFileKind.LOG)
        assert "+kept" in await store.files.load(answered.id, RunFileKind.PATCH)
        calls = await store.spending.of_run(answered.id)
        assert len(calls) == answered.result.usage.model_calls == 2
        (call,) = await store.spending.of_run(runs["fix the build again"].id)
        assert (call.cost, call.is_own_key, call.usage.output_tokens) == (250_000, True, 4)
        wanted = Defaults(
            agent="claude",
            model="opus",
            model_agent="claude",
            sandbox="docker",
            repo="acme/api",
            branch="main",
        )
        assert await store.defaults.get("T0PLAY", "U0OLD") == wanted
        keys = await store.own_keys([SEALED_WITH]).of("T0PLAY", "U0OLD")
        assert keys == {"anthropic": "sk-ant-a-key-of-a-person"}
        _assert_sessions_are_there({one.name: one for one in await store.sessions.all()})


@pytest.mark.parametrize(
    "change",
    ["UPDATE orion_runs SET cost_usd = 9e999", "UPDATE orion_runs SET cost_usd = -1.0"],
)
async def test_a_cost_of_an_old_file_that_is_no_money_is_unknown(
    old: Database, change: str
) -> None:
    """An agent's word was once taken as it came."""
    old.execute(change)
    await asyncio.to_thread(old.migrate)
    async with old.open() as store:
        runs = await store.recent(limit=100)
        assert {run.result.cost_usd for run in runs} == {None}
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        assert {one.cost for one in await store.spending.of_runs(long_ago)} == {None}


def _assert_runs_are_there(runs: Mapping[str, Run]) -> None:
    states = {text: run.state for text, run in runs.items()}
    assert states == {
        "what is the weather?": RunState.SUCCEEDED,
        "run: echo kept > notes.txt": RunState.SUCCEEDED,
        "!context": RunState.FAILED,
        "settings model=opus": RunState.SUCCEEDED,
        "fix the build \x00 now": RunState.PLACED,
        "fix the build again": RunState.FAILED,
    }
    assert runs["!context"].result.error_code is ErrorCode.MODEL_CONTEXT_EXCEEDED
    assert "offline model" in runs["what is the weather?"].result.answer
    assert runs["run: echo kept > notes.txt"].result.steps == 1
    failed = runs["fix the build again"]
    assert (failed.result.error_code, failed.part_ts) == (ErrorCode.AGENT_IDLE, ("1.1", "1.2"))
    assert failed.result.usage == Usage(input_tokens=3, output_tokens=4)
    assert (failed.result.cost_usd, failed.revision) == (0.25, 0)


def _assert_sessions_are_there(sessions: Mapping[str, Session]) -> None:
    moved = sessions["patient-heron"]
    assert moved.thread == Thread(team="T0PLAY", channel="C0OLD", thread_ts="1795302364.000100")
    assert (moved.provider, moved.status) == ("vercel", SessionStatus.RUNNING)
    assert moved.elsewhere == {"docker": "image-1"}
    assert moved.snapshots == {"docker": "image-1", "vercel": "snap_2"}
    assert (moved.detached, moved.detached_environment) == ("env_3", "env_3")
    assert (moved.base_branch, moved.chosen_model) == ("main", "opus")
    assert moved.memory == AgentMemory(
        session_id="11111111-2222-4333-8444-555555555555", until_ts="1795302365.000200"
    )
    # What was heard by another memory than the one that is kept says nothing of it.
    assert sessions["sudden-lynx"].memory == AgentMemory(
        session_id="bbbbbbbb-2222-4333-8444-555555555555"
    )
    (kept,) = (one for one in sessions.values() if one.provider == "local" and one.snapshot_slug)
    assert kept.memory.is_unnamed
    assert (kept.elsewhere, kept.detached, kept.base_branch) == ({}, "", "")


async def test_an_old_file_is_written_on(old: Database) -> None:
    """A waiting run begins, a session is changed, a new one is added."""
    await asyncio.to_thread(old.migrate)
    async with old.open() as store:
        (waiting,) = await store.unfinished()
        (claimed,) = await store.leases.claim(slots=1, waits_s=1e9)
        assert claimed == waiting
        begun = await store.begin(waiting, agent="claude")
        assert (begun.state, begun.attempt, begun.agent) == (RunState.RUNNING, 1, "claude")
        (session,) = await store.sessions.find("patient-heron")
        changed = await store.sessions.update(session.id, detached="", elsewhere={})
        assert changed is not None
        assert (changed.detached_environment, changed.elsewhere) == ("", {})
        await store.add(make_run())
        assert await store.get(make_run().id) == make_run()

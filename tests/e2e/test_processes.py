"""Several processes of one Orion on one database: who hears, who answers, and what becomes of a run when its process is gone."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import psycopg
import pytest

from app.errors import ErrorCode
from app.runs.testing import RunState
from app.store.runs import open_store
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, World, beside, text_of
from tests.e2e.orion_process import OrionProcess, new_state_dir
from tests.plain_http import NO_TLS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.postgresql,
    pytest.mark.timeout(180),
]

FRONT, WORKER = ("app.cli", "serve", "--no-work"), ("app.cli", "worker")
SLOW_WORDS = "offline model and I write"
ANSWERED_WITHIN_S = 60.0
DEAD_WITHIN_S = 2.0


@asynccontextmanager
async def workers_of(stage: Stage, *names: str) -> AsyncIterator[list[OrionProcess]]:
    async with AsyncExitStack() as stack:
        workers = [beside(stage.orion, name, command=WORKER) for name in names]
        for worker in workers:
            stack.push_async_callback(worker.reap)
            await worker.start()
        yield workers
    assert [line for worker in workers for line in worker.tracebacks()] == []


def _did(process: OrionProcess, event: str, run_id: str) -> bool:
    return any(line.get("run_id") == run_id for line in process.log_lines(event))


async def test_one_hears_and_another_answers(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """A front places and works at nothing; a worker answers and hears of nothing; both are healthy, and end in order."""
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url, command=FRONT) as stage,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False, timeout=10) as http,
    ):
        ts = await stage.client.say("@Orion run: echo 4711")
        await stage.thinking(ts)
        async with workers_of(stage, "worker") as (worker,):
            assert "4711" in text_of(await stage.answer(ts))
            run_id = stage.run_id(ts)
            assert _did(stage.orion, "run.placed", run_id)
            assert not _did(stage.orion, "run.started", run_id)
            assert _did(worker, "run.started", run_id)
            assert not _did(worker, "run.placed", run_id)
            assert "4711" in await stage.ask("@Orion what did I say?", thread_ts=ts)
            for process, hears in ((stage.orion, True), (worker, False)):
                ready = await http.get(f"{process.url}/readyz")
                assert ready.status_code == 200, ready.text
                events = await http.post(f"{process.url}/slack/events", content=b"{}")
                assert (events.status_code != 404) is hears
            _, told = await stage.cli("doctor")
            assert "2 running, by host and pid: " in told
            assert f":{stage.orion.pid} (without work)" in told
            assert f":{worker.pid}" in told
            assert len(await _hosts(postgres_url)) == 1
            assert await worker.terminate() == 0


@pytest.mark.long
async def test_a_killed_workers_run_is_answered_by_another(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """kill -9 in the middle of it: within 60 s the answer stands, once, and nothing of the first attempt lives."""
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url, command=FRONT) as stage,
        workers_of(stage, "first") as (first,),
    ):
        ts = await stage.client.say("@Orion !slow 12")
        await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        async with workers_of(stage, "second") as (second,):
            killed_at = time.monotonic()
            os.kill(first.pid, signal.SIGKILL)
            await stage.answer(ts)
            assert time.monotonic() - killed_at < ANSWERED_WITHIN_S
            record = await stage.record(ts)
            fault("Processes: one is killed").assert_holds(record)
            assert record.attempt == 2
            assert _did(second, "run.finished", record.id)
            assert len(await stage.bot_messages(ts)) == 1


@pytest.mark.long
async def test_stop_reaches_the_process_that_works(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """Said to the front, heard by the worker: the agent is dead within 2 s."""
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url, command=FRONT) as stage,
        workers_of(stage, "worker") as (worker,),
    ):
        ts = await stage.client.say("@Orion !slow 60")
        await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        said_at = time.monotonic()
        await stage.client.say("@Orion stop", thread_ts=ts)
        while worker.sandbox_processes():
            await asyncio.sleep(0.02)
        assert time.monotonic() - said_at <= DEAD_WITHIN_S
        await stage.answer(ts)
        assert (await stage.record(ts)).state is RunState.STOPPED


@pytest.mark.long
async def test_stop_reaches_a_process_that_is_told_to_end(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """While what goes on has its ten seconds: it is stopped, not handed over."""
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url, command=FRONT) as stage,
        workers_of(stage, "worker") as (worker,),
    ):
        ts = await stage.client.say("@Orion !slow 60")
        await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        os.kill(worker.pid, signal.SIGTERM)
        await worker.until_logged("service.draining", 1, timeout_s=10)
        said_at = time.monotonic()
        await stage.client.say("@Orion stop", thread_ts=ts)
        while worker.sandbox_processes():
            await asyncio.sleep(0.02)
        assert time.monotonic() - said_at <= DEAD_WITHIN_S
        await stage.answer(ts)
        record = await stage.record(ts)
        assert (record.state, record.attempt) == (RunState.STOPPED, 1)


@pytest.mark.long
async def test_what_waits_goes_on_when_a_worker_ends(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """A rolling restart: each question that waits or goes is answered once, by whoever is there."""
    settings = {"ORION_DATABASE_URL": postgres_url, "ORION_MAX_CONCURRENT_RUNS": "1"}
    async with (
        start_orion(world, **settings, command=FRONT) as stage,
        workers_of(stage, "first") as (first,),
    ):
        asked = [await stage.client.say(f"@Orion !slow {n}") for n in (20, 2, 2)]
        await stage.client.wait_for_reply(asked[0], lambda reply: SLOW_WORDS in text_of(reply))
        async with workers_of(stage, "second", "third"):
            assert await first.terminate() == 0
            for ts in asked:
                await stage.answer(ts)
                assert (await stage.record(ts)).state is RunState.SUCCEEDED
                assert len(await stage.bot_messages(ts)) == 1


@pytest.mark.long
async def test_a_worker_whom_slack_does_not_know_takes_nothing(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """What it did nobody would hear of: it ends and names the setting, and another one answers."""
    async with start_orion(world, ORION_DATABASE_URL=postgres_url, command=FRONT) as stage:
        stranger = beside(stage.orion, "stranger", command=WORKER)
        stranger.environment["SLACK_BOT_TOKEN"] = "xoxb-of-nobody"  # noqa: S105
        try:
            await stranger.launch()
            assert await stranger.died(timeout_s=30)
            assert stranger.exit_code == 1
            assert stranger.log.splitlines()[-1].endswith(
                "orion cannot start: SLACK_BOT_TOKEN: Slack refuses it: invalid_auth"
            )
        finally:
            await stranger.reap()
        ts = await stage.client.say("@Orion hello")
        async with workers_of(stage, "worker"):
            await stage.answer(ts)


async def _hosts(url: str) -> set[str]:
    """That processes say they are on, where each says one."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        found = await connection.execute("SELECT host FROM orion_processes")
        return {str(host) for (host,) in await found.fetchall() if host}


async def test_threads_files_are_kept_in_one_place(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """A worker with another state directory would begin every thread anew: it says so and does not start; a front may."""
    async with start_orion(world, ORION_DATABASE_URL=postgres_url) as stage:
        elsewhere = new_state_dir(stage.orion.state_dir.parent)
        for command, starts in ((WORKER, False), (FRONT, True)):
            process = beside(stage.orion, command[-1], command=command)
            process.environment["ORION_STATE_DIR"] = str(elsewhere)
            try:
                if starts:
                    await process.start()
                    assert len(await _hosts(postgres_url)) == 2
                    continue
                await process.launch()
                assert await process.died(timeout_s=30)
                assert process.exit_code == 1
                said = process.log.splitlines()[-1]
                assert "local sandboxes keep threads' files where they run" in said
                assert f":{stage.orion.pid} works on the same database" in said
            finally:
                await process.reap()


def _line_of(part: str, told: str) -> str:
    (line,) = (line for line in told.splitlines() if line[5:].startswith(f"{part} "))
    return line


async def test_settings_that_differ_are_named(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """The second process says which, and from whom; so does the doctor, from where it is asked. No value is told."""
    ours, theirs = "https://ours.example.com", "https://theirs.example.com"
    settings = {"ORION_DATABASE_URL": postgres_url, "ORION_PUBLIC_URL": ours}
    async with start_orion(world, **settings, command=FRONT) as stage:
        _, told = await stage.cli("doctor")
        assert "ORION_PUBLIC_URL" not in _line_of("engine", told)
        worker = beside(stage.orion, "worker", command=WORKER)
        worker.environment["ORION_PUBLIC_URL"] = theirs
        try:
            await worker.start()
            (said,) = (line["says"] for line in worker.log_lines("settings.differ"))
            assert said.startswith("ORION_PUBLIC_URL is not as in ")
            assert said.endswith(f":{stage.orion.pid}")
            assert stage.orion.log_lines("settings.differ") == []
            code, told = await stage.cli("doctor")
            assert code == 1
            assert f"here ORION_PUBLIC_URL is not as in {said.split()[-1].split(':')[0]}" in told
            assert f":{worker.pid}  ->  give all the same" in told
            for text in (worker.log, _line_of("engine", told)):
                assert ours not in text
                assert theirs not in text
            assert await worker.terminate() == 0
        finally:
            await worker.reap()


async def test_sandboxes_of_a_host_cannot_be_chosen_where_others_work_elsewhere(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """The thread's next run may go to one of them, which would find nothing of it: the person is told who that is."""
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url) as stage,
        open_store(postgres_url) as elsewhere,
    ):
        elsewhere.leases.describe(place="", is_working=True, host="elsewhere")
        await elsewhere.leases.join()
        ts = await stage.client.say("@Orion /docker hello")
        told = text_of(await stage.answer(ts))
        assert "docker cannot be used: its sandboxes keep threads' files where they run" in told
        assert f"{elsewhere.leases.process.name} works on another host" in told
        assert (await stage.record(ts)).result.error_code is ErrorCode.SANDBOX_CREATION_FAILED

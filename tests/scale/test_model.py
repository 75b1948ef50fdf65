"""The simulation against what really happens, and against arithmetic."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.slack.limits import CHANNEL_RATES, METHOD_RATES, Rate
from tests.bench.limited import measure
from tests.bench.load import percentile
from tests.dispatchers import Crowd, accept, accepting, new_run
from tests.postgres import create_database, run_postgres
from tests.scale.figures import COMMITTED, FiguresError, read_figures
from tests.scale.load import HOUR_S, Question, Workspace, busiest_hours
from tests.scale.model import POST, READ, STATUS, UPDATE, Setup, Simulated, simulate
from tests.waiting import until

FIGURES = read_figures()
UNLIMITED = {name: Rate(burst=10**6, per_s=1e6) for name in (POST, UPDATE, STATUS, READ)}
HANDED_OUT = Setup(fronts=1, slots=8, call_s=0, start_s=0, methods=UNLIMITED, channels={})
"""Nothing but the handing out of runs, as `tests/bench/workers.py` has it."""
FREE = replace(FIGURES, mention_cpu_s=0, run_cpu_s=0, going_cpu=0, commit_s=0)
IN_SLACK = Setup(slots=1000, call_s=0, start_s=0)
"""Nothing but Slack's limits."""


def ask(count: int, *, work_s: float, channels: int = 0, people: int = 12) -> Sequence[Question]:
    """So many at once; in a channel each, unless a number is given."""
    return [
        Question(
            at_s=0,
            user=f"U{number % people}",
            channel=f"C{number % (channels or count)}",
            thread=f"T{number}",
            is_reply=False,
            work_s=work_s,
        )
        for number in range(count)
    ]


def last_answer_s(played: Simulated) -> float:
    return max(run.answered_s for run in played.runs if run.answered_s is not None)


def test_slots_and_processes_divide_the_time() -> None:
    """96 runs of 2 s in 8 slots are twelve rounds for one process, four for each of three, in even shares."""
    alone, together = (
        simulate(ask(96, work_s=2), replace(HANDED_OUT, processes=count), FREE, seed=1)
        for count in (1, 3)
    )
    assert last_answer_s(alone) == pytest.approx(24 + 0.8, abs=0.8)
    assert last_answer_s(together) == pytest.approx(8 + 0.8, abs=0.8)
    assert max(together.begun) <= 1.25 * 32


@pytest.mark.parametrize("processes", [1, 3])
def test_a_workspace_gets_its_answers_at_the_rate_of_updates(processes: int) -> None:
    """Each answer is an update: after the burst, 0.8 a second, over all processes together."""
    rate = METHOD_RATES[UPDATE]
    setup = replace(IN_SLACK, processes=processes, methods={**METHOD_RATES, POST: UNLIMITED[POST]})
    played = simulate(ask(200, work_s=0), setup, FREE, seed=1)
    expected_s = (200 - rate.burst) / rate.per_s
    assert last_answer_s(played) == pytest.approx(expected_s, rel=0.05 * processes)


def test_a_channel_gets_a_message_a_second() -> None:
    """Thinking messages of one channel stand at its rate, after its burst."""
    rate = CHANNEL_RATES[POST]
    played = simulate(ask(30, work_s=200, channels=1), IN_SLACK, FREE, seed=1)
    posted_s = max(run.posted_s for run in played.runs if run.posted_s is not None)
    assert posted_s == pytest.approx((30 - rate.burst) / rate.per_s, rel=0.05)


def test_a_process_does_one_thing_at_a_time() -> None:
    """100 mentions at once of 10 ms of processor each are all placed after a second."""
    figures = replace(FREE, mention_cpu_s=0.01, run_cpu_s=0.01)
    setup = replace(HANDED_OUT, fronts=0, slots=200)
    played = simulate(ask(100, work_s=30), setup, figures, seed=1)
    posted_s = max(run.posted_s for run in played.runs if run.posted_s is not None)
    assert posted_s == pytest.approx(1.0, abs=0.05)
    assert played.busy_s[0] == pytest.approx(1.0, abs=0.01)


def test_people_take_turns() -> None:
    """Who asks once is not kept waiting by who asked twenty times before."""
    many, one = ask(20, work_s=10, people=1), ask(1, work_s=10)
    last = replace(one[0], user="U2", thread="T-other", at_s=5.0)
    played = simulate([*many, last], replace(HANDED_OUT, slots=1), FREE, seed=1)
    begun_s = sorted(run.begun_s for run in played.runs if run.begun_s is not None)
    assert played.runs[-1].begun_s == begun_s[1]


def test_one_thread_is_one_at_a_time() -> None:
    """Questions of a thread are answered one after the other, with slots free."""
    questions = [replace(question, thread="T") for question in ask(3, work_s=10)]
    played = simulate(questions, HANDED_OUT, FREE, seed=1)
    assert last_answer_s(played) == pytest.approx(30, abs=1.5)


def test_who_waits_too_long_or_is_one_too_many_is_told() -> None:
    """Beyond the queue's limit none is taken, and after its time none is begun."""
    setup = replace(HANDED_OUT, slots=1, queue_limit=5, queue_timeout_s=15)
    played = simulate(ask(8, work_s=10), setup, FREE, seed=1)
    assert sum(run.is_refused for run in played.runs) == 8 - 2
    assert sum(run.answered_s is not None for run in played.runs) == 2


def test_the_same_seed_plays_the_same() -> None:
    """Another one asks otherwise."""
    workspace = Workspace(people=200)
    first, again, other = (
        [run.answered_s for run in played.runs]
        for played in (
            simulate(busiest_hours(workspace, seed=seed), Setup(), FIGURES, seed=seed)
            for seed in (1, 1, 2)
        )
    )
    assert first == again
    assert first != other


def test_as_many_ask_as_were_said() -> None:
    """In the busiest hour, 15 % of the day's questions."""
    asked = busiest_hours(Workspace(people=5_000), seed=1)
    assert sum(question.at_s >= HOUR_S for question in asked) == pytest.approx(3_000, rel=0.05)


def test_figures_of_another_kind_are_named(tmp_path: Path) -> None:
    """A file that is none, and one that lacks a row, are told with their path."""
    file = tmp_path / "figures.json"
    for text in ("no JSON", "{}", '[{"figure": "x"}]', "3"):
        file.write_text(text)
        with pytest.raises(FiguresError, match=r"figures\.json"):
            read_figures(file)
    file.write_text(COMMITTED.read_text().replace("transactions per run", "something else"))
    with pytest.raises(FiguresError, match=r"figures\.json has no row 'transactions per run'"):
        read_figures(file)
    with pytest.raises(FiguresError, match="missing"):
        read_figures(tmp_path / "missing.json")


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(180)
async def test_real_workers_take_as_long(tmp_path: Path) -> None:
    """A batch of the bench's, with real processes on a real PostgreSQL, by one and by three."""
    predicted_s = [
        last_answer_s(await _simulated(ask(48, work_s=2), replace(HANDED_OUT, processes=count)))
        for count in (1, 3)
    ]
    with run_postgres() as server:
        measured_s = [
            await _batch(create_database(server, f"of{count}"), tmp_path, workers=count)
            for count in (1, 3)
        ]
    assert measured_s == pytest.approx(predicted_s, rel=0.25)


async def _simulated(questions: Sequence[Question], setup: Setup) -> Simulated:
    """In a thread: the test has an event loop already."""
    return await asyncio.to_thread(simulate, questions, setup, FIGURES, seed=1)


async def _batch(url: str, directory: Path, *, workers: int) -> float:
    place = directory / f"of{workers}"
    place.mkdir()
    crowd = Crowd(url, place)
    try:
        async with accepting(url) as store:
            for _ in range(workers):
                await crowd.start(capacity=8, hold_s=2)
            started = time.time()
            await accept(store, *(new_run(number, user=f"U{number % 12}") for number in range(48)))
            await until(lambda: len(crowd.effects()) == 48, timeout_s=60)
            return crowd.notes("effect")[-1].at - started
    finally:
        await crowd.kill_all()


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_a_real_burst_goes_the_same_way(tmp_path: Path) -> None:
    """43 questions at once to a real Orion and a Slack that keeps its limits: the same calls, and answers as late."""
    burst = await measure(tmp_path, questions=43, work_s=5)
    setup = Setup(slots=43, start_s=0, call_s=0.01)
    played = await _simulated(ask(43, work_s=5, channels=20), setup)
    assert not burst.unanswered
    assert burst.calls[POST] == played.calls[POST] == 43
    assert burst.calls[UPDATE] == pytest.approx(played.calls[UPDATE], abs=4)
    answers_s = [run.answered_s for run in played.runs if run.answered_s is not None]
    signs_s = [run.sign_s for run in played.runs if run.sign_s is not None]
    for share in (0.5, 0.95, 1.0):
        predicted_s = percentile(answers_s, share)
        assert percentile(burst.answers_s, share) == pytest.approx(predicted_s, rel=0.1, abs=1)
    # In whole seconds alike: a machine that is busy may take some tenths more.
    assert percentile(burst.signs_s, 0.95) == pytest.approx(percentile(signs_s, 0.95), abs=1)

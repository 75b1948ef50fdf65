"""A deployment on Vercel: what an instance imports before it answers, what a slice costs, and what becomes of a run whose slice is killed."""

import asyncio
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from app.dispatch.vercel_queue import TOPIC
from tests.bench.clouds import why_no_machines
from tests.bench.processes import BenchError
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.e2e.harness import text_of
from tests.postgres import create_database, run_postgres
from tests.vercel.deployed import ANSWERED_S, SLOW_WORDS, Place
from tests.vercel.deployment import CannotBuildError, Deployment, build, check_tools
from tests.vercel.platform import Invocation
from tests.waiting import until

COLD_IMPORT_S, SLICE_PROCESSOR_S, ANSWERED_WITHIN_S = 1.5, 0.3, 60.0
LIBRARIES = "fastapi, slack_bolt.adapter.fastapi.async_handler"
"""What a bare Bolt app on FastAPI imports."""
TRIES = 5
SLICE_S, FOLLOWED_S = 8, 45
KILLED_SLICE_S, KILLED_AFTER_S, KILLED_FOR_S = 3, 1.0, 25


def why_no_functions() -> str | None:
    """Why no deployment can be built and tried here, if so."""
    try:
        check_tools()
    except CannotBuildError as exc:
        return str(exc)
    return why_no_machines()


async def measure_functions(bench: Bench) -> Sequence[Row]:
    """In seconds of processor, but for one line of imports and the kill, by the clock: of the real functions in the real runtime.

    Raises:
        BenchError: an import failed, or a run was not as it should be.
    """
    deployment = await asyncio.to_thread(build, bench.directory / "deployment")
    bundles = {
        name: function.unpack(bench.directory / f"bundle-{number}")
        for number, (name, function) in enumerate(deployment.functions.items())
    }
    rows = _cold_imports(deployment, bundles["fastapi"])
    with run_postgres() as server:
        place = Place(
            deployment=deployment,
            bundles=bundles,
            url=create_database(server, "slices"),
            directory=bench.directory,
        )
        rows.append(await _slices(place))
        rows.append(await _killed(place, bench.scale.worker_ends))
    return rows


def _cold_imports(deployment: Deployment, bundle: Path) -> list[Row]:
    """Each in new processes, by turns."""
    took_s: Mapping[str, list[tuple[float, float]]] = {
        code: [] for code in (LIBRARIES, "app.main", "app.subscriber")
    }
    for _ in range(TRIES):
        for code, found in took_s.items():
            found.append(_import_s(deployment.python, bundle, code))
    (_, bare), *ours = took_s.items()
    return [
        Row(
            figure=f"cold import, {code}, {what} (baseline: FastAPI and Bolt)",
            unit="s",
            orion=median(one[number] for one in found),
            baseline=median(one[number] for one in bare),
            target=COLD_IMPORT_S,
        )
        for code, found in ours
        for number, what in enumerate(("processor", "by the clock"))
    ]


def _import_s(python: Path, bundle: Path, code: str) -> tuple[float, float]:
    """Of the processor, and by the clock."""
    code = f"import time as t; a, b = t.process_time(), t.monotonic(); import {code}; print(t.process_time() - a, t.monotonic() - b)"
    answer = subprocess.run(
        [python, "-c", code],
        cwd=bundle,
        env={"PYTHONPATH": "_vendor", "PYTHONDONTWRITEBYTECODE": "1", "VERCEL": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if answer.returncode:
        raise BenchError(f"the function's import failed: {answer.stderr}")
    processor_s, clock_s = map(float, answer.stdout.split())
    return processor_s, clock_s


async def _slices(place: Place) -> Row:
    """Of those in which an agent is only followed; the baseline is a message that is refused."""
    async with place.deploy(ORION_SLICE_S=str(SLICE_S)) as deployed:
        await deployed.ask("@Orion hello")
        pushed = deployed.platform.pushed
        done = len(pushed)
        ts = await deployed.client.say(f"@Orion !slow {FOLLOWED_S}")
        await deployed.answer(ts, timeout_s=ANSWERED_S)
        followed = [one for one in pushed[done:] if one.api_calls][1:-1]
        done = len(pushed)
        for _ in range(TRIES):
            await deployed.platform.client().send(TOPIC, b"[]")
        await until(lambda: len(pushed) >= done + TRIES, timeout_s=60)
        return Row(
            figure=f"processor of a slice of {SLICE_S} s that follows an agent (baseline: a message that is refused)",
            unit="s",
            orion=_processor_s(followed),
            baseline=_processor_s(pushed[done:]),
            target=SLICE_PROCESSOR_S,
        )


def _processor_s(found: Sequence[Invocation]) -> float:
    if not found:
        raise BenchError("no slice has followed the agent")
    return median(one.processor_s for one in found)


async def _killed(place: Place, times: int) -> Row:
    """kill -9 while an agent works; the baseline is how long it had still to work, at the most."""
    took_s, left_s = [], []
    async with place.deploy(ORION_SLICE_S=str(KILLED_SLICE_S)) as deployed:
        await deployed.ask("@Orion hello")
        for _ in range(times):
            ts = await deployed.client.say(f"@Orion !slow {KILLED_FOR_S}")
            await deployed.client.wait_for_reply(
                ts, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=60
            )
            begun_s = time.monotonic()
            deployed.platform.kill_after_s.append(KILLED_AFTER_S)
            await until(lambda: not deployed.platform.kill_after_s, timeout_s=30)
            killed_s = time.monotonic()
            await deployed.answer(ts, timeout_s=ANSWERED_S)
            took_s.append(time.monotonic() - killed_s)
            left_s.append(KILLED_FOR_S - (killed_s - begun_s))
    return Row(
        figure=f"kill -9 of a slice to the answer, at the longest of {times} (baseline: what the model had still to write)",
        unit="s",
        orion=max(took_s),
        baseline=max(left_s),
        target=ANSWERED_WITHIN_S,
    )

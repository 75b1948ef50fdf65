"""What operators wait for, with 100,000 runs in the store and an Orion at work on it: the page `/ops`, a scrape, `orion tui`, a replay, `orion doctor`.

Eight runs go and some thirty wait, which people have asked in the fake Slack; their agents never answer, so that nothing
changes meanwhile. A screen is looked at in a terminal of the bench's own (a pty), which knows when each byte came: tmux would
take some 5 ms of processor for each look at its pane, on the cores that the program needs. So a screen is there once the
bytes of its change are written; what a real terminal takes to draw them is not in it.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from app.runs.testing import RunId
from tests.bench.load import percentile
from tests.bench.processes import BenchError, Server, open_server, run_to_end
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.stored import fill_store
from tests.bench.table import Row
from tests.bench.terminal import Terminal, open_terminal
from tests.bench.turns import Scene, open_scene
from tests.fake_slack_client import open_client
from tests.plain_http import NO_TLS
from tests.ports import free_port

TOKEN = "a-token-of-operators"  # noqa: S105 - of the Orion below
GOING, ASKED = 8, 40
BEGUN_WITHIN_S = 60.0
POLL_S = 0.1
PAGE = (
    "/ops",
    *(f"/ops/static/{name}" for name in ("look.css", "ops.css", "ops.js", "ops.svg")),
    *(f"/ops/static/{name}" for name in ("dom.js", "waterfall.js")),
)
"""What a browser fetches before the page asks for anything."""
NOW, RUNS = "/ops/api/now", "/ops/api/runs"
SCRAPES = 20
CHOSEN = re.compile(rb"\x1b\[1;[\d;]*m (No\. \d+)")
"""The question of the line on which the cursor is: it alone is in bold."""
BOX = re.compile(rb"tate=failed")
"""Its cursor is on the first letter."""
SANDBOXES = re.compile(rb" Region ")
DOWN, TAB, ENTER = b"\x1b[B", b"\t", b"\r"
PAUSE_S = 0.31
"""Between two keys, as somebody who sees what each does; no part of the two seconds between two looks of `orion tui`."""
REPLAYED = re.compile(rb"sent; Ctrl-C ends it")
DOCTOR_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """An Orion at work, as its operators reach it."""

    bench: Bench
    orion: Server
    settings: Mapping[str, str]
    long_run: RunId
    """Of ten minutes."""
    stored: str
    """How many runs there are, for people."""


async def measure_operators(bench: Bench) -> Sequence[Row]:
    """One after the other, on one store; Orion and its baselines by turns."""
    async with open_scene(bench) as scene, _open_office(scene) as office:
        return [
            *await _measure_pages(office),
            *await _measure_starts(office),
            *await _measure_keys(office),
            await _measure_replay(office),
            await _measure_doctor(office),
        ]


@asynccontextmanager
async def _open_office(scene: Scene) -> AsyncIterator[Office]:
    count = scene.bench.scale.stored_runs
    long_run = await fill_store(scene.state_dir / "orion.db", count)
    settings = scene.settings(traces=True) | {
        "ORION_OPS_TOKEN": TOKEN,
        "ORION_PUBLIC_URL": f"http://127.0.0.1:{scene.port}",
        "ORION_MAX_CONCURRENT_RUNS": str(GOING),
    }
    async with open_server(
        ("tests.bench.orion_server", "--hold"),
        port=scene.port,
        directory=scene.bench.directory,
        settings=settings,
        stop_timeout_s=1,
    ) as orion:
        async with open_client(scene.world.url) as person:
            for number in range(1, ASKED + 1):
                text = f"@Orion No. {count + number}: why does the shop wait for a migration?"
                await person.say(text, channel=CHANNELS[number])
        await _until_begun(orion)
        yield Office(
            bench=scene.bench,
            orion=orion,
            settings=settings,
            long_run=long_run,
            stored=f"{count:,} runs stored",
        )


async def _until_begun(orion: Server) -> None:
    try:
        async with asyncio.timeout(BEGUN_WITHIN_S), _open_browser(orion) as http:
            while True:
                now = (await http.get(NOW)).raise_for_status().json()
                if (len(now["going"]), now["waiting_in_all"]) == (GOING, ASKED - GOING):
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError as exc:
        raise BenchError(f"{GOING} of {ASKED} runs did not begin") from exc


@asynccontextmanager
async def _open_browser(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """One that has logged in."""
    async with httpx.AsyncClient(
        base_url=server.url, verify=NO_TLS, trust_env=False, timeout=BEGUN_WITHIN_S
    ) as http:
        await http.post("/ops/login", data={"token": TOKEN})
        yield http


# -- pages --------------------------------------------------------------------------------------------------------------------


async def _measure_pages(office: Office) -> Sequence[Row]:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    bodies = office.bench.directory / "bodies"
    async with _open_browser(office.orion) as http:
        answers = [await http.get(path, headers=bearer) for path in (*PAGE, NOW, RUNS, "/metrics")]
    await asyncio.to_thread(_keep, bodies, [one.raise_for_status().content for one in answers])
    port, scrapes, last = free_port(), [], len(answers) - 1
    argv = ("tests.bench.bare_pages", str(port), str(bodies))
    async with open_server(argv, port=port, directory=office.bench.directory) as bare:
        found = [
            (await _paint(office.orion), await _paint_bare(bare, last))
            for _ in range(office.bench.scale.looks)
        ]
        async with _open_browser(office.orion) as http, _open_browser(bare) as other:
            for _ in range(SCRAPES):
                ours = await _fetch(http, "/metrics", headers=bearer)
                scrapes.append((ours, await _fetch(other, f"/{last}")))
    what = f"server time of {{}}, {office.stored} (baseline: FastAPI, the same bytes)"
    place = {path: number for number, path in enumerate((*PAGE, NOW, RUNS))}
    all_of_it = [(sum(ours), sum(bare)) for ours, bare in found]
    now_alone = [(ours[place[NOW]], bare[place[NOW]]) for ours, bare in found]
    return (
        _row(what.format("/ops, its files, what goes on and the newest runs"), all_of_it, 300),
        _row(what.format("what goes on alone, beside its stream of changes"), now_alone, None),
        _row(what.format("a scrape of /metrics"), scrapes, 50),
    )


def _keep(directory: Path, bodies: Sequence[bytes]) -> None:
    directory.mkdir()
    for number, body in enumerate(bodies):
        (directory / str(number)).write_bytes(body)


async def _paint(orion: Server) -> list[float]:
    """Seconds of each request of a first paint; what goes on is asked for beside the stream of changes, as the page does."""
    async with _open_browser(orion) as http:
        took_s = [await _fetch(http, path) for path in PAGE]
        async with http.stream("GET", "/ops/events"):
            took_s.append(await _fetch(http, NOW))
        return [*took_s, await _fetch(http, RUNS)]


async def _paint_bare(bare: Server, count: int) -> list[float]:
    async with _open_browser(bare) as http:
        return [await _fetch(http, f"/{number}") for number in range(count)]


async def _fetch(
    http: httpx.AsyncClient, path: str, *, headers: Mapping[str, str] | None = None
) -> float:
    """Seconds from the request to the last byte of its answer."""
    started = time.perf_counter()
    (await http.get(path, headers=headers)).raise_for_status()
    return time.perf_counter() - started


def _row(figure: str, pairs: Sequence[tuple[float, float]], target_ms: float | None) -> Row:
    ours, bare = (median(side) for side in zip(*pairs, strict=True))
    return Row(figure=figure, unit="ms", orion=1000 * ours, baseline=1000 * bare, target=target_ms)


# -- the terminal -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_screen(office: Office, *, is_bare: bool) -> AsyncIterator[Terminal]:
    argv = ("tests.bench.bare_screen",) if is_bare else ("app.cli", "tui")
    place = office.bench.directory
    async with open_terminal(argv, directory=place, settings=office.settings) as terminal:
        yield terminal


async def _measure_starts(office: Office) -> Sequence[Row]:
    found: dict[bool, list[float]] = {False: [], True: []}
    for is_bare in (False, True) * office.bench.scale.looks:
        async with _open_screen(office, is_bare=is_bare) as terminal:
            _, at_s = await terminal.shown(CHOSEN)
            found[is_bare].append(at_s - terminal.started_s)
    return (
        Row(
            figure=f"orion tui, start to the first screen with runs, {office.stored} (baseline: a bare Textual app with 200 rows)",
            unit="s",
            orion=median(found[False]),
            baseline=median(found[True]),
            target=1,
        ),
    )


async def _measure_keys(office: Office) -> Sequence[Row]:
    pressed = []
    for is_bare in (False, True):
        async with _open_screen(office, is_bare=is_bare) as terminal:
            pressed.append(await _press_all(terminal, office.bench.scale.presses))
    ours, bare = pressed
    return [
        Row(
            figure=f"orion tui, {key} to the changed screen, {name}, {office.stored} (baseline: the same)",
            unit="ms",
            orion=1000 * percentile(ours[key], share),
            baseline=1000 * percentile(bare[key], share),
            target=50,
        )
        for key in ours
        for name, share in (("p50", 0.5), ("p95", 0.95))
    ]


async def _press_all(terminal: Terminal, count: int) -> Mapping[str, list[float]]:
    """Seconds from each key to the first screen that shows what it has done."""
    chosen, _ = await terminal.shown(CHOSEN)
    took_s: dict[str, list[float]] = {"Down": [], "f": [], "Tab": []}
    for _ in range(count):
        other = re.compile(CHOSEN.pattern.replace(rb"(No\. ", rb"(?!%b\b)(No\. " % chosen))
        chosen, down_s = await _press(terminal, DOWN, other)
        took_s["Down"].append(down_s)
        took_s["f"].append((await _press(terminal, b"f", BOX))[1])
        await _press(terminal, ENTER, CHOSEN)
        took_s["Tab"].append((await _press(terminal, TAB, SANDBOXES))[1])
        took_s["Tab"].append((await _press(terminal, TAB, CHOSEN))[1])
    return took_s


async def _press(terminal: Terminal, key: bytes, shows: re.Pattern[bytes]) -> tuple[bytes, float]:
    await asyncio.sleep(PAUSE_S)
    since, pressed_s = terminal.press(key)
    found, at_s = await terminal.shown(shows, since=since)
    return found, at_s - pressed_s


# -- commands -----------------------------------------------------------------------------------------------------------------


async def _measure_replay(office: Office) -> Row:
    argv, took_s = ("app.cli", "runs", "replay", office.long_run, "--speed", "0"), []
    for _ in range(office.bench.scale.looks):
        async with open_terminal(
            argv, directory=office.bench.directory, settings=office.settings
        ) as terminal:
            _, at_s = await terminal.shown(REPLAYED)
            took_s.append(at_s - terminal.started_s)
    return Row(
        figure="orion runs replay --speed 0 of a run of 10 minutes, start to its end",
        unit="s",
        orion=median(took_s),
        target=5,
    )


async def _measure_doctor(office: Office) -> Row:
    took_s = []
    for _ in range(office.bench.scale.looks):
        started = time.perf_counter()
        await run_to_end(
            ("app.cli", "doctor"),
            directory=office.bench.directory,
            settings=office.settings,
            timeout_s=DOCTOR_TIMEOUT_S,
        )
        took_s.append(time.perf_counter() - started)
    return Row(
        figure=f"orion doctor in all, {office.stored}", unit="s", orion=max(took_s), target=10
    )

"""`python -m tests.gallery.operators`: pictures of what operators see, made anew from a real Orion at work: its page, its terminal, its dashboard."""

import asyncio
import html
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, expect
from textual.widgets import DataTable

from app.cli.tui.board import Board
from app.cli.tui.office import open_office
from app.playground.slack.types import COLLEAGUE
from app.settings.settings import load_settings
from sandbox_runtime.task_group import open_task_group
from tests.e2e.harness import Stage, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir
from tests.e2e.test_prometheus import CONFIG, prometheus
from tests.gallery.pictures import IMAGES, THEMES, Theme, open_browser
from tests.gallery.surfaces import sheet
from tests.ports import free_port
from tests.unit.web.test_dashboards import ALERTS, DASHBOARD
from tests.waiting import until

TOKEN: Final = "a-token-of-operators"  # noqa: S105 - of the Orion below
TOML: Final = f"""
[prices."*"]
input = 3.0
output = 15.0
cache_read = 0.3
cache_write = 3.75

[[permissions]]
who = ["{COLLEAGUE}"]
agents = "anthropic"
stop_others = false
"""
ROUNDS: Final = 8
VIEWS: Final = ("", "runs", "money?by=user", "errors", "processes", "audit")
STEP_S, INTERVAL = 1, "15s"
"""Between two points of the dashboard; what a rate is taken of."""
COLOURS: Final = ("#3274d9", "#e0b400", "#56a64b", "#e02f44", "#8f3bb8", "#ff780a")
PANEL: Final = (320, 110)
"""Width and height of a panel's lines."""


async def operate(stage: Stage) -> None:
    """Two people ask what goes well, what fails and what is not for them; at the end two runs go on, and one waits."""
    say = stage.client.say
    for number in range(ROUNDS):
        async with open_task_group() as group:
            group.create_task(stage.ask(f"@Orion run: echo build {number} && sleep {number % 3}"))
            group.create_task(
                stage.ask("@Orion is the cache warm?", user=COLLEAGUE, channel="random")
            )
        await stage.ended(await say("@Orion !context" if number % 3 else "@Orion !429"))
    root = await say("@Orion !slow 60")
    await say("@Orion stop", user=COLLEAGUE, thread_ts=root)
    await say("@Orion agent=claude review the change", user=COLLEAGUE)
    going = await say("@Orion run: echo reading; sleep 50", user=COLLEAGUE, channel="random")
    await say("@Orion and then the tests, please", thread_ts=root)
    await stage.thinking(going, channel="random")


async def page_pictures(browser: Browser, url: str, theme: Theme) -> Mapping[str, bytes]:
    """Each view of the operators' page, and the last run that failed."""
    page = await browser.new_page(
        viewport={"width": 800, "height": 560}, color_scheme=theme, device_scale_factor=1
    )
    await page.goto(f"{url}/ops")
    await page.get_by_label("ORION_OPS_TOKEN").fill(TOKEN)
    await page.get_by_role("button", name="Show me").click()
    await expect(page.get_by_role("heading", name="What goes on")).to_be_visible()
    pictures = {}
    for view in VIEWS:
        await page.goto(f"{url}/ops/{view}".rstrip("/"))
        await expect(page.locator("#view h1")).to_be_visible()
        pictures[f"/ops/{view}".rstrip("/")] = await page.screenshot()
    await page.goto(f"{url}/ops/runs?code=MODEL_CONTEXT_EXCEEDED")
    await page.locator("#view tbody a").first.click()
    await expect(page.get_by_role("heading", name="Steps")).to_be_visible()
    pictures["one run"] = await page.screenshot()
    await page.close()
    return pictures


async def terminal_pictures(browser: Browser, stage: Stage) -> Mapping[str, bytes]:
    """The lists of `orion tui`, a run, a question and the set-up of a cloud, as an emulated terminal of 100 columns draws them."""
    given = {"orion_state_dir": str(stage.orion.state_dir), "orion_sandbox": "local"}
    settings = load_settings(env_file=None, given=given, toml=None)
    drawings: dict[str, str] = {}
    async with open_office(settings) as office, Board(office).run_test(size=(100, 30)) as pilot:
        runs, sandboxes = (
            pilot.app.query_one(f"#{name}", DataTable) for name in ("runs", "sandboxes")
        )
        await until(lambda: runs.row_count > 0 and "%" in _text(sandboxes))
        keys = {
            "runs": (),
            "a run": (*("down",) * 5, "enter"),
            "a question": ("escape", "n"),
            "a cloud is set up": ("escape", "c"),
            "sandboxes": ("escape", "tab"),
        }
        for name, pressed in keys.items():
            await pilot.press(*pressed)
            await pilot.pause(1.0)
            drawings[name] = pilot.app.export_screenshot(title="orion tui")
    page = await browser.new_page(viewport={"width": 800, "height": 560})
    pictures = {}
    for name, drawing in drawings.items():
        await page.set_content(
            f"<style>body {{ margin: 0; background: #111 }} svg {{ width: 800px; height: 560px }}</style>{drawing}"
        )
        pictures[name] = await page.screenshot()
    await page.close()
    return pictures


def _text(table: DataTable[Any]) -> str:
    return "\n".join(str(cell) for row in table.rows for cell in table.get_row(row))


async def dashboard_picture(browser: Browser, http: httpx.AsyncClient, began_s: float) -> bytes:
    """Each panel of grafana.json at its place, with what a real Prometheus answers to its questions; Grafana itself draws it prettier."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [await _panel(http, panel, began_s) for panel in panels]
    page = await browser.new_page(viewport={"width": 1080, "height": 100})
    await page.set_content(
        "<style>body { margin: 8px; background: #111217; color: #ccccdc; font: 12px sans-serif; display: grid; gap: 8px;"
        " grid-template-columns: repeat(24, 1fr) } section { background: #181b1f; padding: 8px; border: 1px solid #2c3235 }"
        " h2 { margin: 0 0 6px; font-size: 13px } h1 { margin: 6px 0 0; font-size: 15px; grid-column: 1 / -1 }"
        f" svg {{ width: 100%; background: #111217 }} i {{ margin-right: 8px }}</style>{''.join(drawn)}"
    )
    picture = await page.screenshot(full_page=True)
    await page.close()
    return picture


async def _panel(http: httpx.AsyncClient, panel: Mapping[str, Any], began_s: float) -> str:
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f"<h1>{title}</h1>"
    lines: dict[str, Sequence[tuple[float, float]]] = {}
    for target in panel["targets"]:
        asked = {
            "query": target["expr"].replace("$__rate_interval", INTERVAL),
            "start": f"{began_s}",
            "end": f"{time.time()}",
            "step": f"{STEP_S}",
        }
        answer = (await http.get("/api/v1/query_range", params=asked)).json()
        for found in answer["data"]["result"]:
            name = target["legendFormat"]
            for label, value in found["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            points = [(at, float(value)) for at, value in found["values"]]
            lines[name] = [(at, value) for at, value in points if value == value]  # noqa: PLR0124 - NaN
    place = panel["gridPos"]
    return (
        f'<section style="grid-column: {place["x"] + 1} / span {place["w"]}"><h2>{title}</h2>'
        f"{_graph(lines, began_s)}</section>"
    )


def _graph(lines: Mapping[str, Sequence[tuple[float, float]]], began_s: float) -> str:
    width, height = PANEL
    most = max((value for points in lines.values() for _, value in points), default=0.0) or 1.0
    span_s = time.time() - began_s
    drawn, legend = "", ""
    for (name, points), colour in zip(lines.items(), COLOURS * 9, strict=False):
        at = " ".join(
            f"{(when - began_s) / span_s * width:.1f},{height - 4 - value / most * (height - 8):.1f}"
            for when, value in points
        )
        drawn += f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{at}"/>'
        last = f"{points[-1][1]:.3g}" if points else ""
        legend += f'<i style="color: {colour}">{html.escape(name)} {last}</i>'
    return f'<svg viewBox="0 0 {width} {height}">{drawn}</svg>{legend or "<i>nothing</i>"}'


async def main() -> None:
    began_s = time.time()
    with tempfile.TemporaryDirectory(prefix="o-") as name:
        directory = Path(name)
        rules = shutil.copy(ALERTS, directory / "alerts.yaml")
        port = free_port()
        config = CONFIG.format(rules=rules, port=port)
        async with (
            open_world() as world,
            open_orion(
                world,
                new_state_dir(directory),
                prepared_state_dir(),
                toml=TOML,
                ORION_PORT=f"{port}",
                ORION_OPS_TOKEN=TOKEN,
                ORION_MAX_CONCURRENT_RUNS="4",
                ORION_WARM_POOL_SIZE="1",
            ) as stage,
            prometheus(directory, f"{config}    authorization: {{credentials: {TOKEN}}}\n") as http,
            open_browser() as browser,
        ):
            await operate(stage)
            pictures = {
                f"ops-{theme}": await sheet(
                    browser, theme, await page_pictures(browser, stage.orion.url, theme)
                )
                for theme in THEMES
            }
            terminal = await terminal_pictures(browser, stage)
            pictures["tui"] = await sheet(browser, "dark", terminal)
            pictures["dashboard"] = await dashboard_picture(browser, http, began_s)
            _, audit = await stage.cli("audit")
    for name, picture in pictures.items():
        path = IMAGES / f"{name}.png"
        path.write_bytes(picture)
        sys.stdout.write(f"{path}: {len(picture) // 1000} kB\n")
    sys.stdout.write(audit)


if __name__ == "__main__":
    asyncio.run(main())

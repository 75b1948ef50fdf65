"""The operators' page in a real browser: each view in light and dark, live, without a complaint, and what is written in it stays text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # has no stubs
from playwright.async_api import Browser, Page, expect

from app.settings.settings import host_environment
from tests.browser.building import problems_of
from tests.building import make_request, make_run
from tests.gallery.pictures import THEMES
from tests.unit.operators.building import SCRIPT, TOKEN, Office, fill, open_office

if TYPE_CHECKING:
    from app.runs.testing import Run

pytestmark = pytest.mark.browser

VIEWS = {
    "": "What goes on",
    "runs": "Runs",
    "money": "Money",
    "errors": "Errors",
    "processes": "Processes",
    "audit": "Who was allowed or refused what",
}
SCREENSHOTS = host_environment().get("ORION_SCREENSHOTS")


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with open_office(tmp_path) as office:
        yield office


@pytest.fixture
async def failed(office: Office) -> Run:
    return await fill(office.store)


@pytest.fixture
async def page(office: Office, failed: Run, browser: Browser) -> AsyncIterator[Page]:
    """Logged in as a person does it."""
    del failed
    context = await browser.new_context(bypass_csp=True)  # for axe, which is injected
    page = await context.new_page()
    await page.goto(f"{office.url}/ops")
    await page.get_by_label("ORION_OPS_TOKEN").fill(TOKEN)
    problems = problems_of(page)
    await page.get_by_role("button", name="Show me").click()
    await expect(page.get_by_role("heading", name="What goes on")).to_be_visible()
    yield page
    await context.close()
    assert problems == []


async def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        await page.screenshot(path=Path(SCREENSHOTS, f"ops-{name}.png"), full_page=True)


async def test_a_wrong_token_shows_the_door_again(office: Office, browser: Browser) -> None:
    """With nothing of the deployment behind it."""
    page = await browser.new_page()
    await page.goto(f"{office.url}/ops/runs")
    await page.get_by_label("ORION_OPS_TOKEN").fill("wrong")
    await page.get_by_role("button", name="Show me").click()
    await expect(page.get_by_label("ORION_OPS_TOKEN")).to_be_visible()
    await page.close()


@pytest.mark.parametrize("view", list(VIEWS))
async def test_each_view_is_drawn(office: Office, page: Page, view: str) -> None:
    """In light and dark, without a serious problem for people who see or point otherwise; markup is text."""
    await page.goto(f"{office.url}/ops/{view}".rstrip("/"))
    await expect(page.get_by_role("heading", name=VIEWS[view], level=1)).to_be_visible()
    if view in ("", "runs", "errors", "audit"):
        await expect(page.locator("#view")).to_contain_text(SCRIPT)
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        found = await Axe().run(page)
        serious = [
            one for one in found.response["violations"] if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        await shot(page, f"{view or 'now'}-{theme}")


async def test_one_run_is_drawn_with_its_steps(office: Office, page: Page, failed: Run) -> None:
    """As a tree that keys fold; its parts are text, whatever is in them."""
    await page.goto(f"{office.url}/ops/runs/{failed.id}")
    steps = page.get_by_role("tree", name="Steps of the run")
    rows = steps.get_by_role("treeitem")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_have_attribute("aria-level", "2")
    await rows.first.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(rows).to_have_count(1)
    await page.keyboard.press("ArrowRight")
    await expect(rows).to_have_count(3)
    await expect(page.locator("#view pre").first).to_have_text(SCRIPT)
    await shot(page, "run")
    found = await Axe().run(page)
    assert [
        one["id"]
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ] == []


async def test_what_comes_is_shown(office: Office, page: Page) -> None:
    """Without a reload."""
    await page.evaluate("() => (window.stayed = true)")
    await office.store.add(make_run(make_request(text="just now", ts="1795302390.000100")))
    await expect(page.locator("#view")).to_contain_text("just now")
    assert await page.evaluate("() => window.stayed") is True


async def test_filters_choose_runs(office: Office, page: Page) -> None:
    """By state, and by who asked; the address says so."""
    await page.goto(f"{office.url}/ops/runs")
    await page.get_by_label("State").select_option("failed")
    await expect(page.locator("#view tbody tr")).to_have_count(1)
    await page.get_by_label("State").select_option("")
    await expect(page.locator("#view tbody tr")).to_have_count(5)
    await page.get_by_label("Person").fill("U2")
    await page.get_by_label("Person").press("Enter")
    await expect(page.locator("#view tbody tr")).to_have_count(1)
    assert page.url.endswith("?user=U2")


async def test_what_comes_leaves_what_is_being_written(office: Office, page: Page) -> None:
    """A filter that somebody is at is neither emptied nor left."""
    await page.goto(f"{office.url}/ops/runs")
    person = page.get_by_label("Person")
    await person.press_sequentially("U")
    await office.store.add(make_run(make_request(text="just now", ts="1795302390.000100")))
    await expect(page.locator("#view")).to_contain_text("just now")
    await expect(person).to_be_focused()
    await page.keyboard.type("2")
    await page.keyboard.press("Enter")
    await expect(page.locator("#view tbody tr")).to_have_count(1)
    assert page.url.endswith("?user=U2")

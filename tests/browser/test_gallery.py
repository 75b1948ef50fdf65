"""Answers that are hard to show look as they did when somebody looked at them."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page

from tests.gallery.pictures import (
    THEMES,
    Theme,
    fonts,
    known_fonts,
    moved,
    open_gallery,
    picture_of,
    take,
)
from tests.long import long_but

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

MAX_BYTES = 2_000_000
SHIFT = "(by) => [...document.querySelectorAll('#gallery section')].find((tile) => tile.textContent.startsWith('fence in a list')).querySelectorAll('li')[1].style.cssText = by"


async def skip_with_other_fonts(page: Page) -> None:
    if await fonts(page) != known_fonts():
        pytest.skip("the pictures were made with other fonts: lines break elsewhere")


@pytest.mark.parametrize("theme", long_but(THEMES, lambda theme: theme == "light"))
async def test_every_answer_looks_as_it_did(browser: Browser, theme: Theme) -> None:
    """All sixty; `make gallery` makes the pictures anew, to be looked at."""
    async with open_gallery(browser, theme) as page:
        await skip_with_other_fonts(page)
        taken = await take(page)
    assert await moved(browser, picture_of(theme).read_bytes(), taken) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("style", "is_seen"),
    [
        ("position: relative; top: 1px", True),
        pytest.param("position: relative; left: 2px", True, marks=pytest.mark.long),
        pytest.param("color: transparent", True, marks=pytest.mark.long),
        pytest.param("letter-spacing: 0.01px", False, marks=pytest.mark.long),
        pytest.param("opacity: 0.85", False, marks=pytest.mark.long),
    ],
)
async def test_a_line_that_moves_is_seen_and_smoothing_is_not(
    browser: Browser, style: str, *, is_seen: bool
) -> None:
    """A line one pixel further down is told with its tile; edges that are a little lighter are not."""
    name = "fence in a list"
    async with open_gallery(browser, "light", (name, "table")) as page:
        before = await take(page)
        await page.evaluate(SHIFT, style)
        after = await take(page)
    assert before != after
    found = await moved(browser, before, after, (name, "table"))
    assert list(found) == ([name] if is_seen else [])


def test_the_pictures_are_small() -> None:
    """Of all answers, in light and dark."""
    assert sum(picture_of(theme).stat().st_size for theme in THEMES) < MAX_BYTES

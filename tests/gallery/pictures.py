"""Pictures of the gallery: each answer in a tile of its own, as the playground's page draws it; and what differs between two of them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from playwright.async_api import Browser, Page, async_playwright, expect
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.slack.types import GENERAL, TEAM_ID, YOU, FakeSlackConfig
from app.playground.stack import create_slack_app
from app.runs.testing import Outcome, Run, RunRequest, RunState, Surface, run_id_for
from app.slack.blocks import render_result
from app.web.hosting import serve
from tests.fake_slack_client import open_client
from tests.gallery.answers import ANSWERS

Theme = Literal["light", "dark"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
IMAGES: Final = Path("docs/images")
FONTS: Final = Path("tests/data/gallery/fonts.json")
"""Widths of some texts where the pictures were made: with other fonts, lines break elsewhere."""

CHROMIUM: Final = Path("/usr/bin/chromium")
CHROMIUM_ARGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

COLUMNS, WIDTH, HEIGHT = 6, 320, 240
"""Of tiles, in CSS pixels, which are the pictures' own."""
MOVED_LEVELS: Final = 96
"""Of 255, by which a channel of a pixel differs that is not smoothed otherwise but elsewhere."""
MOVED_PIXELS: Final = 40
"""In one tile, to be more than chance. A line of text that moves by one pixel changes some hundred."""

_ARRANGE = """([names, indexes, columns, width, height]) => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    #gallery { position: absolute; z-index: 9; top: 0; left: 0; width: ${columns * width}px; background: var(--bg); }
    #gallery { display: grid; grid-template-columns: repeat(${columns}, ${width}px); grid-auto-rows: ${height}px; }
    #gallery section { overflow: hidden; box-sizing: border-box; padding: 6px 10px; border: 1px solid var(--line); zoom: .8; }
    #gallery .part { overflow: hidden; max-height: ${1.25 * height - 34}px; }
    #gallery .part.half { max-height: ${0.625 * height - 22}px; }
    #gallery .part + .part { margin-top: 8px; border-top: 3px double var(--accent); }
    #gallery h2 { margin: 0 0 4px; font-size: 13px; color: var(--accent); }
    #gallery .context, #gallery .actions { display: none; }
    html, body { overflow: visible; height: auto; }
  `);
  document.adoptedStyleSheets = [sheet];
  const gallery = document.createElement("div");
  gallery.id = "gallery";
  const bodies = new Map();
  for (const item of document.querySelectorAll("#replies .message")) {
    const body = item.querySelector(".message-body");
    if (item.querySelector(".badge")) [...bodies.values()].at(-1).push(body);
    else bodies.set(body.textContent, []);
  }
  names.forEach((name, number) => {
    const tile = document.createElement("section");
    const title = document.createElement("h2");
    title.textContent = name;
    const parts = bodies.get(name);
    const shown = parts.length > 1 ? [parts[0], parts.at(-1)] : parts;
    if (parts.length > 1) title.textContent += `: first and last of ${parts.length} messages`;
    tile.append(title, ...shown);
    for (const part of shown) part.classList.add("part", ...(parts.length > 1 ? ["half"] : []));
    tile.style.gridColumn = indexes[number] % columns + 1;
    tile.style.gridRow = Math.floor(indexes[number] / columns) + 1;
    gallery.append(tile);
  });
  document.body.append(gallery);
}"""

_COMPARE = """async ([one, other, indexes, columns, width, height, levels]) => {
  const pixels = async (data) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return context;
  };
  const contexts = [await pixels(one), await pixels(other)];
  return indexes.map((index) => {
    const at = [index % columns * width, Math.floor(index / columns) * height, width, height];
    const [a, b] = contexts.map((context) => context.getImageData(...at).data);
    let moved = 0;
    for (let i = 0; i < a.length; i += 4) {
      const by = Math.max(Math.abs(a[i] - b[i]), Math.abs(a[i + 1] - b[i + 1]), Math.abs(a[i + 2] - b[i + 2]));
      moved += by > levels;
    }
    return moved;
  });
}"""

_MEASURE = """() => {
  const context = document.createElement("canvas").getContext("2d");
  return ["body", "code"].flatMap((where) => {
    const node = document.body.appendChild(document.createElement(where === "code" ? "code" : "span"));
    context.font = `16px ${getComputedStyle(node).fontFamily}`;
    node.remove();
    const samples = ["Hamburgefonts 0123", "\\u05e9\\u05dc\\u05d5\\u05dd \\u0645\\u0631\\u062d", "\\u4e2d\\u6587\\ud55c", "\\ud83d\\udc4d", "\\u2610"];
    return samples.map((sample) => Math.round(context.measureText(sample).width * 10) / 10);
  });
}"""


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=CHROMIUM_ARGS, timeout=30_000
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_gallery(
    browser: Browser, theme: Theme, names: Collection[str] = tuple(ANSWERS)
) -> AsyncIterator[Page]:
    """The page with these answers, each where it is among all of them."""
    async with AsyncExitStack() as stack:
        config = FakeSlackConfig(rate_limits="off")
        url = await stack.enter_async_context(serve(create_slack_app(config)))
        client = await stack.enter_async_context(open_client(url))
        web = AsyncWebClient(token=config.bot_token, base_url=f"{url}/api/")
        root = await client.say("the gallery")
        posted = 0
        for name in names:
            ts = await client.say(name, thread_ts=root)
            for part in render_result(_run(ts, root), _outcome(ANSWERS[name])):
                blocks = [dict(block) for block in part.blocks]
                await web.chat_postMessage(
                    channel=GENERAL, thread_ts=root, text=part.text, blocks=blocks
                )
                posted += 1
        rows = -(-len(ANSWERS) // COLUMNS)
        page = await browser.new_page(
            viewport={"width": COLUMNS * WIDTH, "height": rows * HEIGHT}, color_scheme=theme
        )
        stack.push_async_callback(page.close)
        page.set_default_timeout(60_000)
        await page.goto(url)
        await expect(page.locator("body[data-live]")).to_be_attached(timeout=60_000)
        await page.locator("#messages .replies").click()
        await expect(page.locator("#replies .message")).to_have_count(
            1 + len(names) + posted, timeout=60_000
        )
        everyone = list(ANSWERS)
        indexes = [everyone.index(name) for name in names]
        await page.evaluate(_ARRANGE, [list(names), indexes, COLUMNS, WIDTH, HEIGHT])
        yield page


def _run(ts: str, root: str) -> Run:
    request = RunRequest(
        run_id=run_id_for(team=TEAM_ID, channel=GENERAL, message_ts=ts),
        team=TEAM_ID,
        channel=GENERAL,
        thread_ts=root,
        message_ts=ts,
        user=YOU,
        text="",
        surface=Surface.CHANNEL,
        received_at=datetime.now(UTC),
    )
    return Run(id=request.run_id, request=request, created_at=request.received_at)


def _outcome(answer: str) -> Outcome:
    return Outcome(state=RunState.SUCCEEDED, answer=answer, duration_s=12)


async def take(page: Page) -> bytes:
    """A PNG of the whole sheet."""
    return await page.screenshot(animations="disabled", caret="hide", timeout=60_000)


async def moved(
    browser: Browser, one: bytes, other: bytes, names: Collection[str] = tuple(ANSWERS)
) -> Mapping[str, int]:
    """How many pixels of which tiles are elsewhere; without those where it is chance.

    Both are of the size of the whole sheet. Smoothing may differ.
    """
    everyone = list(ANSWERS)
    given: list[Any] = [base64.b64encode(picture).decode() for picture in (one, other)]
    given += [[everyone.index(name) for name in names], COLUMNS, WIDTH, HEIGHT, MOVED_LEVELS]
    page = await browser.new_page()
    counts = await page.evaluate(_COMPARE, given)
    await page.close()
    return {name: count for name, count in zip(names, counts, strict=True) if count > MOVED_PIXELS}


async def fonts(page: Page) -> list[float]:
    """Widths that tell which fonts there are."""
    widths: list[float] = await page.evaluate(_MEASURE)
    return widths


def known_fonts() -> list[float]:
    widths: list[float] = json.loads(FONTS.read_text())
    return widths


def picture_of(theme: Theme) -> Path:
    return IMAGES / f"gallery-{theme}.png"

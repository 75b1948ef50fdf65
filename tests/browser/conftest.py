"""A headless Chromium for every test, and the page in it with a scripted bot behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from playwright.async_api import Browser, expect
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import FakeSlackConfig
from app.playground.stack import create_slack_app
from app.web.hosting import serve
from tests.browser.building import Bot, Scene, problems_of
from tests.fake_slack_client import open_client
from tests.gallery.pictures import open_browser


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture
async def scene(browser: Browser) -> AsyncIterator[Scene]:
    config = FakeSlackConfig(
        rate_limits="off", send_bot_events=False, mention_gap_s=0.01, banners=("This is a test.",)
    )
    async with AsyncExitStack() as stack:
        app = create_slack_app(config)
        url = await stack.enter_async_context(serve(app))
        web = AsyncWebClient(token=config.bot_token, base_url=f"{url}/api/")
        bot = Bot(web)
        bot_url = await stack.enter_async_context(serve(bot.app))
        fake_slack: FakeSlack = app.state.fake_slack
        fake_slack.events_url = f"{bot_url}/slack/events"
        client = await stack.enter_async_context(open_client(url))
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        problems = problems_of(page)
        page.set_default_timeout(30_000)
        await page.goto(url)
        await expect(page.locator("body[data-live]")).to_be_attached()
        yield Scene(page, url, client, web, bot, fake_slack)
        await page.close()
    assert problems == []

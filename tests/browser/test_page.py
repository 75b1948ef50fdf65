"""The page around the messages, in a real browser: channels, people, colours, widths, connection."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from playwright.async_api import Browser, Route, expect

from app.playground.slack.types import COLLEAGUE, GENERAL, YOU, FakeSlackConfig
from app.playground.stack import create_slack_app
from app.web.hosting import serve
from tests.browser.building import Scene
from tests.waiting import until

pytestmark = pytest.mark.browser


@pytest.mark.long
async def test_unread_channels_are_marked_until_opened(scene: Scene) -> None:
    """A message elsewhere puts a dot on its channel, and opening the channel takes it away."""
    await scene.client.say("psst", channel="random", user=COLLEAGUE)
    entry = scene.page.locator('#channels [data-channel="C0RANDOM"]')
    await expect(entry.get_by_label("unread")).to_be_visible()
    await entry.get_by_role("button").click()
    await expect(entry.get_by_label("unread")).to_have_count(0)
    await expect(scene.page.locator("#messages")).to_contain_text("psst")


@pytest.mark.long
async def test_private_messages_follow_the_person(scene: Scene) -> None:
    """What only you can see disappears when the page is used as somebody else, and so does your DM."""
    await scene.web.chat_postEphemeral(channel=GENERAL, user=YOU, text="for your eyes")
    await scene.client.say("everyone sees this")
    await expect(scene.page.get_by_text("Only visible to you")).to_be_visible()
    await scene.page.get_by_label("You are").select_option(label="Sam Colleague")
    await expect(scene.page.get_by_text("everyone sees this")).to_be_visible()
    await expect(scene.page.get_by_text("for your eyes")).to_have_count(0)
    assert await scene.page.locator("#channels li").count() == 3
    await scene.send("it is Sam")
    await expect(scene.page.locator("#messages .author").last).to_have_text("Sam")


@pytest.mark.long
async def test_dark_and_light(scene: Scene) -> None:
    """The page follows the system's choice, and the toggle overrides it across reloads."""
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = await scene.page.evaluate(background)
    await scene.page.emulate_media(color_scheme="dark")
    dark = await scene.page.evaluate(background)
    assert dark != light
    await scene.page.get_by_role("button", name="Switch between light and dark").click()
    assert await scene.page.evaluate(background) == light
    await scene.page.reload()
    assert await scene.page.evaluate(background) == light


@pytest.mark.long
async def test_escape_on_a_narrow_page(scene: Scene) -> None:
    """At 375 px it closes the menu of channels, and a thread; the keyboard goes on where it should."""
    page = scene.page
    await page.set_viewport_size({"width": 375, "height": 667})
    await page.locator("#menu").click()
    await expect(page.locator("body.menu-open")).to_have_count(1)
    await page.keyboard.press("Escape")
    await expect(page.locator("body.menu-open")).to_have_count(0)
    await expect(page.locator("#menu")).to_be_focused()
    root = await scene.client.say("a question")
    await scene.client.say("a reply", thread_ts=root)
    await page.get_by_role("button", name="1 reply").click()
    await expect(scene.thread).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(scene.thread).to_be_hidden()
    await expect(page.locator("#channel textarea")).to_be_focused()


async def test_a_narrow_window_needs_no_sideways_scrolling(scene: Scene) -> None:
    """At 380 px everything fits, the menu opens the channels, and a thread takes the whole width."""
    await scene.page.set_viewport_size({"width": 380, "height": 700})
    wide = {
        "type": "markdown",
        "text": f"| a | b |\n|---|---|\n| {'x' * 60} | {'y' * 60} |\n\n`{'z' * 200}`",
    }
    root = (await scene.web.chat_postMessage(channel=GENERAL, text="x", blocks=[wide]))["ts"]
    await scene.client.say("reply", thread_ts=root)
    await expect(scene.page.locator("#messages table")).to_be_visible()
    assert await scene.page.evaluate("document.documentElement.scrollWidth") == 380
    await scene.page.get_by_role("button", name="Show channels").click()
    await expect(scene.page.get_by_role("button", name="random")).to_be_visible()
    await scene.page.get_by_role("button", name="Show channels").click()
    await scene.page.get_by_role("button", name="1 reply").click()
    await expect(scene.thread.get_by_text("reply", exact=True)).to_be_visible()
    await expect(scene.page.locator("#channel")).to_be_hidden()
    assert await scene.page.evaluate("document.documentElement.scrollWidth") == 380


@pytest.mark.long
async def test_banners_and_links_are_shown(scene: Scene) -> None:
    """Banners stand on top, and the traces and deliveries are one link away."""
    await expect(scene.page.locator("#banners")).to_contain_text("This is a test.")
    await expect(scene.page.get_by_role("link", name="Traces")).to_have_attribute("href", "/traces")
    await scene.send("@Orion hello")
    await expect(scene.thread.get_by_role("heading", name="Done")).to_be_visible()
    await scene.page.get_by_role("link", name="Deliveries").click()
    await expect(scene.page.locator("#deliveries tbody tr")).to_have_count(2)


@pytest.mark.long
async def test_new_messages_are_announced(scene: Scene) -> None:
    """Assistive technology hears of a colleague's message."""
    await scene.client.say("hello all", user=COLLEAGUE)
    await expect(scene.page.locator("#announcer")).to_have_text("Sam: hello all")


@pytest.mark.parametrize(
    "path",
    [r"/ui/state\?", r"/ui/messages\?", "/static/page.js", "/static/text.js", "/static/style.css"],
)
async def test_a_request_that_is_broken_off_is_made_again(
    scene: Scene, browser: Browser, path: str
) -> None:
    """A browser does that to all that is on its way when a network of the machine changes; what is said stands there all the same."""
    await scene.client.say("here I am")
    page, broken = await browser.new_page(), 0

    async def break_once(route: Route) -> None:
        nonlocal broken
        broken += 1
        await (route.abort("failed") if broken == 1 else route.continue_())

    await page.route(re.compile(path), break_once)
    await page.goto(scene.url)
    await until(lambda: broken > 1)
    await expect(page.locator("#messages")).to_contain_text("here I am")
    await expect(page.locator("body[data-live]")).to_be_attached()
    await page.close()


async def test_a_page_that_stays_broken_begins_anew_five_times(
    scene: Scene, browser: Browser
) -> None:
    """And not for ever; when it is whole again, it may as often as before."""
    page, loads = await browser.new_page(), Counter[str]()
    page.on("load", lambda page: loads.update([page.url]))
    await page.route("**/static/text.js", lambda route: route.abort("failed"))
    await page.goto(scene.url)
    await until(lambda: loads.total() == 6)
    assert await page.evaluate("sessionStorage.getItem('orion-reloads')") == "-1"
    await page.unroute("**/static/text.js")
    await page.goto(scene.url)
    assert await page.evaluate("sessionStorage.getItem('orion-reloads')") == "5"
    await page.close()


async def test_the_page_recovers_from_a_restart(browser: Browser) -> None:
    """After the connection breaks the page reconnects and shows what it missed."""
    app = create_slack_app(FakeSlackConfig(rate_limits="off"))
    async with serve(app) as url:
        port = int(url.rpartition(":")[2])
        page = await browser.new_page()
        await page.goto(url)
        await expect(page.get_by_role("heading", name="#general")).to_be_visible()
    await expect(page.locator("#connection")).to_have_text("Reconnecting")
    app.state.fake_slack.workspace.listeners.clear()
    app.state.fake_slack.workspace.say(user=COLLEAGUE, channel_ref="general", typed="missed this")
    async with serve(app, port=port):
        await expect(page.get_by_text("missed this")).to_be_visible(timeout=15_000)
        await expect(page.locator("#connection")).to_have_text("")
        await page.close()

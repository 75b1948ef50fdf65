"""The page in a real browser, with a small scripted bot on the other side."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, Request
from playwright.async_api import Browser, Locator, Page, async_playwright, expect
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.client import LookalikeClient, open_client, until
from app.playground.lookalike import SlackLookalike
from app.playground.slack_app import create_slack_app
from app.playground.slack_types import COLLEAGUE, GENERAL, YOU, LookalikeConfig
from app.web.hosting import serve

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

HOSTILE = """<script>window.pwned = 1</script>
<img src=x onerror="window.pwned = 2"> <svg onload="window.pwned = 3">
[click](javascript:window.pwned=4) [data](data:text/html,<script>window.pwned=5</script>) <javascript:window.pwned=6>
**<b onmouseover="window.pwned=7">bold</b>** `<i>code</i>` | <u>x</u> |
[ok](https://example.com/"onmouseover="window.pwned=8)

```html"><script>window.pwned = 9</script>
</code></pre><script>window.pwned = 10</script>
```
"""


def _plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def _button(text: str, action_id: str) -> dict[str, Any]:
    return {"type": "button", "action_id": action_id, "style": "danger", "text": _plain(text)}


FEEDBACK = {
    "type": "context_actions",
    "elements": [
        {
            "type": "feedback_buttons",
            "action_id": "feedback",
            "positive_button": {"text": _plain("Good answer"), "value": "good"},
            "negative_button": {"text": _plain("Bad answer"), "value": "bad"},
        }
    ],
}


class Bot:
    """Answers a mention with a thinking message, and the word that follows with its update."""

    def __init__(self, web: AsyncWebClient) -> None:
        self.app = FastAPI()
        self.actions: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._web = web
        self.app.add_api_route("/slack/events", self._receive, methods=["POST"])

    async def _receive(self, request: Request, later: BackgroundTasks) -> None:
        body = await request.body()
        if request.headers["content-type"].startswith("application/x-www-form"):
            self.actions.append({"form": body.decode()})
            return
        event = (await request.json())["event"]
        self.events.append(event)
        if event["type"] == "app_mention" or event.get("channel_type") == "im":
            later.add_task(self._answer, event)

    async def _answer(self, event: dict[str, Any]) -> None:
        thread_ts = event.get("thread_ts") or event["ts"]
        where = {"channel_id": event["channel"], "thread_ts": thread_ts}
        blocks = [{"type": "actions", "elements": [_button("Stop it", "stop_run")]}]
        section = {"type": "section", "text": {"type": "mrkdwn", "text": "_Thinking_ about it"}}
        posted = await self._web.chat_postMessage(
            channel=event["channel"],
            thread_ts=thread_ts,
            text="Thinking",
            blocks=[section, *blocks],
        )
        await self._web.agents_sessions_setStatus(status="processing", **where)
        if "wait" in event["text"]:
            return
        markdown = {"type": "markdown", "text": "## Done\n\nThe **answer**: `42`"}
        await self._web.chat_update(
            channel=event["channel"], ts=posted["ts"], text="Done", blocks=[markdown, FEEDBACK]
        )
        await self._web.agents_sessions_setStatus(status="active", **where)


@dataclass
class Scene:
    page: Page
    url: str
    client: LookalikeClient
    web: AsyncWebClient
    bot: Bot
    lookalike: SlackLookalike

    @property
    def thread(self) -> Locator:
        return self.page.locator("#thread")

    async def send(self, text: str) -> None:
        box = self.page.get_by_role("combobox", name="Message #general")
        await box.fill(text)
        await box.press("Enter")


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=CHROMIUM_ARGS, timeout=30_000
        )
        yield browser
        await browser.close()


@pytest.fixture
async def scene(browser: Browser) -> AsyncIterator[Scene]:
    config = LookalikeConfig(
        rate_limits="off", send_bot_events=False, twin_gap_s=0.01, banners=("This is a test.",)
    )
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        app = create_slack_app(config)
        url = await stack.enter_async_context(serve(app))
        web = AsyncWebClient(token=config.bot_token, base_url=f"{url}/api/")
        bot = Bot(web)
        bot_url = await stack.enter_async_context(serve(bot.app))
        lookalike: SlackLookalike = app.state.lookalike
        lookalike.events_url = f"{bot_url}/slack/events"
        client = await stack.enter_async_context(open_client(url))
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda line: problems.append(line.text) if line.type == "error" else None
        )
        page.set_default_timeout(10_000)
        await page.goto(url)
        await expect(page.locator("body[data-live]")).to_be_attached()
        yield Scene(page, url, client, web, bot, lookalike)
        await page.close()
    assert problems == []


async def test_a_question_is_asked_and_answered_live(scene: Scene) -> None:
    """A typed mention opens its thread, where the thinking message turns into the answer without a reload."""
    await scene.page.evaluate("window.stayed = true")
    await scene.send("@Orion hello")
    message = scene.page.locator("#messages .message", has_text="@Orion hello")
    await expect(message.locator(".mention")).to_have_text("@Orion")
    await expect(scene.thread.get_by_role("heading", name="Done")).to_be_visible()
    await expect(scene.thread.locator("strong", has_text="answer")).to_be_visible()
    await expect(scene.thread.get_by_text("Thinking")).to_have_count(0)
    await expect(message.get_by_role("button", name="1 reply")).to_be_visible()
    assert await scene.page.evaluate("window.stayed") is True
    assert scene.bot.events[0]["text"] == "<@U0ORION> hello"


async def test_an_update_keeps_the_message_in_place(scene: Scene) -> None:
    """An update changes the body of the same element, and a reader who scrolled up stays where they are."""
    root = await scene.client.say("root")
    for number in range(40):
        await scene.client.say(f"line {number}", user=COLLEAGUE)
    ts = (await scene.web.chat_postMessage(channel=GENERAL, text="first"))["ts"]
    item = scene.page.locator(f'#messages [data-ts="{ts}"]')
    await expect(item).to_contain_text("first")
    await scene.page.evaluate("document.querySelector('#messages-scroller').scrollTop = 100")
    await item.evaluate("node => { node.marked = true; }")
    for number in range(5):
        await scene.web.chat_update(
            channel=GENERAL, ts=ts, text=f"version {number}\n" * (number + 1)
        )
    await expect(item).to_contain_text("version 4")
    await expect(item.locator(".edited")).to_be_visible()
    assert await item.evaluate("node => node.marked") is True
    assert (
        await scene.page.evaluate("document.querySelector('#messages-scroller').scrollTop") == 100
    )
    assert await scene.page.locator(f'#messages [data-ts="{root}"]').count() == 1


async def test_the_reader_at_the_end_follows(scene: Scene) -> None:
    """Whoever reads the end sees new messages without scrolling."""
    for number in range(40):
        await scene.client.say(f"line {number}", user=COLLEAGUE)
    last = scene.page.locator("#messages .message").last
    await expect(last).to_contain_text("line 39")
    await expect(last).to_be_in_viewport()


async def test_buttons_reach_the_app(scene: Scene) -> None:
    """Pressing a danger button and a feedback button sends the action; feedback shows which was pressed."""
    await scene.send("@Orion wait")
    stop = scene.thread.get_by_role("button", name="Stop it")
    await expect(stop).to_have_class(re.compile("danger"))
    await stop.click()
    await scene.send("@Orion hello")
    good = scene.thread.get_by_role("button", name="Good answer")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "true")
    forms = [action["form"] for action in scene.bot.actions]
    assert len(forms) == 2
    assert "stop_run" in forms[0]
    assert "%22value%22%3A+%22good%22" in forms[1]


async def test_the_native_stop_shows_while_processing(scene: Scene) -> None:
    """A session in processing offers Stop; pressing it sends the event; leaving processing takes it away."""
    await scene.send("@Orion wait")
    stop = scene.thread.locator("#session").get_by_role("button", name="Stop")
    await stop.click()
    await until(lambda: scene.bot.events[-1]["type"] == "agent_session_stopped")
    thread_ts = scene.bot.events[-1]["thread_ts"]
    await scene.web.agents_sessions_setStatus(
        channel_id=GENERAL, thread_ts=thread_ts, status="active"
    )
    await expect(scene.thread.locator("#session")).to_be_hidden()


async def test_hostile_text_stays_text(scene: Scene) -> None:
    """Markup, handlers and script addresses in any kind of text run nothing and become no element."""
    blocks: list[dict[str, Any]] = [
        {"type": "markdown", "text": HOSTILE},
        {
            "type": "section",
            "text": {"type": "mrkdwn", "text": HOSTILE[:2900] + "<javascript:alert(1)|x>"},
        },
        {"type": "header", "text": _plain("<script>window.pwned=11</script>")},
        {
            "type": "context",
            "elements": [{"type": "mrkdwn", "text": '<https://a.example/"onclick=|<b>x>'}],
        },
        {"type": "actions", "elements": [_button("<img src=x onerror=window.pwned=12>", "x")]},
    ]
    await scene.web.chat_postMessage(channel=GENERAL, text="fallback", blocks=blocks)
    await scene.web.chat_postMessage(channel=GENERAL, text=HOSTILE)
    await scene.client.say(HOSTILE)
    items = scene.page.locator("#messages .message")
    await expect(items).to_have_count(3)
    await items.first.hover()
    assert await scene.page.evaluate("window.pwned") is None
    assert (
        await items.locator(
            "script, img, i, u, b, [onerror], [onclick], [onload], [onmouseover]"
        ).count()
        == 0
    )
    hrefs = await items.locator("a").evaluate_all("nodes => nodes.map(node => node.protocol)")
    assert set(hrefs) <= {"https:", "http:", "mailto:"}
    await expect(items.first).to_contain_text("<script>window.pwned = 1</script>")


async def test_markdown_is_drawn(scene: Scene) -> None:
    """Headings, lists, tables, quotes, fences and inline marks of a markdown block become their elements."""
    text = (
        "# Title\n\npara *it* **bold** ~~gone~~ `a < b` [link](https://example.com/x_(y))\n\n- one\n  - two\n- three\n\n"
        "5. five\n6. six\n\n> quoted\n\n| A | B |\n|---|--:|\n| 1 | `x` |\n\n```py\nif a < b:\n    pass\n```\n\n---\nsnake_case_name"
    )
    await scene.web.chat_postMessage(
        channel=GENERAL, text="x", blocks=[{"type": "markdown", "text": text}]
    )
    body = scene.page.locator("#messages .message-body")
    await expect(body.locator("h3")).to_have_text("Title")
    await expect(body.locator("em")).to_have_text("it")
    await expect(body.locator("strong")).to_have_text("bold")
    await expect(body.locator("s")).to_have_text("gone")
    await expect(body.locator("p > code")).to_have_text("a < b")
    await expect(body.locator("a")).to_have_attribute("href", "https://example.com/x_(y)")
    await expect(body.locator("ul > li > ul > li")).to_have_text("two")
    await expect(body.locator(".markdown > ul > li")).to_have_count(2)
    await expect(body.locator("ol")).to_have_attribute("start", "5")
    await expect(body.locator("blockquote")).to_have_text("quoted")
    await expect(body.locator("td")).to_have_text(["1", "x"])
    assert await body.locator("pre").inner_text() == "if a < b:\n    pass"
    await expect(body.locator("p", has_text="snake_case_name")).to_have_text("snake_case_name")


async def test_the_composer_completes_and_breaks_lines(scene: Scene) -> None:
    """ "@O" offers the bot, Enter takes it; Shift+Enter breaks the line; Enter sends."""
    box = scene.page.get_by_role("combobox", name="Message #general")
    await box.click()
    await box.press_sequentially("@o")
    await expect(scene.page.get_by_role("option", name="@Orion")).to_have_attribute(
        "aria-selected", "true"
    )
    await box.press("Enter")
    await expect(box).to_have_value("@Orion ")
    await box.press_sequentially("one")
    await box.press("Shift+Enter")
    await box.press_sequentially("two")
    await box.press("Enter")
    await expect(box).to_have_value("")
    await until(lambda: len(scene.bot.events) > 0)
    assert scene.bot.events[0]["text"] == "<@U0ORION> one\ntwo"


async def test_the_examples_lead_into_the_first_use(scene: Scene) -> None:
    """An empty channel offers four examples; the direct message one opens the DM and asks there."""
    hint = scene.page.get_by_role("region", name="Things to try")
    await expect(hint.get_by_role("button")).to_have_count(4)
    await hint.get_by_role("button", name="A direct message to Orion").click()
    await expect(scene.page.get_by_role("heading", name="Orion", exact=True)).to_be_visible()
    await expect(scene.thread.get_by_role("heading", name="Done")).to_be_visible()
    assert scene.bot.events[0]["channel_type"] == "im"


async def test_unread_channels_are_marked_until_opened(scene: Scene) -> None:
    """A message elsewhere puts a dot on its channel, and opening the channel takes it away."""
    await scene.client.say("psst", channel="random", user=COLLEAGUE)
    entry = scene.page.locator('#channels [data-channel="C0RANDOM"]')
    await expect(entry.get_by_label("unread")).to_be_visible()
    await entry.get_by_role("button").click()
    await expect(entry.get_by_label("unread")).to_have_count(0)
    await expect(scene.page.locator("#messages")).to_contain_text("psst")


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


async def test_a_failure_is_told(scene: Scene) -> None:
    """A press that the app does not take shows a toast; a refused message comes back into the box."""
    scene.lookalike.events_url = None
    blocks = [{"type": "actions", "elements": [_button("Stop it", "stop_run")]}]
    await scene.web.chat_postMessage(channel=GENERAL, text="x", blocks=blocks)
    await scene.page.get_by_role("button", name="Stop it").click()
    await expect(scene.page.get_by_role("alert")).to_contain_text("did not take it")


async def test_banners_and_links_are_shown(scene: Scene) -> None:
    """Banners stand on top, and the traces and deliveries are one link away."""
    await expect(scene.page.locator("#banners")).to_contain_text("This is a test.")
    await expect(scene.page.get_by_role("link", name="Traces")).to_have_attribute("href", "/traces")
    await scene.send("@Orion hello")
    await expect(scene.thread.get_by_role("heading", name="Done")).to_be_visible()
    await scene.page.get_by_role("link", name="Deliveries").click()
    await expect(scene.page.locator("#deliveries tbody tr")).to_have_count(2)


async def test_new_messages_are_announced(scene: Scene) -> None:
    """Assistive technology hears of a colleague's message."""
    await scene.client.say("hello all", user=COLLEAGUE)
    await expect(scene.page.locator("#announcer")).to_have_text("Sam: hello all")


async def test_the_page_recovers_from_a_restart(browser: Browser) -> None:
    """After the connection breaks the page reconnects and shows what it missed."""
    app = create_slack_app(LookalikeConfig(rate_limits="off"))
    async with serve(app) as url:
        port = int(url.rpartition(":")[2])
        page = await browser.new_page()
        await page.goto(url)
        await expect(page.get_by_role("heading", name="#general")).to_be_visible()
    await expect(page.locator("#connection")).to_have_text("Reconnecting")
    app.state.lookalike.workspace.listeners.clear()
    app.state.lookalike.workspace.say(user=COLLEAGUE, channel_ref="general", typed="missed this")
    async with serve(app, port=port):
        await expect(page.get_by_text("missed this")).to_be_visible(timeout=15_000)
        await expect(page.locator("#connection")).to_have_text("")
        await page.close()

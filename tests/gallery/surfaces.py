"""`python -m tests.gallery.surfaces`: pictures of what people see of Orion in Slack, made anew from a real playground."""

import asyncio
import base64
import html
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Locator, Page, expect

from app.playground.slack.types import COLLEAGUE, GENERAL, PAGER, YOU
from app.web.hosting import serve
from tests.browser.playground_process import run_playground
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.gallery.pictures import IMAGES, THEMES, Theme, open_browser
from tests.git_server import GitServer, settings_for

COLUMNS: Final = 3
WIDTH, HEIGHT = 800, 560
"""Of one surface, in CSS pixels."""
ANSWER_MS: Final = 60_000
DM: Final = "D0YOU"
RULES: Final = """
[[rules]]
words = ["invoice"]
repo = "acme/billing"

[[rules]]
words = ["website"]
repo = "acme/site"

[[approvals]]
pull_request = "acme/*"
decision = "ask"
"""


class Scene:
    def __init__(self, page: Page, client: FakeSlackClient, git: GitServer, url: str) -> None:
        self.page = page
        self.client = client
        self.git = git
        self._url = url

    @property
    def answer(self) -> Locator:
        """What stands last in the thread that is open."""
        return self.page.locator("#replies .message").last

    async def open(self, channel: str = GENERAL, ts: str = "") -> None:
        """Opens a channel, or a thread of it."""
        await self.page.goto(
            f"{self._url}/archives/{channel}/p{ts.replace('.', '')}" if ts else self._url
        )
        if not ts and channel == DM:
            await self.page.locator("#directs").get_by_role("button", name="Orion").click()

    async def ask(self, text: str, *, channel: str = GENERAL, thread_ts: str | None = None) -> str:
        """Says something and opens its thread; returns its ts."""
        ts = await self.client.say(text, channel=channel, thread_ts=thread_ts)
        await self.open(channel, thread_ts or ts)
        return ts

    async def until_answered(self) -> None:
        await expect(self.answer.get_by_role("button", name="Good answer")).to_be_visible()


async def _mention(scene: Scene) -> None:
    await scene.ask("@Orion run: grep -rn TODO / --include=none; sleep 8")
    await expect(scene.answer.locator(".context").first).to_contain_text("grep")


async def _answer(scene: Scene) -> None:
    await scene.ask(
        "@Orion run: mkdir -p out && printf 'route,ms\\n/login,41\\n' > out/times.csv && cat out/times.csv"
    )
    await expect(scene.page.locator("#replies .file").first).to_contain_text("times.csv")


async def _stream(scene: Scene) -> None:
    await scene.ask("run: uname -a && sleep 8", channel=DM)
    await expect(scene.page.locator("#replies .plan")).to_be_visible()
    await expect(scene.page.locator("#replies .task", has_text="uname")).to_be_visible()


async def _home(scene: Scene) -> None:
    await scene.open(DM)
    await scene.page.get_by_role("tab", name="Home").click()
    home = scene.page.get_by_role("region", name="Home")
    await expect(home.get_by_role("heading").first).to_be_visible()


async def _operators_home(scene: Scene) -> None:
    await _home(scene)
    await scene.page.locator("#home").evaluate("home => home.scrollTo(0, home.scrollHeight)")


async def _prompts(scene: Scene) -> None:
    await scene.open(DM)
    await expect(scene.page.locator("#prompts button").first).to_be_visible()


async def _command(scene: Scene) -> None:
    await scene.open()
    box = scene.page.locator("#composer-main").get_by_role("combobox")
    await box.fill("/orion help")
    await box.press("Enter")
    await expect(scene.page.locator("#messages .message.ephemeral")).to_be_visible()


async def _shortcut(scene: Scene) -> None:
    card = {"title": "Disk full on web-1", "text": "Use is *91 %*", "footer": "prometheus"}
    await scene.client.say("", user=PAGER, attachments=[card])
    await scene.open()
    message = scene.page.locator("#messages .message", has_text="Disk full").last
    await message.hover()
    await message.get_by_role("button", name="Ask Orion about this").click()
    await scene.page.get_by_role("dialog").get_by_role("textbox").fill("Which directory grows?")


async def _thumb(scene: Scene) -> None:
    await scene.ask("@Orion is the cache warm?")
    await scene.until_answered()
    await scene.answer.get_by_role("button", name="Bad answer").click()
    await scene.page.get_by_role("dialog").get_by_role("textbox").fill("it did not look")


async def _queue(scene: Scene) -> None:
    root = await scene.ask("@Orion !slow 30")
    await scene.client.say("@Orion and the tests, too", thread_ts=root)
    await expect(scene.page.get_by_role("button", name="Send now")).to_be_visible()


async def _memory(scene: Scene) -> None:
    await scene.ask("@Orion remember we deploy on Tuesdays, never on Fridays")
    await scene.until_answered()
    await scene.ask("@Orion what do you know here?")
    await expect(scene.answer).to_contain_text("Tuesdays")


async def _question(scene: Scene) -> None:
    await scene.ask("@Orion the invoice on the website has the wrong date")
    await expect(scene.page.get_by_role("button", name="acme/billing")).to_be_visible()


async def _failure(scene: Scene) -> None:
    await scene.ask("@Orion !context")
    await expect(scene.answer.get_by_role("button", name="Show log")).to_be_visible()


async def _settings(scene: Scene) -> None:
    await scene.ask("@Orion settings")
    await expect(scene.answer.get_by_role("button", name="Your model keys")).to_be_visible()


async def _whole_message(scene: Scene) -> None:
    card = {"title": "Checkout is slow", "fields": [{"title": "p99", "value": "4.2 s"}]}
    ts = await scene.client.say("look at this", user=COLLEAGUE, attachments=[card])
    asked = await scene.client.say(
        "@Orion what is wrong?",
        files={"trace.log": b"boom", "core.bin": b"x" * 3_000_000},
        forward=(GENERAL, ts),
    )
    await scene.open(GENERAL, asked)
    await scene.until_answered()


async def _approval(scene: Scene) -> None:
    await scene.ask("@Orion repo=acme/api pr=yes run: echo cached >> README")
    await expect(scene.page.get_by_role("button", name="Allow for this thread")).to_be_visible()


async def _pull_request(scene: Scene) -> None:
    """Goes on in the same thread."""
    await scene.page.get_by_role("button", name="Allow", exact=True).click()
    await expect(scene.page.locator("#replies")).to_contain_text("Pull request:")
    scene.git.pages.check("lint", "success")
    scene.git.pages.check("unit tests", "failure")
    await expect(scene.page.get_by_role("button", name="Fix it")).to_be_visible()


SURFACES: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    "a mention, at work": _mention,
    "its answer, with a file": _answer,
    "a direct message, as it is written": _stream,
    "Home": _home,
    "Home, for operators": _operators_home,
    "a conversation's beginning": _prompts,
    "/orion help": _command,
    "Ask Orion about this": _shortcut,
    "why a thumb is down": _thumb,
    "a message that waits": _queue,
    "what a channel remembers": _memory,
    "which repository is meant": _question,
    "a pull request that waits for a yes": _approval,
    "what becomes of it": _pull_request,
    "settings": _settings,
    "a failure": _failure,
    "what came with a message, and what did not": _whole_message,
}


@asynccontextmanager
async def open_scene(browser: Browser, git: GitServer, url: str) -> AsyncIterator[Scene]:
    page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.set_default_timeout(ANSWER_MS)
    async with open_client(url) as client:
        yield Scene(page, client, git, url)
    await page.close()


async def sheet(browser: Browser, theme: Theme, pictures: Mapping[str, bytes]) -> bytes:
    """One picture of all, each below its name."""
    colours = (
        "color: #ddd; background: #111" if theme == "dark" else "color: #222; background: #fff"
    )
    tiles = "".join(
        f'<figure><figcaption>{html.escape(name)}</figcaption><img src="data:image/png;base64,{base64.b64encode(data).decode()}"></figure>'
        for name, data in pictures.items()
    )
    page = await browser.new_page(viewport={"width": COLUMNS * (WIDTH + 20), "height": 100})
    await page.set_content(
        f"<style>body {{ margin: 0; font: 18px sans-serif; {colours} }} figure {{ margin: 10px; }} img {{ border: 1px solid #888; }}"
        f"body {{ display: grid; grid-template-columns: repeat({COLUMNS}, 1fr); }}</style>{tiles}"
    )
    sheet = await page.screenshot(full_page=True)
    await page.close()
    return sheet


async def main() -> None:
    expect.set_options(timeout=ANSWER_MS)
    pictures: dict[Theme, dict[str, bytes]] = {theme: {} for theme in THEMES}
    with tempfile.TemporaryDirectory(prefix="o-") as directory:
        Path(directory, "orion.toml").write_text(RULES)  # noqa: ASYNC240 - nothing else goes on yet
        git = GitServer(root=Path(directory, "git"))
        git.filled("acme/api", {"README": "An API.\n"})
        async with AsyncExitStack() as stack:
            git_url = await stack.enter_async_context(serve(git.app()))
            url = stack.enter_context(
                run_playground(
                    Path(directory),
                    ORION_OPERATORS=YOU,
                    ORION_FILE_MAX_MIB="2",
                    **settings_for(git_url),
                )
            )
            async with open_browser() as browser, open_scene(browser, git, url) as scene:
                for name, play in SURFACES.items():
                    await play(scene)
                    for theme in THEMES:
                        await scene.page.emulate_media(color_scheme=theme)
                        pictures[theme][name] = await scene.page.screenshot(animations="disabled")
                    sys.stdout.write(f"{name}\n")
                for theme in THEMES:
                    path = IMAGES / f"surfaces-{theme}.png"
                    path.write_bytes(await sheet(browser, theme, pictures[theme]))
                    sys.stdout.write(f"{path}: {path.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    asyncio.run(main())

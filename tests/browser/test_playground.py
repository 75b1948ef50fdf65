"""A person in a browser at the real playground: real Orion, sandbox, script and broker; only the model is offline."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from app.settings.settings import host_environment
from tests.browser.building import problems_of
from tests.browser.playground_process import run_playground

pytestmark = [
    pytest.mark.browser,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(240),
]

FIRST_ANSWER_MS = 180_000
ANSWER_MS = 60_000
# An agent gives way to everything else on a busy machine; the default is 5 s.
expect.set_options(timeout=60_000)
SCREENSHOTS = host_environment().get("ORION_SCREENSHOTS")


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an `orion playground` of its own, shared by this file."""
    with run_playground(tmp_path_factory.mktemp("playground"), ORION_TRACE_LINKS="true") as url:
        yield url


@pytest.fixture
async def page(playground: str, browser: Browser) -> AsyncIterator[Page]:
    """The playground's page, open on #general; ends with the demand that the browser had nothing to complain of."""
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    problems = problems_of(page)
    page.set_default_timeout(ANSWER_MS)
    await page.goto(playground)
    await expect(page.get_by_role("heading", name="#general")).to_be_visible()
    yield page
    await page.close()
    assert problems == []


async def _send(page: Page, text: str) -> Locator:
    """Write into the open channel; the thread that opens beside it."""
    box = page.locator("#composer-main").get_by_role("combobox")
    await box.fill(text)
    await box.press("Enter")
    thread = page.locator("#thread")
    await expect(thread.locator("#replies .message").first).to_contain_text(
        text.removeprefix("@Orion ")
    )
    return thread


def _reply(thread: Locator) -> Locator:
    return thread.locator("#replies .message").nth(1)


async def _shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        await page.screenshot(path=Path(SCREENSHOTS, f"{name}.png"))


async def test_a_mention_is_answered_live_and_traced(page: Page) -> None:
    """The thinking message turns into the answer without a reload, and the run's trace opens with its steps."""
    await page.evaluate("window.stayed = true")
    thread = await _send(page, "@Orion hello")
    reply = _reply(thread)
    await expect(reply.get_by_role("button", name="Stop")).to_be_visible()
    ts = await reply.get_attribute("data-ts")
    await _shot(page, "1-thinking")
    await expect(reply).to_contain_text("You wrote: “hello”", timeout=FIRST_ANSWER_MS)
    await expect(reply.get_by_role("button", name="Stop")).to_have_count(0)
    assert await reply.get_attribute("data-ts") == ts
    assert await page.evaluate("window.stayed") is True
    await _shot(page, "2-answer")
    link = await reply.get_by_role("link", name="trace", exact=True).get_attribute("href")
    trace_id = str(link).rpartition("/")[2]

    await page.get_by_role("link", name="Traces").click()
    await page.locator("#list .entry", has_text="hello").last.click()
    await expect(page).to_have_url(re.compile(f"/traces/{trace_id}$"))
    steps = page.get_by_role("tree", name="Steps of the run")
    for name in ("place-message", "take-warm", "execute-agent", "slack-update"):
        await expect(steps.get_by_role("treeitem").filter(has_text=name).first).to_be_visible()
    await expect(steps.get_by_role("img", name="generation").first).to_be_visible()
    await expect(page.locator("#trace .chips")).to_contain_text("OK")
    await _shot(page, "3-trace")


@pytest.mark.long
async def test_a_direct_message_is_answered(page: Page) -> None:
    """In a direct message no mention is needed, and the answer comes in its thread."""
    await page.locator("#directs").get_by_role("button", name="Orion").click()
    await expect(page.get_by_role("heading", name="Orion", exact=True)).to_be_visible()
    thread = await _send(page, "what can you do?")
    await expect(_reply(thread)).to_contain_text(
        "You wrote: “what can you do?”", timeout=FIRST_ANSWER_MS
    )
    await _shot(page, "4-direct-message")


@pytest.mark.long
async def test_a_tool_call_is_shown(page: Page) -> None:
    """While a command runs the message names it, and the answer shows what it gave back."""
    thread = await _send(page, "@Orion run: ls -la / && sleep 4")
    reply = _reply(thread)
    tool = reply.locator(".context", has_text="shell ls -la / && sleep 4")
    await expect(tool).to_be_visible(timeout=FIRST_ANSWER_MS)
    await _shot(page, "5-tool-in-progress")
    await expect(reply).to_contain_text("This is what came back")
    await expect(reply.locator("pre")).to_contain_text("drwx")
    await expect(reply).to_contain_text("1 step")
    await _shot(page, "6-tool-answer")


@pytest.mark.long
async def test_stop_stops(page: Page) -> None:
    """Pressing Stop on a slow answer ends it, says by whom, and keeps what was written."""
    thread = await _send(page, "@Orion !slow 60")
    reply = _reply(thread)
    await expect(reply).to_contain_text("offline model", timeout=FIRST_ANSWER_MS)
    await _shot(page, "7-slow-answer")
    await reply.get_by_role("button", name="Stop").click()
    await expect(reply).to_contain_text("Stopped by")
    await expect(reply).to_contain_text("@You")
    await expect(reply).to_contain_text("offline model")
    await expect(reply.get_by_role("button", name="Stop")).to_have_count(0)
    await _shot(page, "8-stopped")


@pytest.mark.long
async def test_feedback_becomes_a_score(page: Page) -> None:
    """A thumb on an answer stands as a score on the trace of its run."""
    thread = await _send(page, "@Orion is this useful?")
    good = _reply(thread).get_by_role("button", name="Good answer")
    await good.click(timeout=FIRST_ANSWER_MS)
    await expect(good).to_have_attribute("aria-pressed", "true")
    await _shot(page, "9-feedback")
    await page.get_by_role("link", name="Traces").click()
    await page.locator("#list .entry", has_text="is this useful?").click()
    await expect(
        page.locator("#trace .badge", has_text=re.compile("feedback: good"))
    ).to_be_visible()
    await _shot(page, "10-score")


@pytest.mark.long
async def test_what_was_wrong_is_asked_and_kept(page: Page) -> None:
    """In a modal after a thumb down; what is written stands with the score on the run's trace."""
    reply = _reply(await _send(page, "@Orion is this wrong?"))
    await reply.get_by_role("button", name="Bad answer").click(timeout=FIRST_ANSWER_MS)
    modal = page.get_by_role("dialog", name="What was wrong?")
    await modal.get_by_role("textbox").fill("it left out the year")
    await _shot(page, "11-what-was-wrong")
    await modal.get_by_role("button", name="Send").click()
    await expect(modal).to_have_count(0)
    await page.get_by_role("link", name="Traces").click()
    await page.locator("#list .entry", has_text="is this wrong?").click()
    said = re.compile('feedback: bad, "it left out the year"')
    await expect(page.locator("#trace .badge", has_text=said)).to_be_visible()


@pytest.mark.long
async def test_a_person_gives_a_key_of_their_own(page: Page) -> None:
    """In a modal below the answer to `settings`: corrected where it is wrong, kept, shown by its end, taken back."""
    reply = _reply(await _send(page, "@Orion settings"))
    button = reply.get_by_role("button", name="Your model keys")
    await button.click(timeout=FIRST_ANSWER_MS)
    modal = page.get_by_role("dialog", name="Your model keys")
    key = modal.get_by_label("OpenAI")
    await key.fill("two words")
    await modal.get_by_role("button", name="Save").click()
    await expect(modal.get_by_role("alert").filter(has_text="neither blanks")).to_be_visible()
    await _shot(page, "9-own-key")
    await key.fill("own-key-of-a-person-1234")
    await modal.get_by_role("button", name="Save").click()
    await expect(modal).to_have_count(0)
    await button.click()
    await expect(modal).to_contain_text("There is one that ends in 1234")
    await modal.get_by_role("checkbox", name="OpenAI").check()
    await _shot(page, "10-own-key-kept")
    await modal.get_by_role("button", name="Save").click()
    await expect(modal).to_have_count(0)
    await button.click()
    await expect(modal).to_be_visible()
    await expect(modal.get_by_role("checkbox")).to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(modal).to_have_count(0)
    await expect(button).to_be_visible()

"""Files and forwarded messages on the page, in a real browser."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, FilePayload, expect

from app.playground.slack.types import COLLEAGUE, PAGER
from tests.browser.building import Scene

pytestmark = pytest.mark.browser


async def test_files_go_along_with_a_message(scene: Scene) -> None:
    """Picked, shown, one left out again, sent without a word; byte for byte."""
    composer = scene.page.locator("#composer-main")
    files: list[FilePayload] = [
        {
            "name": "data.bin",
            "mimeType": "application/octet-stream",
            "buffer": bytes(range(256)) * 400,
        },
        {"name": "not this.txt", "mimeType": "text/plain", "buffer": b"no"},
    ]
    await composer.locator("input[type=file]").set_input_files(files)
    await composer.get_by_role("button", name="Leave out not this.txt").click()
    await composer.get_by_role("button", name="Send").click()
    message = scene.page.locator("#messages .message").last
    await expect(message.locator(".file")).to_have_text("data.bin 102400 bytes")
    await expect(composer.locator(".chip")).to_have_count(0)
    (sent,) = await scene.client.messages()
    (stored,) = sent["files"]
    assert (stored["name"], stored["size"]) == ("data.bin", 102_400)
    answer = await scene.web.api_call("files.info", http_verb="GET", params={"file": stored["id"]})
    assert answer["file"]["size"] == 102_400


async def test_a_name_that_is_too_long_is_told(scene: Scene, browser: Browser) -> None:
    """As all that is too long; nothing is said, and the file lies in the box again."""
    page = await browser.new_page()  # of its own: a browser complains of each refusal
    await page.goto(scene.url)
    await expect(page.locator("body[data-live]")).to_be_attached()
    composer = page.locator("#composer-main")
    file: FilePayload = {"name": "n" * 201, "mimeType": "text/plain", "buffer": b"x"}
    await composer.locator("input[type=file]").set_input_files([file])
    await composer.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("alert")).to_have_text("That is too long, or nothing at all.")
    await expect(composer.locator(".chip")).to_have_count(1)
    assert await scene.client.messages() == []
    await page.close()


@pytest.mark.long
async def test_a_message_is_forwarded(scene: Scene) -> None:
    """From its own tools into the box; it stands quoted below the words, with its author and its files."""
    await scene.client.say("the deploy is red", user=COLLEAGUE, files={"trace.log": b"boom"})
    message = scene.page.locator("#messages .message").first
    await message.hover()
    await message.get_by_role("button", name="Forward").click()
    await expect(scene.page.locator("#composer-main .chip")).to_contain_text("Message of Sam")
    await scene.send("what is this?")
    quoted = scene.page.locator("#messages .message").last.locator(".attachment")
    await expect(quoted).to_contain_text("Sam Colleague")
    await expect(quoted).to_contain_text("the deploy is red")
    await expect(quoted).to_contain_text("trace.log 4 bytes")


@pytest.mark.long
async def test_a_card_of_another_app_is_drawn(scene: Scene) -> None:
    """Title and where it leads, text, fields and footer; the app is marked as one."""
    card = {
        "title": "Disk full on web-1",
        "title_link": "https://m.acme.org/i/7",
        "text": "Use is *91 %*",
        "fields": [{"title": "host", "value": "web-1"}, {"title": "load", "value": 97.5}],
        "footer": "prometheus",
    }
    await scene.client.say("", user=PAGER, attachments=[card])
    message = scene.page.locator("#messages .message").last
    await expect(message.locator(".badge")).to_have_text("App")
    for words in ("Disk full on web-1", "Use is 91 %", "host web-1", "load 97.5", "prometheus"):
        await expect(message.locator(".attachment")).to_contain_text(words)
    title = message.get_by_role("link", name="Disk full on web-1")
    await expect(title).to_have_attribute("href", "https://m.acme.org/i/7")

"""Slash commands, the message shortcut, the cross, the home tab and its prompts, as people find them on the page."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from app.playground.slack.types import COLLEAGUE, GENERAL
from tests.browser.building import Scene
from tests.waiting import until

pytestmark = pytest.mark.browser


async def test_a_command_is_answered_to_who_wrote_it(scene: Scene) -> None:
    """As a message that is visible to them only; nothing is posted of the command."""
    await scene.send("/orion status")
    answer = scene.page.locator("#messages .message.ephemeral")
    await expect(answer.locator("strong", has_text="status")).to_be_visible()
    await expect(answer.get_by_text("Only visible to you")).to_be_visible()
    assert [one["text"] for one in await scene.client.messages() if not one["is_bot"]] == []


async def test_a_message_is_asked_about(scene: Scene) -> None:
    """From its tools, in a modal with a box for several lines."""
    await scene.client.say("the deploy failed", user=COLLEAGUE)
    message = scene.page.locator("#messages .message", has_text="the deploy failed")
    await message.hover()
    await message.get_by_role("button", name="Ask Orion about this").click()
    modal = scene.page.get_by_role("dialog", name="About this")
    await modal.get_by_label("Why?").fill("why\nis that")
    await modal.get_by_role("button", name="Ask").click()
    await expect(modal).to_have_count(0)
    assert "message_action" in scene.bot.actions[0]["form"]
    assert "why%5Cnis+that" in scene.bot.actions[-1]["form"]


@pytest.mark.long
async def test_a_message_is_crossed(scene: Scene) -> None:
    """The reaction stands below it, and the app hears of it."""
    ts = (await scene.web.chat_postMessage(channel=GENERAL, text="Thinking"))["ts"]
    message = scene.page.locator(f'#messages [data-ts="{ts}"]')
    await message.hover()
    await message.get_by_role("button", name="React with").click()
    await expect(message.locator(".reaction")).to_have_text(":x: 1")
    await until(lambda: any(one["type"] == "reaction_added" for one in scene.bot.events))


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
async def test_a_direct_message_has_a_home_and_prompts(scene: Scene, scheme: str) -> None:
    """The tab is drawn when the app publishes it; a prompt says what it stands for."""
    assert scheme in ("light", "dark")
    await scene.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await scene.page.locator("#directs").get_by_role("button", name="Orion").click()
    await scene.page.get_by_role("tab", name="Home").click()
    home = scene.page.get_by_role("region", name="Home")
    await expect(home.get_by_role("heading", name="Your runs")).to_be_visible()
    await expect(home.locator("code", has_text="nothing")).to_be_visible()
    await home.get_by_role("button", name="Your keys").click()
    await until(lambda: any("Your+keys" in one["form"] for one in scene.bot.actions))
    await scene.page.get_by_role("tab", name="Messages").click()
    await scene.page.get_by_role("button", name="A wish").click()
    await expect(
        scene.page.locator("#messages .message", has_text="wait for a wish")
    ).to_be_visible()
    await scene.page.locator("#channels").get_by_role("button", name="general").click()
    await expect(scene.page.get_by_role("tab", name="Home")).to_be_hidden()


@pytest.mark.long
async def test_a_permalink_opens_the_thread(scene: Scene) -> None:
    """As Slack's do."""
    ts = await scene.client.say("the root of it", user=COLLEAGUE)
    await scene.page.goto(f"{scene.url}/archives/{GENERAL}/p{ts.replace('.', '')}")
    await expect(scene.thread.get_by_text("the root of it")).to_be_visible()

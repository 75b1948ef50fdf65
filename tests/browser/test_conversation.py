"""Asking, reading, pressing and stopping in a real browser, with a small scripted bot on the other side."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from app.playground.slack.types import COLLEAGUE, GENERAL
from tests.browser.building import Scene, button
from tests.waiting import until

pytestmark = pytest.mark.browser


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


@pytest.mark.long
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


@pytest.mark.long
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


async def test_ones_own_messages_are_edited_and_deleted(scene: Scene) -> None:
    """In the box, as it was typed; the app hears of both. Others' offer neither, nor does what was deleted and has replies."""
    await scene.client.say("a colleague's", user=COLLEAGUE)
    await scene.send("@Orion wait & see")
    own = scene.page.locator("#messages .message", has_text="wait & see")
    await own.hover()
    await own.get_by_role("button", name="Edit").click()
    box = scene.page.get_by_role("combobox", name="Message #general")
    await expect(box).to_have_value("@Orion wait & see")
    await box.fill("@Orion wait longer")
    await box.press("Enter")
    own = scene.page.locator("#messages .message", has_text="wait longer")
    await expect(own.locator(".edited")).to_be_visible()
    await until(lambda: scene.bot.events[-1].get("subtype") == "message_changed")
    assert scene.bot.events[-1]["message"]["text"] == "<@U0ORION> wait longer"

    await expect(own.get_by_role("button", name="1 reply")).to_be_visible()
    await own.hover()
    await own.get_by_role("button", name="Delete").click()
    gone = scene.page.locator("#messages .message", has_text="This message was deleted.")
    await expect(gone).to_be_visible()
    await scene.page.reload()
    await expect(gone).to_be_visible()
    shown = scene.page.locator("#messages .message")
    assert await shown.count() == 2
    assert await shown.get_by_role("button", name="Edit").count() == 0


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
async def test_the_examples_lead_into_the_first_use(scene: Scene) -> None:
    """An empty channel offers four examples; the direct message one opens the DM and asks there."""
    hint = scene.page.get_by_role("region", name="Things to try")
    await expect(hint.get_by_role("button")).to_have_count(4)
    await hint.get_by_role("button", name="A direct message to Orion").click()
    await expect(scene.page.get_by_role("heading", name="Orion", exact=True)).to_be_visible()
    await expect(scene.thread.get_by_role("heading", name="Done")).to_be_visible()
    heard = [event for event in scene.bot.events if event["type"] == "message"]
    assert heard[0]["channel_type"] == "im"


async def test_a_failure_is_told(scene: Scene) -> None:
    """A press that the app does not take shows a toast; a refused message comes back into the box."""
    scene.fake_slack.events_url = None
    blocks = [{"type": "actions", "elements": [button("Stop it", "stop_run")]}]
    await scene.web.chat_postMessage(channel=GENERAL, text="x", blocks=blocks)
    await scene.page.get_by_role("button", name="Stop it").click()
    await expect(scene.page.get_by_role("alert")).to_contain_text("did not take it")

"""A message that is written bit by bit, as the page draws it in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import expect

from app.playground.slack.types import GENERAL, TEAM_ID, YOU
from tests.browser.building import Scene, button

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=window.pwned=1>"


def task(number: int, title: str, status: str) -> dict[str, Any]:
    return {"type": "task_update", "id": f"t{number}", "title": title, "status": status}


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
async def test_a_stream_is_drawn_with_its_plan_and_its_text(
    scene: Scene, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    """Cards have their states, the plan folds when all is over, and titles stay text."""
    page, web = scene.page, scene.web
    await page.emulate_media(color_scheme=scheme)
    root = await scene.client.say("hello")
    tasks = [
        task(1, "Working…", "in_progress"),
        task(2, "Read the tests", "complete"),
        task(3, "shell make test", "error"),
        task(4, HOSTILE, "pending"),
    ]
    stop = {"type": "blocks", "blocks": [{"type": "actions", "elements": [button("Stop", "stop")]}]}
    plan = {"type": "plan_update", "title": "Working… 12 s"}
    started = await web.chat_startStream(
        channel=GENERAL,
        thread_ts=root,
        recipient_user_id=YOU,
        recipient_team_id=TEAM_ID,
        task_display_mode="plan",
        chunks=[stop, plan, *tasks],
    )
    at: dict[str, Any] = {"channel": GENERAL, "ts": started["ts"]}
    await web.chat_appendStream(**at, markdown_text="The tests **fail** because")
    await page.locator("#messages .replies").click()
    shown = scene.thread.locator(".message").nth(1)
    await expect(shown.locator(".plan summary")).to_have_text("Working… 12 s 2 of 4")
    await expect(shown.locator(".task")).to_have_count(4)
    await expect(shown.locator(".task.error")).to_have_text("shell make test")
    await expect(shown.locator(".task.pending")).to_have_text(HOSTILE)
    await expect(shown.locator(".streaming")).to_be_visible()
    await expect(shown).to_contain_text("The tests fail because")
    await page.screenshot(path=tmp_path / f"stream-{scheme}.png")
    over = [task(1, "Working…", "complete"), task(4, HOSTILE, "complete")]
    await web.chat_stopStream(**at, chunks=over)
    await expect(shown.locator(".plan")).not_to_have_attribute("open", "")
    await expect(shown.locator(".streaming")).to_have_count(0)
    await web.chat_update(**at, text="The end")
    await expect(shown.locator(".plan")).to_have_count(0)
    await expect(shown).to_contain_text("The end")
    assert await page.evaluate("window.pwned") is None

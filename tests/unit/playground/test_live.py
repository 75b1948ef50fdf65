"""What an open page is told, and what it may load."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from app.playground.page.event_stream import QUEUE_MAX, EventStream
from app.playground.slack.types import GENERAL, WallClock
from app.playground.slack.workspace import Workspace

if TYPE_CHECKING:
    from tests.unit.playground.conftest import Playground


async def _next(lines: AsyncIterator[str]) -> dict[str, Any]:
    async with asyncio.timeout(10):
        async for line in lines:
            if line.startswith("data: "):
                parsed: dict[str, Any] = json.loads(line[6:])
                return parsed
    raise AssertionError("the stream ended")


async def test_a_page_hears_of_every_change(playground: Playground) -> None:
    """A post, its update and its thread's new reply count each arrive as an event."""
    async with playground.http.stream("GET", "/ui/events") as response:
        lines = response.aiter_lines()
        assert (await _next(lines))["kind"] == "hello"
        root = await playground.client.say("root")
        assert (await _next(lines))["message"]["ts"] == root
        answer = await playground.web.chat_postMessage(channel=GENERAL, text="one", thread_ts=root)
        posted, summary = await _next(lines), await _next(lines)
        assert (posted["kind"], posted["message"]["text"]) == ("posted", "one")
        assert (summary["kind"], summary["message"]["reply_count"]) == ("summary", 1)
        await playground.web.chat_update(channel=GENERAL, ts=answer["ts"], text="two")
        changed = await _next(lines)
        assert (changed["kind"], changed["message"]["text"]) == ("changed", "two")


async def test_a_slow_page_is_told_to_start_over() -> None:
    """A reader that falls behind gets one reset instead of everything it missed."""
    events = EventStream(Workspace(clock=WallClock()))
    stream = events.stream()
    await anext(stream)
    for number in range(QUEUE_MAX + 1):
        events.publish({"number": number})
    assert json.loads((await anext(stream)).removeprefix("data: ")) == {"kind": "reset"}
    events.publish({"number": -1})
    assert json.loads((await anext(stream)).removeprefix("data: ")) == {"number": -1}
    await stream.aclose()


@pytest.mark.parametrize("path", ["/", "/deliveries", "/static/page.js", "/static/style.css"])
async def test_the_page_may_run_its_own_files_only(playground: Playground, path: str) -> None:
    """Every file of the page forbids foreign code, and inline code but the one script that it names by its digest."""
    response: httpx.Response = await playground.http.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "//" not in policy
    for script in re.findall(r"<script>(.*?)</script>", response.text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert " style=" not in response.text


async def test_only_page_files_are_served(playground: Playground) -> None:
    """Nothing outside the folder, and no unknown kind of file, is handed out."""
    for name in ("..%2Fpage.py", "page.py", "nope.js"):
        assert (await playground.http.get(f"/static/{name}")).status_code == 404


async def test_unknown_fields_are_refused(playground: Playground) -> None:
    """A misspelt fault is an error, not a test that silently breaks nothing."""
    response: httpx.Response = await playground.http.post(
        "/ui/faults", json={"metod": "chat.update"}
    )
    assert response.status_code == 422

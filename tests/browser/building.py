"""A small scripted bot on the other side of the page, and the scene that both are in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from fastapi import BackgroundTasks, FastAPI, Request
from playwright.async_api import ConsoleMessage, Locator, Page
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.slack.fake_slack import FakeSlack
from tests.fake_slack_client import FakeSlackClient


def problems_of(page: Page) -> list[str]:
    """What the browser complains of from now on, but for what it broke off because a network of the machine has changed, as Docker's do."""
    problems: list[str] = []

    def hear(line: ConsoleMessage) -> None:
        if line.type == "error" and "net::ERR_NETWORK_CHANGED" not in line.text:
            problems.append(line.text)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", hear)
    return problems


def plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def button(text: str, action_id: str) -> dict[str, Any]:
    return {"type": "button", "action_id": action_id, "style": "danger", "text": plain(text)}


FEEDBACK = {
    "type": "context_actions",
    "elements": [
        {
            "type": "feedback_buttons",
            "action_id": "feedback",
            "positive_button": {"text": plain("Good answer"), "value": "good"},
            "negative_button": {"text": plain("Bad answer"), "value": "bad"},
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

    async def _receive(self, request: Request, later: BackgroundTasks) -> dict[str, str] | None:
        body = await request.body()
        if request.headers["content-type"].startswith("application/x-www-form"):
            self.actions.append({"form": body.decode()})
            return await self._answer_form(parse_qs(body.decode()))
        event = (await request.json())["event"]
        self.events.append(event)
        if event["type"] == "app_home_opened":
            later.add_task(self._show_home, event)
        if event["type"] == "app_mention" or event.get("channel_type") == "im":
            later.add_task(self._answer, event)
        return None

    async def _answer_form(self, form: dict[str, list[str]]) -> dict[str, str] | None:
        """Repeats a command to who wrote it; opens a modal about a message."""
        if "command" in form:
            said = " ".join(form.get("text", ["nothing"]))
            return {"response_type": "ephemeral", "text": f"You said *{said}*"}
        payload = json.loads(form["payload"][0])
        if payload["type"] == "message_action":
            element = {"type": "plain_text_input", "action_id": "q", "multiline": True}
            block = {"type": "input", "block_id": "q", "label": plain("Why?"), "element": element}
            view = {"type": "modal", "title": plain("About this"), "submit": plain("Ask")}
            await self._web.views_open(
                trigger_id=payload["trigger_id"], view={**view, "blocks": [block]}
            )
        return None

    async def _show_home(self, event: dict[str, Any]) -> None:
        await self._web.assistant_threads_setSuggestedPrompts(
            channel_id=event["channel"],
            thread_ts="",
            title="Try",
            prompts=[{"title": "A wish", "message": "wait for a wish"}],
        )
        section = {"type": "section", "text": {"type": "mrkdwn", "text": "*You* asked `nothing`"}}
        buttons = {"type": "actions", "elements": [button("Your keys", "keys")]}
        blocks = [{"type": "header", "text": plain("Your runs")}, section, buttons]
        await self._web.views_publish(
            user_id=event["user"], view={"type": "home", "blocks": blocks}
        )

    async def _answer(self, event: dict[str, Any]) -> None:
        thread_ts = event.get("thread_ts") or event["ts"]
        where = {"channel_id": event["channel"], "thread_ts": thread_ts}
        blocks = [{"type": "actions", "elements": [button("Stop it", "stop_run")]}]
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
    client: FakeSlackClient
    web: AsyncWebClient
    bot: Bot
    fake_slack: FakeSlack

    @property
    def thread(self) -> Locator:
        return self.page.locator("#thread")

    async def send(self, text: str) -> None:
        box = self.page.get_by_role("combobox", name="Message #general")
        await box.fill(text)
        await box.press("Enter")

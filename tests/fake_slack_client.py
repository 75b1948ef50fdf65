"""A person (and a saboteur) at the fake Slack, for tests: says, presses, waits, breaks things."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.playground.slack.types import YOU, JsonObject
from tests.plain_http import NO_TLS
from tests.waiting import pauses

REQUEST_TIMEOUT_S = 30.0


class FakeSlackError(Exception):
    """The fake Slack refused; the message is Slack's error word."""


class FakeSlackClient:
    """The caller owns `http`, whose base URL is the fake Slack's; or use `open_client`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def say(
        self,
        text: str,
        *,
        channel: str = "general",
        user: str = YOU,
        thread_ts: str | None = None,
        files: dict[str, bytes] | None = None,
        attachments: Sequence[JsonObject] = (),
        forward: tuple[str, str] | None = None,
        looking_at: Sequence[JsonObject] = (),
    ) -> str:
        """Post as a person or another app; `@Orion` mentions the bot, `forward` names another message. Returns the message's ts.

        `looking_at`: entities of `app_context`.
        """
        attached = [
            {"name": name, "content_base64": base64.b64encode(content).decode()}
            for name, content in (files or {}).items()
        ]
        body: JsonObject = {"channel": channel, "user": user, "text": text, "thread_ts": thread_ts}
        body |= {"files": attached, "attachments": list(attachments)}
        body["looking_at"] = list(looking_at)
        if forward is not None:
            body["forward"] = dict(zip(("channel", "ts"), forward, strict=True))
        answer = await self._post("/ui/messages", body)
        return str(answer["ts"])

    async def messages(
        self, *, channel: str = "general", user: str | None = None
    ) -> list[JsonObject]:
        """Top-level messages, oldest first."""
        return await self._messages({"channel": channel, "user": user})

    async def replies(self, thread_ts: str, *, channel: str = "general") -> list[JsonObject]:
        """The thread without its root, oldest first; ephemeral messages included."""
        thread = await self._messages({"channel": channel, "thread_ts": thread_ts})
        return [message for message in thread if message["ts"] != thread_ts]

    async def wait_for_reply(
        self,
        thread_ts: str,
        predicate: Callable[[JsonObject], bool] = lambda message: bool(message["is_bot"]),
        *,
        timeout_s: float = 90.0,
        channel: str = "general",
    ) -> JsonObject:
        """The first reply for which `predicate` holds, now or within `timeout_s`.

        Raises:
            TimeoutError: none came; a note lists what the thread holds.
        """
        thread: list[JsonObject] = []
        pause_s = pauses()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    thread = await self.replies(thread_ts, channel=channel)
                    for message in thread:
                        if predicate(message):
                            return message
                    await asyncio.sleep(next(pause_s))
        except TimeoutError as exc:
            exc.add_note(f"the thread holds: {[reply['text'] for reply in thread]}")
            raise

    async def press(
        self,
        message: JsonObject,
        action_id: str,
        *,
        value: str | None = None,
        user: str = YOU,
    ) -> JsonObject:
        """Press a button; feedback buttons need the `value` of the one pressed. Returns ok, status, reason, view."""
        body = {"channel": message["channel"], "ts": message["ts"], "user": user}
        return await self._post("/ui/actions", body | {"action_id": action_id, "value": value})

    async def command(self, text: str, *, channel: str = "general", user: str = YOU) -> JsonObject:
        """Write a slash command. Returns ok, status, reason, and the text of the answer."""
        return await self._post("/ui/commands", {"channel": channel, "user": user, "text": text})

    async def choose_shortcut(
        self, ts: str, callback_id: str, *, channel: str = "general", user: str = YOU
    ) -> JsonObject:
        """Choose a message shortcut. Returns ok, status, reason, view."""
        body = {"channel": channel, "ts": ts, "user": user, "callback_id": callback_id}
        return await self._post("/ui/shortcuts", body)

    async def react(self, ts: str, name: str, *, channel: str = "general", user: str = YOU) -> None:
        await self._post(
            "/ui/reactions", {"channel": channel, "ts": ts, "user": user, "name": name}
        )

    async def open_home(self, *, tab: str = "home", user: str = YOU) -> None:
        """Open the app at a tab; what it shows then, `home` tells."""
        await self._post("/ui/home", {"user": user, "tab": tab})

    async def home(self, *, user: str = YOU) -> JsonObject:
        """The view that the app has published, suggested prompts, titles of sessions by their roots."""
        return await self._get("/ui/home", {"user": user})

    async def press_home(self, action_id: str, *, user: str = YOU) -> JsonObject:
        """Press a button of the home tab. Returns ok, status, reason, view."""
        return await self._post("/ui/home/actions", {"user": user, "action_id": action_id})

    async def submit(
        self, view: JsonObject, values: Mapping[str, str | list[str]], *, user: str = YOU
    ) -> JsonObject:
        """Send a modal, filled in by block ids. Returns ok, status, reason, errors."""
        body = {"view_id": view["id"], "values": dict(values), "user": user}
        return await self._post("/ui/views", body)

    async def stop(self, thread_ts: str, *, channel: str = "general", user: str = YOU) -> None:
        """The native Stop."""
        await self._post("/ui/stop", {"channel": channel, "thread_ts": thread_ts, "user": user})

    async def edit(self, ts: str, text: str, *, channel: str = "general", user: str = YOU) -> None:
        await self._post("/ui/edit", {"channel": channel, "ts": ts, "user": user, "text": text})

    async def delete(self, ts: str, *, channel: str = "general", user: str = YOU) -> None:
        await self._post("/ui/delete", {"channel": channel, "ts": ts, "user": user})

    async def change_usergroup(self, group: str, *users: str) -> None:
        await self._post("/ui/usergroups", {"usergroup": group, "users": list(users)})

    async def versions(self, message: JsonObject) -> list[JsonObject]:
        """Everything the message ever was: kind, at, by, text, blocks; oldest first."""
        params = {"channel": message["channel"], "ts": message["ts"]}
        answer = await self._get("/ui/history", params)
        versions: list[JsonObject] = answer["versions"]
        return versions

    async def faults(self, method: str = "*", **fault: Any) -> None:
        """Plan a fault: the fields of `app.playground.slack.web_api.Fault`."""
        await self._post("/ui/faults", {"method": method, **fault})

    async def switches(
        self,
        *,
        outage: bool | None = None,
        token_revoked: bool | None = None,
        clear_faults: bool = False,
    ) -> None:
        body = {"outage": outage, "token_revoked": token_revoked, "clear_faults": clear_faults}
        await self._post("/ui/switches", body)

    async def channel(
        self, channel: str, *, archived: bool | None = None, bot_member: bool | None = None
    ) -> None:
        """Archive a channel, or take the bot out of it."""
        body = {"channel": channel, "archived": archived, "bot_member": bot_member}
        await self._post("/ui/channels", body)

    async def deliveries(self) -> list[JsonObject]:
        """Every attempt to reach the app, newest first."""
        deliveries: list[JsonObject] = (await self._get("/ui/deliveries", {}))["deliveries"]
        return deliveries

    async def redeliver(self, event_id: str, *, with_header: bool = True) -> None:
        await self._post("/ui/redeliver", {"event_id": event_id, "with_header": with_header})

    async def calls(self, method: str | None = None) -> list[JsonObject]:
        """Web API calls so far, oldest first."""
        calls: list[JsonObject] = (await self._get("/ui/calls", {}))["calls"]
        return [call for call in calls if method in {None, call["method"]}]

    async def disconnect_sockets(self, reason: str = "refresh_requested") -> int:
        return int((await self._post("/ui/sockets/disconnect", {"reason": reason}))["told"])

    async def state(self) -> JsonObject:
        return await self._get("/ui/state", {})

    async def _messages(self, params: JsonObject) -> list[JsonObject]:
        messages: list[JsonObject] = (await self._get("/ui/messages", params))["messages"]
        return messages

    async def _get(self, path: str, params: JsonObject) -> JsonObject:
        given = {key: value for key, value in params.items() if value is not None}
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return _answer(await self._http.get(path, params=given))

    async def _post(self, path: str, body: JsonObject) -> JsonObject:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return _answer(await self._http.post(path, json=body))


def _answer(response: httpx.Response) -> JsonObject:
    if response.is_error:
        raise FakeSlackError(response.text)
    answer: JsonObject = response.json()
    return answer


@asynccontextmanager
async def open_client(base_url: str) -> AsyncIterator[FakeSlackClient]:
    """A client for the fake Slack at `base_url`; never goes through a proxy."""
    async with httpx.AsyncClient(
        verify=NO_TLS,
        base_url=base_url,
        trust_env=False,
        timeout=REQUEST_TIMEOUT_S,
        # Before the server closes it, which it may do while a request is on its way.
        limits=httpx.Limits(keepalive_expiry=1.0),
    ) as http:
        yield FakeSlackClient(http)

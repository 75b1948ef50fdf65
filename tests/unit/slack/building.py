"""Requests as Slack signs and sends them, a Bolt app, and an intake that records what reaches it."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from slack_bolt.async_app import AsyncApp
from typing_extensions import override

from app.aio import TaskGroup
from app.runs.testing import Intake, Press, RetryIntent, Revision, Run, RunId, RunRequest, Thread
from app.slack.api import BotIdentity
from app.slack.hearing import Hearing
from app.slack.listeners import Surfaces, create_bolt_app
from app.slack.transport import handle_http

KEY = "signs-it-all"
BOT = "xoxb-1"
NOWHERE = "http://127.0.0.1:9/api/"
IDENTITY = BotIdentity(team_id="T1", bot_id="BBOT", bot_user_id="UBOT")


class RecordingIntake(Intake):
    """Keeps what it is given; may be told to fail."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.error: Exception | None = None
        self.may_tell = asyncio.Event()

    def _hear(self, intent: object) -> None:
        if self.error:
            raise self.error
        self.heard.append(intent)

    @override
    async def accept(self, request: RunRequest) -> bool:
        self._hear(request)
        return True

    @override
    async def retry(self, intent: RetryIntent) -> None:
        self._hear(intent)

    @override
    async def press(self, press: Press) -> str:
        self._hear(press)
        return "This is for an operator to answer." if press.is_external else ""

    @override
    async def revise(self, revision: Revision) -> bool:
        self._hear(revision)
        return True

    @override
    def may_stop(self, user: str, *, is_external: bool = False) -> bool:
        del is_external
        return user != "USTRANGER"

    @override
    async def stop_run(
        self, run_id: RunId, *, user: str, at: datetime | None = None, is_external: bool = False
    ) -> bool:
        del at, is_external
        self._hear(("stop_run", run_id, user))
        return True

    @override
    async def stop_thread(
        self, thread: Thread, *, user: str, ts: str, is_external: bool = False
    ) -> bool:
        self._hear(("stop_thread", thread.thread_ts, user, ts, *_external(is_external)))
        return True

    @override
    async def mute(
        self,
        thread: Thread,
        *,
        user: str,
        ts: str,
        is_muted: bool,
        has_mention: bool,
        is_external: bool = False,
    ) -> bool:
        word = ("mute", thread.thread_ts, user, ts, is_muted, has_mention, *_external(is_external))
        is_new = word not in self.heard
        self._hear(word)
        return is_new

    @override
    async def tell_muted(self, thread: Thread, *, user: str, is_muted: bool) -> None:
        await self.may_tell.wait()
        self._hear(("tell_muted", thread.thread_ts, user, is_muted))

    @override
    async def stop_channel(self, team: str, channel: str, *, user: str, ts: str) -> bool:
        self._hear(("stop_channel", team, channel, user, ts))
        return True

    @override
    async def stop_own(self, team: str, channel: str, *, user: str) -> Sequence[Run]:
        self._hear(("stop_own", team, channel, user))
        return []

    @override
    async def stop_shown(
        self, team: str, channel: str, *, user: str, reply_ts: str, is_shared: bool = False
    ) -> bool:
        self._hear(("stop_shown", channel, user, reply_ts, *_external(is_shared)))
        return True

    @override
    async def show_log(self, run_id: RunId, *, user: str, is_external: bool = False) -> None:
        del is_external
        self._hear(("show_log", run_id, user))

    @override
    async def feedback(
        self, run_id: RunId, *, user: str, is_positive: bool, comment: str = ""
    ) -> None:
        self._hear(("feedback", run_id, user, is_positive, *([comment] if comment else [])))


def _external(is_external: bool) -> Sequence[str]:
    return ["external"] if is_external else []


def make_app(
    intake: Intake,
    identity: BotIdentity | None = IDENTITY,
    group: TaskGroup | None = None,
    hearing: Hearing | None = None,
    **surfaces: Any,
) -> AsyncApp:
    """`surfaces`: fields of `Surfaces`."""
    return create_bolt_app(
        bot_token=BOT,
        base_url=NOWHERE,
        identity=lambda: identity,
        intake=intake,
        surfaces=Surfaces(**surfaces),
        group=group,
        hearing=hearing,
    )


def signed(
    body: bytes,
    *,
    content_type: str = "application/json",
    at: float | None = None,
    secret: str = KEY,
) -> dict[str, str]:
    timestamp = str(int(at or time.time()))
    digest = hmac.new(
        secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256
    ).hexdigest()
    return {
        "Content-Type": content_type,
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": f"v0={digest}",
    }


def mention(**event: object) -> dict[str, Any]:
    return {
        "type": "event_callback",
        "team_id": "T1",
        "event_id": "Ev1",
        "authorizations": [{"team_id": "T1", "user_id": "UBOT"}],
        "event": {
            "type": "app_mention",
            "user": "U1",
            "text": "<@UBOT> hi",
            "ts": "1800000000.000100",
            "channel": "C1",
            **event,
        },
    }


async def deliver(app: AsyncApp, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    answer = await handle_http(app, signing_secret=KEY, headers=headers, body=body)
    return answer.status, answer.body


async def deliver_json(app: AsyncApp, payload: object) -> tuple[int, str]:
    body = json.dumps(payload).encode()
    return await deliver(app, body, signed(body))


async def deliver_form(app: AsyncApp, fields: dict[str, str]) -> tuple[int, str]:
    body = urlencode(fields).encode()
    return await deliver(
        app, body, signed(body, content_type="application/x-www-form-urlencoded; charset=utf-8")
    )

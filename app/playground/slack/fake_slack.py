"""The fake Slack: one workspace, its Web API and its events, and what people do in it beyond writing."""

import random

from app.playground.slack.deliveries import (
    Attempt,
    Deliverer,
    SocketHub,
    envelope,
    events_of,
    session_stopped,
)
from app.playground.slack.interactions import Interactions, Modals
from app.playground.slack.types import (
    BOT_USER_ID,
    Change,
    Clock,
    FakeSlackConfig,
    JsonObject,
    Message,
    SlackError,
    WallClock,
)
from app.playground.slack.web_api import Faults, WebApi
from app.playground.slack.workspace import Workspace


class FakeSlack:
    """Holds the parts and passes a change on to those who must hear of it."""

    def __init__(self, config: FakeSlackConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or WallClock()
        self.workspace = Workspace(clock=self.clock)
        self.faults = Faults()
        self.sockets = SocketHub()
        self.modals = Modals(workspace=self.workspace, trigger_lifetime_s=config.trigger_lifetime_s)
        self.interactions = Interactions(workspace=self.workspace, modals=self.modals)
        self.deliverer = Deliverer(config=config, clock=self.clock, sockets=self.sockets)
        self.api = WebApi(
            config=config,
            workspace=self.workspace,
            faults=self.faults,
            tickets=self.sockets.tickets,
            modals=self.modals,
            clock=self.clock,
        )
        self.workspace.listeners.append(self._tell_app)

    @property
    def events_url(self) -> str | None:
        return self.deliverer.events_url

    @events_url.setter
    def events_url(self, url: str | None) -> None:
        self.deliverer.events_url = url
        self.sockets.is_enabled = False

    def stop(self, *, channel: str, thread_ts: str, user: str) -> None:
        """The native Stop of a thread in `processing`; the app must move the session out of it."""
        if self.workspace.status_of(channel, thread_ts)["session"] != "processing":
            raise SlackError("session_not_processing")
        lifetime_s = self.config.stream_lifetime_s
        event = session_stopped(
            workspace=self.workspace, channel=channel, thread_ts=thread_ts, user=user
        )
        event["streaming_message_ts"] = [
            message.ts
            for message in self.workspace.thread(channel, thread_ts)
            if self.workspace.seal(message, lifetime_s=lifetime_s, by_user=True)
        ]
        self._send(event, channel, delay_s=0)

    async def press(
        self, *, message: Message, action_id: str, value: str | None, user: str, base_url: str
    ) -> tuple[Attempt, JsonObject | None]:
        """Press a button for a person, and wait for the app's acknowledgement; gives the modal that it opened meanwhile."""
        payload = self.interactions.press(
            message=message, action_id=action_id, value=value, user=user, base_url=base_url
        )
        attempt = await self._send_interaction(payload)
        return attempt, self.modals.opened_by(payload["trigger_id"])

    async def submit(
        self, view_id: str, values: JsonObject, *, user: str
    ) -> tuple[Attempt, JsonObject]:
        """Send a modal for a person; gives what the app finds wrong with it, by block ids."""
        payload = self.modals.submit(view_id, values, user=user)
        attempt = await self._send_interaction(payload)
        answer = attempt.answer
        errors = answer.get("errors", {}) if answer.get("response_action") == "errors" else {}
        if attempt.ok and not errors:
            self.modals.close(view_id)
        return attempt, errors

    async def _send_interaction(self, payload: JsonObject) -> Attempt:
        if self.faults.outage:
            return Attempt(via="http", reason="outage")
        return await self.deliverer.send_interaction(payload)

    def _tell_app(self, change: Change) -> None:
        events = events_of(change, self.workspace, mention_lacks=self.config.mention_lacks)
        author = change.author or (change.message.user if change.message else None)
        if author == BOT_USER_ID and not self.config.send_bot_events:
            return
        order = self.config.mention_order
        if order == "mention_first" or (order == "random" and random.random() < 0.5):  # noqa: S311, PLR2004 - a coin
            events.reverse()
        for index, event in enumerate(events):
            self._send(event, change.channel, delay_s=index * self.config.mention_gap_s)

    def _send(self, event: JsonObject, channel: str, *, delay_s: float) -> None:
        # Slack does not replay what happened during an outage. Source: Slack status, incident of 2025-02-26.
        if self.faults.outage:
            return
        now_s = self.clock.now().timestamp()
        payload = envelope(event, self.workspace.channels[channel], now_s=now_s)
        self.deliverer.send_event(payload, delay_s=delay_s)

"""The fake Slack: one workspace, its Web API and its events, and what people do in it beyond writing."""

import random
from collections.abc import Sequence

from app.playground.slack.block_kit import POST_TEXT_MAX
from app.playground.slack.deliveries import (
    Attempt,
    Deliverer,
    SocketHub,
    app_home_opened,
    envelope,
    events_of,
    reaction_added,
    session_stopped,
    subteam_changed,
)
from app.playground.slack.interactions import Interactions, Modals
from app.playground.slack.types import (
    BOT_USER_ID,
    GENERAL,
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

    async def press_home(self, *, action_id: str, user: str) -> tuple[Attempt, JsonObject | None]:
        """Press a button of a person's home tab; as `press`."""
        payload = self.interactions.press_home(action_id=action_id, user=user)
        attempt = await self._send_interaction(payload)
        return attempt, self.modals.opened_by(payload["trigger_id"])

    async def choose_shortcut(
        self, *, message: Message, callback_id: str, user: str, base_url: str
    ) -> tuple[Attempt, JsonObject | None]:
        """Choose a message shortcut; as `press`. An app without the scope has none."""
        self._demand("commands")
        payload = self.interactions.choose_shortcut(
            message=message, callback_id=callback_id, user=user, base_url=base_url
        )
        attempt = await self._send_interaction(payload)
        return attempt, self.modals.opened_by(payload["trigger_id"])

    async def command(
        self, *, channel_ref: str, typed: str, user: str, base_url: str
    ) -> tuple[Attempt, str]:
        """Write a slash command; gives what the app answers with its acknowledgement, which the person alone is shown."""
        self._demand("commands")
        channel = self.workspace.channel(channel_ref)
        form = self.interactions.command(channel=channel, typed=typed, user=user, base_url=base_url)
        if self.faults.outage:
            return Attempt(via="http", reason="outage"), ""
        attempt = await self.deliverer.send_command(form)
        text = str(attempt.answer.get("text") or "")
        if attempt.ok and text:
            is_private = attempt.answer.get("response_type") != "in_channel"
            answer = Message(
                ts="",
                channel=channel.id,
                user=BOT_USER_ID,
                text=text[:POST_TEXT_MAX],
                ephemeral_to=user if is_private else None,
            )
            self.workspace.post(channel, answer)
        return attempt, text

    def open_home(self, *, user: str, tab: str) -> None:
        """Open the app, at one of its tabs."""
        event = app_home_opened(workspace=self.workspace, user=user, tab=tab)
        self._send(event, event["channel"], delay_s=0)

    def react(self, *, message: Message, name: str, user: str) -> None:
        """React to a message as a person; an app without the scope hears nothing of it."""
        if user in message.reactions.get(name, []):
            raise SlackError("already_reacted")
        self.workspace.react(message, name=name, user=user)
        members = self.workspace.channels[message.channel].members
        if "reactions:read" in self.config.scopes and BOT_USER_ID in members:
            event = reaction_added(workspace=self.workspace, message=message, name=name, user=user)
            self._send(event, message.channel, delay_s=0)

    def change_usergroup(self, group: str, members: Sequence[str]) -> None:
        """Give a user group these members; an app without the scope hears nothing of it."""
        self.workspace.usergroups[group] = list(members)
        if "usergroups:read" in self.config.scopes:
            event = subteam_changed(workspace=self.workspace, group=group)
            self._send(event, GENERAL, delay_s=0)

    def _demand(self, scope: str) -> None:
        if scope not in self.config.scopes:
            raise SlackError("app_has_no_such_command")

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

"""What becomes of a message: the one way of those that Slack tells of at once, and of those that are found later."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from app.aio import TaskGroup
from app.runs.intake import Intake, Revision
from app.runs.request import RunRequest
from app.slack.api import BotIdentity
from app.slack.payloads import Ignored, MuteThread, StopDirectMessages, StopThread, from_event

Intent = RunRequest | Revision | StopThread | StopDirectMessages | MuteThread | Ignored


class MessageEvents:
    def __init__(
        self,
        intake: Intake,
        *,
        identity: Callable[[], BotIdentity | None],
        allowed_bots: Collection[str] = frozenset(),
        group: TaskGroup | None = None,
    ) -> None:
        """`allowed_bots`: see `from_event`. `group`: where goes on what nobody waits for; None = that is left out."""
        self._group = group
        self._identity = identity
        self._intake = intake
        self._allowed_bots = allowed_bots

    def read(self, body: Mapping[str, Any], *, received_at: datetime) -> Intent:
        """Returns what an event of a message asks for."""
        identity = self._identity()
        return from_event(
            body,
            bot_user_id=identity.bot_user_id if identity else "",
            received_at=received_at,
            allowed_bots=self._allowed_bots,
        )

    def may_stop(self, user: str, *, is_external: bool) -> bool:
        """Whether a stop of this person's counts."""
        return self._intake.may_stop(user, is_external=is_external)

    async def act(self, intent: Intent) -> bool:
        """Hands it to intake, durably; returns whether that changed anything.

        Raises:
            OSError: not durable; the same again is harmless.
            TimeoutError: the same.
        """
        match intent:
            case RunRequest():
                return await self._intake.accept(intent)
            case Revision():
                return await self._intake.revise(intent)
            case StopThread():
                return await self._intake.stop_thread(
                    intent.thread, user=intent.user, ts=intent.ts, is_external=intent.is_external
                )
            case StopDirectMessages():
                return await self._intake.stop_channel(
                    intent.team, intent.channel, user=intent.user, ts=intent.ts
                )
            case MuteThread():
                return await self._mute(intent)
            case Ignored():
                return False

    async def _mute(self, intent: MuteThread) -> bool:
        """Records it, and has it told behind that: Slack may be slow."""
        is_new = await self._intake.mute(
            intent.thread,
            user=intent.user,
            ts=intent.ts,
            is_muted=intent.is_muted,
            has_mention=intent.has_mention,
            is_external=intent.is_external,
        )
        if is_new and self._group is not None:
            telling = self._intake.tell_muted(
                intent.thread, user=intent.user, is_muted=intent.is_muted
            )
            self._group.create_task(telling, name="tell-muted")
        return is_new

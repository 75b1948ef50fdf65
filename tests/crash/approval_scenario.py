"""What an agent may do only after a yes, in the crash tests: never without it, and once at the most."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from typing_extensions import override

from app.playground.slack.types import JsonObject
from app.runs.testing import Run, RunState
from app.slack.actions import ALLOW_ACTION
from app.slack.messages import FIRST_APPROVAL_PART
from tests.crash.play import ANSWERED_WITHIN_S, Kills, Play
from tests.crash.rig import GIVEN_UP_AFTER_S
from tests.crash.scenarios import Question
from tests.e2e.harness import part_of, text_of
from tests.waiting import POLL_S

SHOWN_WITHIN_S = 30.0
"""What a card shows, after its run's end: whoever was killed at it has it to itself for `TELLING_S`."""
PRESSED_TOO_LATE = "This has its answer already"
"""Told to the person alone."""


class Approval(Question):
    """An agent wants to do something outside, and waits for a yes; the person presses until they are heard."""

    name = "approval"
    kills: Kills = "all"
    first = "@Orion act"

    @override
    async def begin(self, play: Play) -> None:
        play.outcomes = (RunState.SUCCEEDED, RunState.FAILED)
        play.done = len(play.rig.notes)

    @override
    async def go_on(self, play: Play) -> None:
        await play.say(self.first)
        card = await self._card(play)
        if card is not None:
            play.too_early = len(play.rig.notes) - play.done
            await play.rig.stage.client.press(card, ALLOW_ACTION)

    @override
    async def end(self, play: Play) -> None:
        """Slack repeats no press, and every other one reaches who is frozen."""
        async with asyncio.timeout(GIVEN_UP_AFTER_S):
            while not all(run.state.is_final for run in await self._records(play)):
                card = await self._card(play, within_s=POLL_S)
                if card is not None and "May I?" in text_of(card):
                    await play.rig.stage.client.press(card, ALLOW_ACTION)
                await asyncio.sleep(1.0)

    async def _records(self, play: Play) -> Sequence[Run]:
        return await play.rig.thread_records(play.asked[0])

    async def _cards(self, play: Play) -> list[JsonObject]:
        replies = await play.rig.stage.client.replies(play.asked[0])
        return [one for one in replies if (part_of(one) or 0) <= FIRST_APPROVAL_PART]

    async def _card(self, play: Play, *, within_s: float = ANSWERED_WITHIN_S) -> JsonObject | None:
        """The newest card of the thread; None where none comes, or nobody is there to show one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    if cards := await self._cards(play):
                        return cards[-1]
                    if not any(one.is_up and not one.is_frozen for one in play.rig.processes):
                        return None
                    await asyncio.sleep(POLL_S)
        return None

    @override
    async def faults(self, play: Play) -> list[str]:
        """Done once at the most, never before the yes, always where the answer says so; one card, that says how it ended."""
        (run,) = await self._records(play)
        done = len(play.rig.notes) - play.done
        is_cut_off = run.result.error_code == "INTERRUPTED"
        answered = run.state is RunState.SUCCEEDED and run.result.answer == "done"
        cards = await self._cards(play)
        with suppress(TimeoutError):
            async with asyncio.timeout(SHOWN_WITHIN_S):
                while any("May I?" in text_of(card) for card in cards):
                    await asyncio.sleep(POLL_S)
                    cards = await self._cards(play)
        others = await super().faults(play)
        return [
            *(fault for fault in others if PRESSED_TOO_LATE not in fault),
            *([f"done {done} times"] if done > 1 else []),
            *([f"done {play.too_early} times before the yes"] if play.too_early else []),
            *([] if answered or is_cut_off else [f"it ended with {run.result.answer!r}"]),
            *(["the answer says it was done"] if answered and done != 1 else []),
            *([f"{len(cards)} cards"] if len(cards) != 1 and not is_cut_off else []),
            *(["a card still asks"] if any("May I?" in text_of(card) for card in cards) else []),
        ]

"""Since when, without a gap, this process hears what is said in Slack; all moments are Slack's own, whatever this machine's clock says."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Protocol


def never_silent() -> float:
    """Says that what is not heard was not said: over HTTP nobody can know better."""
    return 0.0


class Hearing:
    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now`: by Slack's clock, see `SlackApi.now`."""
        self._now = now
        self._since: datetime | None = None
        self._changed = asyncio.Event()
        self.silent_s: Callable[[], float] = never_silent
        """Returns for how many seconds there has been no sign that Slack can be heard."""

    @property
    def since(self) -> datetime | None:
        """Returns when it began to hear, or lost something for the last time; None before it hears."""
        return self._since

    @property
    def until(self) -> datetime:
        """Returns up to when it is known to have heard."""
        return self._now() - timedelta(seconds=self.silent_s())

    def begin(self) -> None:
        """Notes that it hears from now on, and that what came before may be lost."""
        self._since = self._now()
        self._changed.set()

    async def change(self, *, within_s: float) -> None:
        """Returns once it has begun anew, or after this time."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()


class HeardStore(Protocol):
    """Up to when all processes together have heard everything, in Slack's time. Every method is durable when it returns.

    Places are channels' ids; one is kept only while what it was told is ahead of the others, which the empty name stands for.
    """

    async def advance(self, *, since: datetime, until: datetime) -> bool:
        """Moves it to `until` for a process that has heard all since then; False: something before that was not heard.

        In an empty store nothing was ever missed: it begins with `since`. It stays while another living process catches up.
        """
        ...

    async def claim(self) -> Mapping[str, datetime] | None:
        """Takes on, for this process alone, to look for what was not heard; returns up to when each place was. None: another living process does."""
        ...

    async def keep(self, place: str, until: datetime) -> None:
        """Notes that all that was said in a place up to then is accepted."""
        ...

    async def finish(self, until: datetime) -> None:
        """Notes the same of all places, and that this process is done; an earlier moment than the one that is kept changes nothing."""
        ...

    async def release(self) -> None:
        """Leaves what is left to whoever claims it next."""
        ...

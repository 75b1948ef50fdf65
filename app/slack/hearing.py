"""Since when, without a gap, this process hears what is said in Slack; all moments are Slack's own, whatever this machine's clock says."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from app.runs.request import RunId

DEAF_AFTER_S: Final = 60.0
"""The client pings every 10 s; a socket that answers none looks connected and delivers nothing."""

CLOCK_ERROR: Final = timedelta(seconds=3)
"""By which Slack's time may be told too early: to the second, by a header that may be a second old."""
LATE_AFTER_S: Final = 10.0
"""What comes sooner than that is no late question, though its process may have begun meanwhile, as a function does."""
MAX_WITHDRAWN: Final = 1_000
"""That are remembered, the newest, for the six minutes in which Slack delivers them again."""


class Hearing:
    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now`: by Slack's clock, see `SlackApi.now`."""
        self.now = now
        self._since: datetime | None = None
        self._changed = asyncio.Event()
        self._withdrawn: dict[RunId, None] = {}
        self._sign_s: float | None = None
        self._answered_s: Callable[[], float] | None = None

    def withdraw(self, run_id: RunId) -> None:
        """Notes that a question which nobody heard was taken back before it was found: Slack may deliver it again."""
        self._withdrawn[run_id] = None
        if len(self._withdrawn) > MAX_WITHDRAWN:
            del self._withdrawn[next(iter(self._withdrawn))]

    def is_withdrawn(self, run_id: RunId) -> bool:
        return run_id in self._withdrawn

    @property
    def since(self) -> datetime | None:
        """Returns when it began to hear, or lost something for the last time; None before it hears."""
        return self._since

    @property
    def until(self) -> datetime:
        """Returns up to when it is known to have heard."""
        return self.now() - timedelta(seconds=self.silent_s)

    @property
    def silent_s(self) -> float:
        """Returns for how many seconds nothing has come; 0 where no sign is looked for, as over HTTP, where that is Slack's to know."""
        return 0.0 if self._sign_s is None else time.monotonic() - self._sign_s

    def missed_s(self, said_at: datetime) -> int:
        """Returns for how many whole seconds something that is told now has waited, where nobody heard it when it was said; 0: it was heard."""
        waited_s = (self.now() - said_at).total_seconds()
        is_missed = self._since is not None and said_at < self._since - CLOCK_ERROR
        return int(waited_s) if is_missed and waited_s >= LATE_AFTER_S else 0

    @property
    def unanswered_s(self) -> float | None:
        """Returns for how many seconds Slack's socket has answered no ping; None where there is none, as over HTTP."""
        return None if self._answered_s is None else max(0.0, time.time() - self._answered_s())

    def probe(self) -> str:
        """Returns how it hears, for operators. Raises: OSError: by a socket that answers nothing."""
        if self.unanswered_s is None:
            return "over HTTP, or another process does"
        if self.unanswered_s > DEAF_AFTER_S:
            raise OSError(f"Slack's socket has answered nothing for {self.unanswered_s:.0f} s")
        return f"Slack's socket answered {self.unanswered_s:.0f} s ago"

    def watch(self, answered_s: Callable[[], float]) -> None:
        """Takes notice of a socket. `answered_s`: when it answered last, by this machine's clock."""
        self._answered_s = answered_s

    def note(self) -> None:
        """Notes that something has come; from the first time on, silence counts."""
        self._sign_s = time.monotonic()

    def begin(self) -> None:
        """Notes that it hears from now on, and that what came before may be lost."""
        self._since = self.now()
        self._changed.set()

    async def change(self, *, within_s: float) -> None:
        """Returns once it has begun anew, or after this time."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

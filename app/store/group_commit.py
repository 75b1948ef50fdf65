"""How a row becomes durable before Slack is acknowledged: beside the store, in one statement with those that wait beside it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

ACCEPT_TIMEOUT_S = 2.0
"""A store waits longer for a sick database, but Slack's acknowledgement is due after 3 s."""

Row = Mapping[str, Any]
Outcome = bool | OSError
"""Of a row: whether it was not there, or why it is not stored."""


class Writer(Protocol):
    """Inserts rows on a connection of its own."""

    def begin(self, rows: Sequence[Row], tell: Callable[[Sequence[Outcome]], None]) -> None:
        """Inserts them together, in one transaction that survives a power loss, while the loop goes on; then calls `tell` in the loop.

        A row that is refused keeps no other from being stored. Until it is told no more are given.
        """
        ...

    async def close(self) -> None:
        """Ends what is under way, and its connection."""
        ...


class GroupCommit:
    """Has rows written, those together that wait together.

    An acknowledgement waits for nothing else: on the store's connection it would queue behind every step of every run.
    """

    def __init__(self, writer: Writer, *, timeout_s: float = ACCEPT_TIMEOUT_S) -> None:
        """`timeout_s`: for one row to be durable."""
        self._writer = writer
        self._timeout_s = timeout_s
        self._waiting: dict[asyncio.Future[bool], Row] = {}
        self._is_writing = False

    async def add(self, row: Row) -> bool:
        """Returns whether the row was not there, once it is as durable as the connection's commits. Those that come during a commit share the next.

        Raises:
            OSError: not stored in time, or refused; it may be repeated.
        """
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[committed] = row
        self._write_waiting()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await committed
        finally:
            self._waiting.pop(committed, None)  # who has given up before its turn is not written

    def _write_waiting(self) -> None:
        if self._is_writing:
            return
        # Some may have given up in this moment.
        batch = {committed: row for committed, row in self._waiting.items() if not committed.done()}
        self._waiting.clear()
        if batch:
            self._is_writing = True
            self._writer.begin(list(batch.values()), lambda outcomes: self._tell(batch, outcomes))

    def _tell(self, batch: Iterable[asyncio.Future[bool]], outcomes: Sequence[Outcome]) -> None:
        for committed, outcome in zip(batch, outcomes, strict=True):
            if committed.done():
                continue
            if isinstance(outcome, OSError):
                committed.set_exception(outcome)
            else:
                committed.set_result(outcome)
        # In the loop's next turn: what comes in this one goes along.
        asyncio.get_running_loop().call_soon(self._write_on)

    def _write_on(self) -> None:
        self._is_writing = False
        self._write_waiting()

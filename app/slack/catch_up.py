"""What was said while nobody heard: found at a start, and after a connection was gone, and answered like anything else, once.

A process hears everything since it began to (`Hearing`). The store knows up to when all was heard; what lies between is looked for,
place by place, by one process at a time. Run ids make it harmless to find again what was heard all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from app.log import get_logger
from app.runs.intake import Revision
from app.runs.model import Run
from app.runs.request import RunRequest, slack_time
from app.slack.api import BotIdentity, SlackFault
from app.slack.hearing import CLOCK_ERROR, Hearing
from app.slack.message_events import Intent, MessageEvents
from app.slack.payloads import MuteThread, StopDirectMessages, StopThread
from app.slack.signature import bad_field
from app.slack.unheard import Found, Place, UnheardReader, UnreadablePlaceError, is_edited

LOOK_INTERVAL_S: Final = 30.0
"""Between two notes of up to when this process has heard."""
MARGIN: Final = timedelta(minutes=2)
"""So much of what a living process has heard is looked through again after it: a socket is deaf for a minute before that shows."""
ROUND_LIMIT_S: Final = 600.0
OF_ONE_PLACE: Final = 0.5
"""Of a round's time, so that each round is done with one place at least; what takes longer to read is cut."""
PAUSE_S: Final = 10.0
"""Before the next try, where there is something left to do, or another process does it."""
ACCEPTED_AT_MOST: Final = 200
"""In one round; the batch that reaches it is accepted whole."""
BATCH_S: Final = 5.0
"""So long places are read before what was found in them is accepted, oldest first."""
PARSED_AT_ONCE: Final = 20
"""Messages, of a tenth of a millisecond each, before the loop may do something else."""
KNOWN_RUNS: Final = 500
"""The newest ones say where people speak with Orion."""
KNOWN_THREADS: Final = 100

_log = get_logger(__name__)


class HeardStore(Protocol):
    """Up to when all processes together have heard everything, in Slack's time. Every method is durable when it returns.

    Places are channels' ids; one is kept only while what it was told is ahead of the others, which the empty name stands for.
    """

    async def begin(self, at: datetime) -> bool:
        """Begins with this moment, where Orion never was before, so that nothing was missed; False: it was."""
        ...

    async def advance(self, until: datetime) -> None:
        """Moves it on, for a process that has heard all since then; not while another living process catches up, and never back."""
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


@dataclass(slots=True, kw_only=True)
class RoundFigures:
    """Counts the messages and places of one round of catching up."""

    accepted: int = 0
    known: int = 0
    """Asked of Orion, and heard before."""
    withdrawn: int = 0
    """By a stop that was said later."""
    too_old: int = 0
    """Asked of Orion longer ago than people still wait for."""
    failed: int = 0
    places: int = 0
    """That were read."""
    refused: int = 0
    """Places that Orion may not read, or not any more."""
    cut: int = 0
    """Places where there is more than is read."""
    left_over: int = 0
    """Places for the next round."""

    @property
    def is_worth_telling(self) -> bool:
        """Whether more happened than that places were read."""
        return any(number for name, number in self if name != "places")

    def __iter__(self) -> Any:  # noqa: ANN401 - pairs for `dict`
        return ((one.name, getattr(self, one.name)) for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Places that were read, each with up to when."""

    read: list[tuple[Place, datetime, Found]] = field(default_factory=list)


class CatchUp:
    def __init__(
        self,
        reader: UnheardReader,
        *,
        hearing: Hearing,
        messages: MessageEvents,
        store: HeardStore,
        recent: Callable[[], Awaitable[Sequence[Run]]],
        identify: Callable[[], Awaitable[BotIdentity]],
        window: timedelta,
    ) -> None:
        """`recent`: the newest runs. `identify`: who the bot is; asks Slack if need be. `window`: how old a question may be."""
        self._reader = reader
        self._hearing = hearing
        self._messages = messages
        self._store = store
        self._recent = recent
        self._identify = identify
        self._window = window
        self._done_for: datetime | None = None
        """The beginning of hearing for which nothing is left to do; moments of two processes are not exact enough to tell."""
        self._was_down = False
        """Slack did not answer since then: what is said while it is down it does not tell."""
        self._sure_until: datetime | None = None
        """Up to when this process has heard everything, or caught up with it."""

    async def run_forever(self) -> None:
        """Looks when hearing begins, and every while; a failure is logged, and the next look tries again."""
        while True:
            is_done = False
            try:
                is_done = await self.look()
            except SlackFault as exc:
                _log.warning("catch_up.failed", error=exc.word)
            except OSError as exc:
                _log.warning("catch_up.failed", error=f"{type(exc).__name__}: {exc}")
            except Exception:  # noqa: BLE001 - must outlive a bug; the next round may do better
                _log.exception("catch_up.failed")
            await self._hearing.change(within_s=LOOK_INTERVAL_S if is_done else PAUSE_S)

    async def look(self, *, limit_s: float = ROUND_LIMIT_S) -> bool:
        """Catches up where something was not heard; True: there is nothing left to do.

        Args:
            limit_s: of the round; what has been accepted by then stays.

        Raises:
            SlackFault: Slack cannot be asked now.
            OSError: the database cannot be asked now.
        """
        since = self._hearing.since
        if since is None:
            return True
        if since == self._done_for:
            await self._probe()
            if not self._was_down:
                self._sure_until = self._hearing.until - MARGIN
                await self._store.advance(self._sure_until)
                return True
            self._was_down = False
            self._hearing.begin()
            since = self._hearing.since or since
        if await self._store.begin(since):
            self._done_for = since
            return True
        claimed = await self._store.claim()
        if claimed is None:
            return False
        # A process that heard meanwhile may have moved it past what was sent to this one alone.
        sure_until = min(claimed[""], self._sure_until or claimed[""])
        heard = {**claimed, "": sure_until}
        try:
            # Another process may have done it meanwhile.
            is_done = heard[""] >= since + CLOCK_ERROR or await self._round(
                heard, since, limit_s=limit_s
            )
        finally:
            with suppress(OSError):  # what this process has claimed it claims again
                await self._store.release()
        if is_done:
            self._done_for = since
        return is_done

    async def _probe(self) -> None:
        try:
            await self._reader.probe()
        except SlackFault:
            self._was_down = True
            raise

    async def _round(
        self, heard: Mapping[str, datetime], since: datetime, *, limit_s: float
    ) -> bool:
        await self._identify()
        began_s, begun_at = asyncio.get_running_loop().time(), self._now(since)
        _log.debug("catch_up.started", heard_until=heard[""].isoformat())
        figures, is_done, limit = RoundFigures(), False, asyncio.timeout(limit_s)
        try:
            async with limit:
                await self._go_through(heard, since, figures, place_s=limit_s * OF_ONE_PLACE)
                is_done = figures.left_over == 0
        except TimeoutError:
            if not limit.expired():
                raise
        if is_done:
            await self._store.finish(begun_at)
        took_s = round(asyncio.get_running_loop().time() - began_s, 1)
        tell = _log.info if figures.is_worth_telling else _log.debug
        tell("catch_up.finished", took_s=took_s, is_done=is_done, **dict(figures))
        return is_done

    async def _go_through(
        self,
        heard: Mapping[str, datetime],
        since: datetime,
        figures: RoundFigures,
        *,
        place_s: float,
    ) -> None:
        threads = _threads_of(await self._recent())
        places = await self._reader.places()
        todo = [
            (place, after)
            for place in _in_order(places, threads)
            if (after := max(heard.get(place.channel, heard[""]), heard[""])) < since + CLOCK_ERROR
        ]
        figures.left_over = len(todo)
        batch, began_s = _Batch(), asyncio.get_running_loop().time()
        for place, after in todo:
            until = self._now(since)
            known = threads.get(place.channel, ())
            found = await self._read(place, after, known, figures, limit_s=place_s)
            batch.read.append((place, until, found))
            if asyncio.get_running_loop().time() - began_s > BATCH_S:
                await self._accept(batch, since, figures)
                batch, began_s = _Batch(), asyncio.get_running_loop().time()
                if figures.accepted >= ACCEPTED_AT_MOST:
                    return
        await self._accept(batch, since, figures)

    async def _read(
        self,
        place: Place,
        after: datetime,
        threads: Sequence[str],
        figures: RoundFigures,
        *,
        limit_s: float,
    ) -> Found:
        try:
            found = await self._reader.read(place, after=after, threads=threads, limit_s=limit_s)
        except UnreadablePlaceError as exc:
            _log.info("catch_up.unreadable", channel=place.channel, error=str(exc))
            figures.refused += 1
            return Found()
        figures.places += 1
        figures.cut += found.is_cut
        return found

    async def _accept(self, batch: _Batch, since: datetime, figures: RoundFigures) -> None:
        """Hands over what was found, oldest first, and notes up to when each place was heard."""
        found = [
            (intent, is_edited(body))
            for _, _, place in batch.read
            for body, intent in await self._intents(place, figures)
        ]
        found.sort(key=lambda one: _said_at(one[0]))
        stops = [one for one, _ in found if isinstance(one, StopThread | StopDirectMessages)]
        for intent, was_edited in found:
            if isinstance(intent, RunRequest) and self._is_withdrawn(intent, stops):
                figures.withdrawn += 1
                self._hearing.withdraw(intent.run_id)
                continue
            try:
                await self._hand_over(intent, since, was_edited=was_edited, figures=figures)
            except OSError:  # not durable: this place is looked through again
                raise
            except Exception:  # noqa: BLE001 - one message that cannot be understood must not keep back all others
                _log.exception("catch_up.message_failed")
                figures.failed += 1
        for place, until, _ in batch.read:
            await self._store.keep(place.channel, until)
            figures.left_over -= 1

    async def _intents(
        self, found: Found, figures: RoundFigures
    ) -> Sequence[tuple[Mapping[str, Any], Intent]]:
        """Returns what is to be acted on of a place; lets events that come meanwhile be taken in."""
        intents: list[tuple[Mapping[str, Any], Intent]] = []
        oldest = self._hearing.now() - self._window
        for number, body in enumerate(found.events):
            if number % PARSED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if bad_field(body):
                continue
            intent = self._messages.read(body, received_at=datetime.now(UTC))
            match intent:
                case RunRequest() if intent.asked_at < oldest:
                    figures.too_old += not intent.is_candidate
                case RunRequest() if intent.run_id in found.answered:
                    figures.known += 1
                case RunRequest() | StopThread() | StopDirectMessages() | MuteThread() if (
                    _said_at(intent) >= oldest
                ):
                    intents.append((body, intent))
                case _:
                    pass
        return intents

    async def _hand_over(
        self, intent: Intent, since: datetime, *, was_edited: bool, figures: RoundFigures
    ) -> None:
        if not isinstance(intent, RunRequest):
            await self._messages.act(intent)
            return
        late_s = (self._hearing.now() - intent.asked_at).total_seconds()
        is_late = intent.asked_at < since + CLOCK_ERROR
        changes = {
            "late_s": max(int(late_s), 1) if is_late else 0,
            # Runs are listed by it, and places are read newest first.
            "received_at": datetime.now(UTC),
        }
        request = intent.model_copy(update=changes)
        if await self._messages.act(request):
            figures.accepted += 1
            return
        if request.is_candidate:  # nobody called Orion, and it is at nothing there
            return
        figures.known += 1
        if was_edited:
            revision = Revision(
                run_id=intent.run_id, user=intent.user, text=intent.text, content=intent.content
            )
            await self._messages.act(revision)

    def _is_withdrawn(
        self, request: RunRequest, stops: Sequence[StopThread | StopDirectMessages]
    ) -> bool:
        return any(
            slack_time(stop.ts) > request.asked_at
            and self._messages.may_stop(
                stop.user, is_external=isinstance(stop, StopThread) and stop.is_external
            )
            and (
                stop.thread == request.thread
                if isinstance(stop, StopThread)
                else (stop.team, stop.channel) == (request.team, request.channel)
            )
            for stop in stops
        )

    def _now(self, since: datetime) -> datetime:
        """Returns the moment by Slack's clock, which is told to the second, so never one before `since`."""
        return max(self._hearing.now(), since)


def _said_at(intent: Intent) -> datetime:
    match intent:
        case RunRequest():
            return intent.asked_at
        case StopThread() | StopDirectMessages() | MuteThread():
            return slack_time(intent.ts)
        case _:
            raise AssertionError(f"{type(intent).__name__} is of no moment")


def _threads_of(runs: Sequence[Run]) -> Mapping[str, Sequence[str]]:
    """Returns the roots of the threads in which people spoke with Orion last, by their channels, those spoken in last first."""
    threads: dict[str, list[str]] = {}
    known = dict.fromkeys((run.request.channel, run.request.thread_ts) for run in runs)
    for number, (channel, thread_ts) in enumerate(known):
        roots = threads.setdefault(channel, [])
        if number < KNOWN_THREADS:
            roots.append(thread_ts)
    return threads


def _in_order(places: Sequence[Place], spoken_in: Collection[str]) -> Sequence[Place]:
    """Returns first where people speak with Orion; also direct messages that are not listed, as that takes a scope of its own."""
    by_channel = {place.channel: place for place in places}
    for channel in spoken_in:
        if channel.startswith("D") and channel not in by_channel:
            by_channel[channel] = Place(channel=channel, kind="im")
    return sorted(by_channel.values(), key=lambda place: place.channel not in spoken_in)

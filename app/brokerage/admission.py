"""Who may ask the broker for something: a run that goes, with its own token, at its own door."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from app.brokerage.anthropic_rules import render_error
from app.brokerage.requests import Refused, too_many, unauthorized
from app.brokerage.tokens import InvalidTokenError, create_token, read_token
from app.log import get_logger
from app.runs.broker_ports import AskLeave, ModelGrant
from app.runs.model import ModelCall, RunId, Usage
from app.runs.ports import Clock

TOLD_REFUSALS = 20
"""Of a run, in its trace and in the log: a loop in the sandbox must not fill them."""
FORGOTTEN_S = 60.0
"""Those of nobody known; in each such time as many are told as of a run."""
EFFECT_TIMEOUT_S = 20.0
"""For the run's record; a client waits longer for its tool."""
CLIENT_GONE = 499
"""Source: nginx, HTTP status 499, "client closed request", read 2026-11."""


class Kind(StrEnum):
    """What a sandbox asks for."""

    MODEL = "model calls"
    MCP = "MCP requests"
    GIT = "git requests"


MAX_IN_FLIGHT = {Kind.MODEL: 16, Kind.MCP: 64, Kind.GIT: 8}
"""Of one run. Parallel subagents ask models, each MCP server has an event stream open beside its requests, and git asks one after
the other. Connections and memory are for all runs."""

RenderError = Callable[[Refused], Mapping[str, object]]
ReadToken = Callable[[bytes, str], ModelGrant]

_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class LiveGrant:
    """A grant of this process, while its run goes."""

    grant: ModelGrant
    on_call: Callable[[ModelCall], None]
    on_effect: Callable[[], Awaitable[None]] | None
    refusal: AskLeave | None
    opened_at: datetime
    opened_s: float = field(default_factory=time.monotonic)
    calls: int = 0
    refusals: int = 0
    has_effect: bool = False
    in_flight: Counter[Kind] = field(default_factory=Counter)
    held_bytes: int = 0
    """Of the bodies of requests in flight."""

    def give_back(self, size_bytes: int) -> None:
        """A body is not needed any more."""
        self.held_bytes -= size_bytes

    def leave(self, kind: Kind) -> None:
        """A request has ended."""
        self.in_flight[kind] -= 1

    def covers(self, token: ModelGrant) -> bool:
        """Whether the token's time is not over. The wall clock may have jumped since the grant was opened."""
        passed = timedelta(seconds=time.monotonic() - self.opened_s)
        return self.opened_at + passed <= token.expires_at


class Admission:
    """The grants of the runs that go."""

    def __init__(self, *, signing_key: bytes, clock: Clock) -> None:
        self._key = signing_key
        self._clock = clock
        self._live: dict[RunId, LiveGrant] = {}
        self._unknown: Counter[int] = Counter()
        """Refusals of nobody known, by when they were."""

    @contextmanager
    def open_grant(
        self,
        grant: ModelGrant,
        on_call: Callable[[ModelCall], None],
        on_effect: Callable[[], Awaitable[None]] | None = None,
        refusal: AskLeave | None = None,
    ) -> Iterator[str]:
        """A run token, good while inside; by a door only by that of the grant's session."""
        self._live[grant.run_id] = LiveGrant(
            grant=grant,
            on_call=on_call,
            on_effect=on_effect,
            refusal=refusal,
            opened_at=self._clock.now(),
        )
        try:
            yield create_token(self._key, grant)
        finally:
            self._live.pop(grant.run_id, None)

    def admit(
        self,
        request: Request,
        held: AsyncExitStack,
        kind: Kind,
        *,
        render: RenderError = render_error,
        read: ReadToken = read_token,
    ) -> LiveGrant | Response:
        """The grant that a request's token stands for at the door that it came by, or the refusal.

        The request is in flight until `held` is closed.
        """
        door = getattr(request.state, "door", None)
        found = self._find(_token(request), door, read)
        if isinstance(found, LiveGrant):
            if found.in_flight[kind] >= MAX_IN_FLIGHT[kind]:
                message = f"the run has {MAX_IN_FLIGHT[kind]} {kind} in flight, the most at once"
                return self.refuse(too_many(message), found, render)
            found.in_flight[kind] += 1
            held.callback(found.leave, kind)
            return found
        behind = (live for live in self._live.values() if live.grant.session_id == door)
        return self.refuse(found, next(behind, None), render)

    def is_live(self, live: LiveGrant) -> bool:
        """Whether its run still goes, for what is asked long after it was admitted."""
        return self._live.get(live.grant.run_id) is live and live.covers(live.grant)

    def refuse(
        self, refused: Refused, asking: LiveGrant | None, render: RenderError = render_error
    ) -> Response:
        """Told in the log, and in the trace of the run that asked, where that is known."""
        number = self._count_refusal(asking)
        if number > TOLD_REFUSALS:
            return error_response(refused, render)
        _log.warning(
            "broker.refused",
            status=refused.status,
            reason=refused.message,
            run_id=asking.grant.run_id if asking else "",
            is_last_told=number == TOLD_REFUSALS,
        )
        if asking is not None:
            now = self._clock.now()
            asking.on_call(
                ModelCall(
                    model="refused",
                    started_at=now,
                    first_token_at=None,
                    ended_at=now,
                    status=refused.status,
                    usage=Usage(),
                    error=refused.kind,
                    is_refused=True,
                )
            )
        return error_response(refused, render)

    def _count_refusal(self, asking: LiveGrant | None) -> int:
        """How many there were with this one, of the run or of nobody known."""
        if asking is not None:
            asking.refusals += 1
            return asking.refusals
        when = int(time.monotonic() / FORGOTTEN_S)
        if when not in self._unknown:
            self._unknown.clear()
        self._unknown[when] += 1
        return self._unknown[when]

    def _find(self, token: str, door: str | None, read_it: ReadToken) -> LiveGrant | Refused:
        try:
            read = read_it(self._key, token)
        except InvalidTokenError as exc:
            return unauthorized(str(exc))
        live = self._live.get(read.run_id)
        if live is None or not live.covers(read):
            return unauthorized(f"the run is over: {read.run_id}")
        if door is not None and live.grant.session_id != door:
            return unauthorized(f"the token is another thread's: {read.run_id}")
        return live


def error_response(refused: Refused, render: RenderError = render_error) -> Response:
    """In the provider's own error shape, so that every SDK understands it."""
    return JSONResponse(dict(render(refused)), status_code=refused.status)


async def note_effect(live: LiveGrant) -> bool:
    """Whether the run's record says that it may have had an effect outside."""
    if live.has_effect:
        return True
    if live.on_effect is None:
        return False
    try:
        async with asyncio.timeout(EFFECT_TIMEOUT_S):
            await live.on_effect()
    except (OSError, TimeoutError):
        return False
    live.has_effect = True
    return True


def _token(request: Request) -> str:
    """Wherever one of the protocols has its key."""
    headers = request.headers
    return (
        headers.get("x-api-key")
        or headers.get("x-goog-api-key")
        or headers.get("authorization", "").removeprefix("Bearer ")
        or request.query_params.get("key", "")
    )

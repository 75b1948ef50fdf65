"""Grants of running runs: a signed token identifies one and admits its bearer within the grant's limits.

Tokens are signed, so any process can check one, also after a restart; `SharedGrants` finds the grants of other processes.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from app.approvals.rules import Deed
from app.brokerage.http import HeldBodies, Refusal, RenderError, RunBounds, too_many, unauthorized
from app.brokerage.rules.anthropic import render_error
from app.errors import LeaseLostError
from app.log import get_logger
from app.runs.broker import (
    GIT_PREFIX,
    MAC_BYTES,
    RUN_PREFIX,
    GrantHooks,
    ModelGrant,
    NotApprovedError,
    UnrecordedError,
    decode,
    encode,
    git_mac,
)
from app.runs.model import Clock, ModelCall, Usage
from app.runs.request import RunId

_log = get_logger(__name__)

PREFIX = RUN_PREFIX
TOLD_REFUSALS = 20
"""The most refusals of a run in its trace and in the log: a loop in the sandbox must not fill them."""
LOGGED_FORWARDS = 100
"""The most requests of a run to MCP and git servers that are logged one by one; the others are counted in one line at its end."""
FORGOTTEN_S = 60.0
"""Refusals of unknown clients are counted per window of this length; each window logs as many as a run."""
EFFECT_TIMEOUT_S = 20.0
"""To write the run's record; a client waits longer for its tool."""


class RequestKind(StrEnum):
    """Kinds of requests, as messages name them."""

    MODEL = "model calls"
    MCP = "MCP requests"
    GIT = "git requests"


MAX_IN_FLIGHT = {RequestKind.MODEL: 16, RequestKind.MCP: 64, RequestKind.GIT: 8}
"""Per run. Subagents call models in parallel, each MCP server has an event stream open beside its requests, and git sends one request
after the other. Connections and memory are shared by all runs."""
_BOUNDS = RunBounds()
OpenListening = Callable[[], AbstractAsyncContextManager[None]]
ReadToken = Callable[[bytes, str], ModelGrant]


class InvalidTokenError(Exception):
    """Not a token of ours, altered, or expired; the message says which."""


def load_signing_key(path: Path) -> bytes:
    """Reads the key in this file (mode 0600), which is made on first use; the caller owns the directory alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_bytes(secrets.token_bytes(32))
        temporary.replace(path)
    return path.read_bytes()


def create_token(key: bytes, grant: ModelGrant) -> str:
    """Signs a token for this grant; it fits in an HTTP header."""
    payload = json.dumps(
        {"r": grant.run_id, "m": grant.models, "e": int(grant.expires_at.timestamp())}
    ).encode()
    return PREFIX + encode(_mac(key, payload) + payload)


def read_token(key: bytes, token: str) -> ModelGrant:
    """Reads the grant in a token and checks its signature; the caller checks its expiry. Raises: InvalidTokenError."""
    return _read(token, PREFIX, lambda payload: _mac(key, payload))


def read_git_token(key: bytes, token: str) -> ModelGrant:
    """Reads the grant in a git token, which `app.runs.broker` derives from a run token. Raises: InvalidTokenError."""
    return _read(token, GIT_PREFIX, lambda payload: git_mac(_mac(key, payload)))


def _read(token: str, prefix: str, mac_of: Callable[[bytes], bytes]) -> ModelGrant:
    try:
        raw = decode(token.removeprefix(prefix))
    except ValueError:
        raise InvalidTokenError("not a run token") from None
    mac, payload = raw[:MAC_BYTES], raw[MAC_BYTES:]
    if not token.startswith(prefix) or not hmac.compare_digest(mac, mac_of(payload)):
        raise InvalidTokenError("not a run token")
    fields = json.loads(payload)
    expires_at = datetime.fromtimestamp(fields["e"], UTC)
    return ModelGrant(run_id=RunId(fields["r"]), models=tuple(fields["m"]), expires_at=expires_at)


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, payload, hashlib.sha256).digest()


@dataclass(slots=True, kw_only=True)
class LiveGrant:
    """A grant of this process while its run is running, and what the run has in flight."""

    grant: ModelGrant
    hooks: GrantHooks
    bodies: HeldBodies
    opened_at: datetime
    opened_s: float = field(default_factory=time.monotonic)
    calls: int = 0
    refusals: int = 0
    forwards: int = 0
    has_effect: bool = False
    has_door: bool = False
    """Its sandbox reaches the broker at a socket of its thread's alone."""
    in_flight: Counter[RequestKind] = field(default_factory=Counter)
    kept: AsyncExitStack | None = None
    """What is closed with it, while it is kept between two slices of its run."""
    is_kept: bool = False
    """It shall be."""

    def log_forward(self, *, server: str, status: int, **more: str) -> None:
        """Logs a forwarded request; only the first ones of a run, which may send them in a loop."""
        self.forwards += 1
        if self.forwards <= LOGGED_FORWARDS:
            _log.info(
                "broker.forwarded", run_id=self.grant.run_id, server=server, status=status, **more
            )

    def log_end(self) -> None:
        """Logs how many requests had no line of their own."""
        if self.forwards > LOGGED_FORWARDS:
            left_out = self.forwards - LOGGED_FORWARDS
            _log.info("broker.forwarded", run_id=self.grant.run_id, left_out=left_out)

    def release(self, kind: RequestKind) -> None:
        """Releases the slot of a request that has ended."""
        self.in_flight[kind] -= 1

    def covers(self, token: ModelGrant) -> bool:
        """Whether the token has not expired. The wall clock may have jumped since the grant was opened."""
        passed = timedelta(seconds=time.monotonic() - self.opened_s)
        return self.opened_at + passed <= token.expires_at


class GrantSharing(Protocol):
    """Grants that several processes honour."""

    def offer(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """Lets other processes find the open grant of that run while inside.

        Raises:
            OSError: they cannot be told.
        """
        ...

    async def find(self, run_id: RunId) -> LiveGrant | None:
        """Returns the grant that another process has opened.

        Raises:
            OSError: nobody knows now.
        """
        ...

    def is_live(self, live: LiveGrant) -> bool:
        """Whether `find` has found it, and its run was not over when it was looked for last."""
        ...


class GrantRegistry:
    """The grants of the runs that are running in this process; admits and refuses requests."""

    sharing: GrantSharing | None = None
    """None = there are no other processes."""

    def __init__(self, *, signing_key: bytes, clock: Clock, bounds: RunBounds = _BOUNDS) -> None:
        self._bounds = bounds
        self._key = signing_key
        self._clock = clock
        self._live: dict[RunId, LiveGrant] = {}
        self._unknown: Counter[int] = Counter()
        """Refusals of unknown clients, by their time window."""

    @contextmanager
    def open_grant(
        self,
        grant: ModelGrant,
        hooks: GrantHooks,
    ) -> Iterator[str]:
        """Yields a run token that is valid while the block runs; of all sockets only at that of the grant's session."""
        live = self._live[grant.run_id] = self.create_live(grant, hooks)
        try:
            yield create_token(self._key, grant)
        finally:
            if self._live.get(grant.run_id) is live:  # a later attempt's stays
                del self._live[grant.run_id]
            live.log_end()

    def live(self, run_id: RunId) -> LiveGrant | None:
        """Returns the open grant of a run of this process."""
        return self._live.get(run_id)

    def create_live(self, grant: ModelGrant, hooks: GrantHooks) -> LiveGrant:
        """Returns a grant with nothing in flight, which nobody finds yet."""
        return LiveGrant(
            grant=grant,
            hooks=hooks,
            bodies=HeldBodies(self._bounds),
            opened_at=self._clock.now(),
        )

    @asynccontextmanager
    async def hold_grant(
        self,
        grant: ModelGrant,
        hooks: GrantHooks,
        open_listener: OpenListening = nullcontext,
    ) -> AsyncIterator[str]:
        """Opens a grant that outlives the block after `keep`, or goes on with one that was kept; and a listener as long as it."""
        await self._close_expired()
        async with AsyncExitStack() as stack:
            live = self._live.get(grant.run_id)
            if live is not None and live.kept is not None:
                await stack.enter_async_context(live.kept)
                live.grant, live.hooks, live.kept, live.is_kept = grant, hooks, None, False
            else:
                stack.enter_context(self.open_grant(grant, hooks))
                live = self._live[grant.run_id]
                live.has_door = open_listener is not nullcontext
                await stack.enter_async_context(open_listener())
            yield create_token(self._key, grant)
            if live.is_kept:
                live.kept = stack.pop_all()

    def keep(self, run_id: RunId) -> None:
        """Lets a grant that is open outlive its block, with its listener and hooks, until it expires or is opened again."""
        if live := self._live.get(run_id):
            live.is_kept = True

    async def close(self) -> None:
        """Closes all grants that are kept."""
        for live in list(self._live.values()):
            if live.kept is not None:
                await live.kept.aclose()

    async def _close_expired(self) -> None:
        for live in list(self._live.values()):
            if live.kept is not None and not live.covers(live.grant):
                await live.kept.aclose()

    async def admit(
        self,
        request: Request,
        held: AsyncExitStack,
        kind: RequestKind,
        *,
        render: RenderError = render_error,
        read: ReadToken = read_token,
    ) -> LiveGrant | Response:
        """Returns the grant of a request's token at the endpoint that it came by, or the refusal.

        The request is in flight until `held` is closed.
        """
        endpoint = getattr(request.state, "endpoint", None)
        found = await self._find(_token(request), endpoint, read)
        if isinstance(found, LiveGrant):
            if found.in_flight[kind] >= MAX_IN_FLIGHT[kind]:
                message = f"the run has {MAX_IN_FLIGHT[kind]} {kind} in flight, the most at once"
                return self.refuse(too_many(message), found, render)
            found.in_flight[kind] += 1
            held.callback(found.release, kind)
            return found
        behind = (live for live in self._live.values() if live.grant.session_id == endpoint)
        return self.refuse(found, next(behind, None), render)

    def is_live(self, live: LiveGrant) -> bool:
        """Whether the run still goes, for work that starts long after its request was admitted."""
        is_own = self._live.get(live.grant.run_id) is live
        is_live = is_own or (self.sharing is not None and self.sharing.is_live(live))
        return is_live and live.covers(live.grant)

    def refuse(
        self, refused: Refusal, asking: LiveGrant | None, render: RenderError = render_error
    ) -> Response:
        """Renders a refusal; logs it, and records it in the trace of the run that sent the request, where that is known."""
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
            asking.hooks.on_call(
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
        """Counts a refusal; returns how many the run, or unknown clients in this window, have had."""
        if asking is not None:
            asking.refusals += 1
            return asking.refusals
        when = int(self._clock.now().timestamp() / FORGOTTEN_S)  # a jump of it tells some more
        if when not in self._unknown:
            self._unknown.clear()
        self._unknown[when] += 1
        return self._unknown[when]

    async def _find(
        self, token: str, endpoint: str | None, read_it: ReadToken
    ) -> LiveGrant | Refusal:
        try:
            read = read_it(self._key, token)
        except InvalidTokenError as exc:
            return unauthorized(str(exc))
        live = self._live.get(read.run_id)
        if live is None and endpoint is None and self.sharing is not None:
            try:
                live = await self.sharing.find(read.run_id)
            except OSError as exc:  # with this status clients try again
                reason = f"the run cannot be looked up: {exc}"
                return Refusal(status=503, kind="api_error", message=reason)
        if live is None or not live.covers(read):
            return unauthorized(f"the run is over: {read.run_id}")
        if endpoint is None and live.has_door:
            return unauthorized(
                f"the token is good at its thread's own socket alone: {read.run_id}"
            )
        if endpoint is not None and live.grant.session_id != endpoint:
            return unauthorized(f"the token is another thread's: {read.run_id}")
        return live


def error_response(refused: Refusal, render: RenderError = render_error) -> Response:
    """Renders a refusal in the provider's own error shape, so that every SDK understands it."""
    return JSONResponse(dict(render(refused)), status_code=refused.status)


async def record_effect(live: LiveGrant) -> bool:
    """Records that the run may have an effect outside now; returns whether it may: the record says so, and the run is still this process's."""
    if live.hooks.on_effect is None:
        return False
    try:
        async with asyncio.timeout(EFFECT_TIMEOUT_S):
            await live.hooks.may_act()
            if not live.has_effect:
                await live.hooks.on_effect()
    except (OSError, TimeoutError, LeaseLostError):
        return False
    live.has_effect = True
    return True


async def let_do(live: LiveGrant, deed: Deed) -> None:
    """Returns when the run may do this, once and now, and its record says that it may have an effect outside.

    Raises:
        NotApprovedError: it may not, or not yet.
    """
    before = partial(record_effect, live)
    if live.hooks.approvals is None:
        if not await before():
            raise UnrecordedError
        return
    try:
        await live.hooks.approvals.approve(deed, before)
    except OSError as exc:
        _log.warning("broker.unapproved", run_id=live.grant.run_id, reason=str(exc))
        raise NotApprovedError("whether this is allowed cannot be looked up now") from exc


def may_be_token(request: Request) -> bool:
    """Whether a request brings what looks like a token of a run, whoever signed it."""
    return _token(request).startswith((PREFIX, GIT_PREFIX))


def _token(request: Request) -> str:
    """Returns the token, from wherever one of the protocols puts its key."""
    headers = request.headers
    return (
        headers.get("x-api-key")
        or headers.get("x-goog-api-key")
        or headers.get("authorization", "").removeprefix("Bearer ")
        or request.query_params.get("key", "")
    )

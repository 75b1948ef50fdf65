"""Vercel's API as sandboxes need it: credentials, networks, records, and sandboxes made once, whatever becomes of the answer.

The API makes sandboxes with names that are unique in the project. A request whose outcome is unknown (the connection broke,
an answer of no sense) is looked up by its name: what it made is taken, or removed. Errors of the SDK are mapped to ours:

SandboxApiError               by HTTP status and code: the API has one class for all its answers
SandboxTerminalStateError       a sandbox ended while it was made
SandboxStdinError, filesystem   their `cause` says why
SandboxError                    the rest: an answer of the wrong shape, a stream that broke off
httpx2.TransportError           the connection broke; the SDK lets these out as they are
TimeoutError                    no answer in time
"""

import asyncio
import base64
import binascii
import json
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import vercel.sandbox as sdk
from pydantic import ValidationError
from vercel.sandbox import (
    NetworkPolicy,
    NetworkPolicyRule,
    NetworkPolicyTransform,
    SandboxCredentials,
)

from sandbox_runtime.errors import (
    CodeAndRetry,
    ErrorMap,
    RequestContext,
    SandboxError,
    SandboxErrorCode,
)
from sandbox_runtime.lifecycle import Orphans, Owner, repeat
from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel.labels import (
    MANAGED,
    RUN,
    SANDBOX,
    SnapshotTags,
    sandbox_name,
    sandbox_tags,
)
from sandbox_runtime.types import BrokeredNetwork, ClosedNetwork, Network, OpenNetwork

_log = logging.getLogger(__name__)

API_TIMEOUT_S = 70.0
"""Of one request: the SDK itself gives up after 60 s. Source: vercel-sandbox 0.10.0."""
ATTEMPTS = 3
_BACKOFF_S = 0.2

_GONE, _LIMIT = SandboxErrorCode.UNAVAILABLE, SandboxErrorCode.LIMIT_REACHED
_BY_STATUS: Mapping[int, CodeAndRetry] = {
    402: (_LIMIT, False),
    410: (_GONE, False),
    422: (_GONE, False),
}

_REMEDIES = {
    401: "; the credentials are not accepted: check VERCEL_TOKEN, or VERCEL_OIDC_TOKEN",
    402: "; the plan's allowance is used up",
    403: "; the credentials do not reach this team or project: check VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID",
}
_LOST_SNAPSHOTS = frozenset({"snapshot_not_found", "snapshot_region_mismatch"})
_REASON_CHARS = 300
_T = TypeVar("_T")


def _translate(exc: BaseException, context: RequestContext) -> SandboxError:
    """Says NOT_FOUND for a snapshot that is gone, LIMIT_REACHED for a quota or too many requests, UNAVAILABLE when the API does
    not answer.
    """
    if isinstance(exc, (sdk.SandboxStdinError, sdk.SandboxFilesystemWriteError)):
        return _translate(exc.cause, context)
    if isinstance(exc, sdk.SandboxApiError):
        return _from_status(exc, context)
    code, reason, retryable = context.otherwise, _short(exc), False
    match exc:
        case sdk.SandboxTerminalStateError():
            reason, retryable = f"the sandbox is {exc.status.value}", True
        case sdk.SandboxPathNotFoundError():
            code = context.missing
        case sdk.SandboxCredentialsError():
            code = _GONE
        case sdk.SandboxResponseError() | sdk.SandboxStreamError():
            reason, retryable = f"an answer of no sense: {reason}", True
        case json.JSONDecodeError() | UnicodeDecodeError() | ValidationError():
            reason, retryable = "an answer of no sense", True
        case httpx2.HTTPError():
            code, reason, retryable = _GONE, f"the connection to Vercel broke: {reason}", True
        case TimeoutError():
            code, reason, retryable = _GONE, "no answer in time", True
        case _:
            pass
    return context.error(reason, code, retryable=retryable)


def _from_status(exc: sdk.SandboxApiError, context: RequestContext) -> SandboxError:
    status = exc.status_code
    reason = _short(exc)  # of the SDK: it begins with the status
    said = reason if reason.startswith("HTTP ") else f"HTTP {status}: {reason}"
    text = f"{said}{_REMEDIES.get(status, '')}"
    if exc.code in _LOST_SNAPSHOTS:
        return context.error(text, SandboxErrorCode.NOT_FOUND)
    is_creating = context.otherwise is SandboxErrorCode.CREATE_FAILED
    if status == httpx2.codes.TOO_MANY_REQUESTS and not is_creating:
        return context.error(
            text, retryable=True
        )  # of sandboxes there are enough only when one is made
    return context.error_of_status(status, text, _BY_STATUS)


def _short(exc: BaseException) -> str:
    """Returns the text of an error in short: a proxy's page is long, and nobody's text."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    return "a page of HTML" if "<html" in text.lower() else text[:_REASON_CHARS]


map_errors = ErrorMap(
    _translate,
    sdk.SandboxError,
    httpx2.HTTPError,
    TimeoutError,
    json.JSONDecodeError,
    UnicodeDecodeError,
    ValidationError,
    timeout_s=API_TIMEOUT_S,
)
"""Bounds a request to the API and maps its errors."""


async def ask(
    work: Callable[[], Awaitable[_T]],
    doing: str,
    *,
    timeout_s: float = API_TIMEOUT_S,
    otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
    missing: SandboxErrorCode = SandboxErrorCode.NOT_FOUND,
) -> _T:
    """Makes a request that may be repeated without harm, up to three times while that may help. The SDK repeats few by itself."""

    async def once() -> _T:
        async with map_errors(doing, timeout_s=timeout_s, otherwise=otherwise, missing=missing):
            return await work()

    return await repeat(once, attempts=ATTEMPTS, first_wait_s=_BACKOFF_S)


def is_status(exc: BaseException | None, *statuses: int) -> bool:
    """Whether an error of ours comes from such an answer."""
    cause = exc.__cause__ if isinstance(exc, SandboxError) else exc
    return isinstance(cause, sdk.SandboxApiError) and cause.status_code in statuses


_MAX_NUMBERS = 16
_POLL_S = 0.5
_LIST_TIMEOUT_S = 60.0
_LOOK_TIMEOUT_S, _DISCARD_TIMEOUT_S = 20.0, 20.0
_TERMINAL = frozenset(
    {sdk.SandboxStatus.STOPPED, sdk.SandboxStatus.FAILED, sdk.SandboxStatus.ABORTED}
)


class Credentials:
    """A credentials factory of the SDK, which asks for each request."""

    def __init__(self, settings: VercelSettings) -> None:
        self._settings = settings

    async def __call__(self) -> SandboxCredentials:
        """Returns credentials that hold now. Raises: SandboxError: UNAVAILABLE for an OIDC token that has expired or is none."""
        settings = self._settings
        if settings.token and settings.team_id and settings.project_id:
            return SandboxCredentials(
                token=settings.token, team_id=settings.team_id, project_id=settings.project_id
            )
        token = settings.oidc_token or ""
        claims = _claims(token)
        try:
            expires_at = float(claims["exp"])
            team_id, project_id = str(claims["owner_id"]), str(claims["project_id"])
        except (KeyError, TypeError, ValueError) as exc:
            raise _unusable("VERCEL_OIDC_TOKEN lacks a claim (exp, owner_id, project_id)") from exc
        if expires_at <= time.time():
            raise _unusable(
                "VERCEL_OIDC_TOKEN has expired: `vercel env pull` writes a new one, or set VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID"
            )
        return SandboxCredentials(token=token, team_id=team_id, project_id=project_id)


def _claims(token: str) -> dict[str, Any]:
    """Returns the payload of a JSON Web Token, unverified: the API verifies it. Source: RFC 7519."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, binascii.Error, ValueError) as exc:
        raise _unusable("VERCEL_OIDC_TOKEN is not a JSON Web Token") from exc
    return claims if isinstance(claims, dict) else {}


def _unusable(reason: str) -> SandboxError:
    return SandboxError(SandboxErrorCode.UNAVAILABLE, reason)


HTTP_TIMEOUT_S = 60.0
MAX_CONNECTIONS = 100
"""Both as the SDK's own client has them."""


@cache
def _trusted() -> ssl.SSLContext:
    """Returns whom this machine trusts, for all clients: each would load the same anew, and a function opens one for each slice."""
    return httpx2.create_ssl_context()


def create_http_client() -> httpx2.AsyncClient:
    """Returns the client for the API; the SDK closes it."""
    return httpx2.AsyncClient(
        verify=_trusted(),
        timeout=HTTP_TIMEOUT_S,
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS),
    )


LISTED_HEADERS = {"x-orion-network": "listed"}
"""Added to requests to the hosts of a list. Without a rule Vercel goes by the name that a program says in TLS, whatever address it dials. With
one it ends the TLS itself, and whoever is dialled must have the name's certificate, or a header with a key would not be safe with it. Source: its
documentation of the network policy, read 2026-09, of which the last is what follows, not what it says.
"""


def network_policy(network: Network) -> NetworkPolicy:
    """Returns the policy of a network.

    Raises:
        SandboxError: UNSUPPORTED when the endpoint is no URL, as nothing of this machine is in reach from there, or a host has a port of its own.
    """
    match network:
        case ClosedNetwork():
            return NetworkPolicy.deny_all()
        case OpenNetwork():
            return NetworkPolicy.allow_all()
        case BrokeredNetwork():
            hosts = {_policy_host(host): _adding(LISTED_HEADERS) for host in network.hosts}
            broker = {_host(network.endpoint): _adding(network.headers)}
            return NetworkPolicy.custom(hosts | broker)


def _adding(headers: Mapping[str, str]) -> Sequence[NetworkPolicyRule]:
    return (
        [NetworkPolicyRule(transform=[NetworkPolicyTransform(headers=headers)])] if headers else []
    )


def _policy_host(host: str) -> str:
    """Returns a host as policies have it. Raises: SandboxError: UNSUPPORTED: it is not of TLS's own port."""
    name, _, port = host.partition(":")
    if port not in ("", "443"):
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED,
            f"a network at Vercel knows no ports, and hosts by TLS alone: {host} cannot be on its list",
        )
    return name


def _host(endpoint: str) -> str:
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED,
            "a sandbox at Vercel reaches a broker by a URL, not by a socket: set ORION_PUBLIC_URL",
        )
    return url.hostname


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Describes one request to the API."""

    source: SnapshotTags | None
    """None = the image."""
    network_policy: sdk.NetworkPolicy
    labels: Mapping[str, str]
    lifetime_s: float


class VercelClient:
    """The records of one namespace in a project; remembers which requests' outcome is unknown."""

    def __init__(
        self,
        client: sdk.SandboxClient,
        settings: VercelSettings,
        orphans: Orphans,
        *,
        count_own: Callable[[], int],
    ) -> None:
        """`count_own` tells how many sandboxes of this process run."""
        self.sdk = client
        self._settings = settings
        self._orphans = orphans
        self._count_own = count_own
        self._prefix = f"orion-{settings.name}-"
        self._id = re.compile(re.escape(self._prefix) + "[0-9a-f]{16}")
        self._unsure: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Run -> number of its next sandbox."""

    async def find_record(self, name: str) -> sdk.Sandbox | None:
        """Returns a sandbox of the namespace, running or not; it is not resumed."""
        if not self._id.fullmatch(name):
            return None
        try:
            return await ask(lambda: self.sdk.get_sandbox(name=name), "cannot find a sandbox")
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND:
                return None
            raise

    async def find_sandbox(self, name: str) -> sdk.Sandbox | None:
        """Returns the record of a sandbox, and not one that tells of a snapshot."""
        record = await self.find_record(name)
        tags = {} if record is None else record.tags or {}
        return record if tags.get(MANAGED) == SANDBOX else None

    async def end_sandbox(self, name: str) -> None:
        """Ends a sandbox and removes its record, if it is one."""
        record = await self.find_sandbox(name)
        if record is not None:
            await end_record(record)

    async def list_records(self, *, key: str, value: str) -> Sequence[sdk.Sandbox]:
        """Returns the sandboxes of the namespace with that tag."""
        query = sdk.SandboxQueryByName(
            name_prefix=self._prefix, tag=sdk.TagFilter(key=key, value=value)
        )

        async def records() -> Sequence[sdk.Sandbox]:
            # Asked for by prefix, and looked at again: a listing that ignores it must not show what is not ours.
            return [
                record
                async for record in self.sdk.query_sandboxes(query=query)
                if self._id.fullmatch(record.name)
            ]

        return await ask(records, "cannot list sandboxes", timeout_s=_LIST_TIMEOUT_S)

    async def create(self, order: Order) -> sdk.Sandbox:
        """Makes a sandbox and returns it with the session that runs. The caller ends it, or discards it.

        Raises:
            SandboxError: CREATE_FAILED, LIMIT_REACHED, NOT_FOUND for a lost snapshot, UNAVAILABLE.
        """
        run = order.labels.get(RUN, "")
        for _ in range(_MAX_NUMBERS):
            name = sandbox_name(self._settings.name, order.labels, self._numbers.get(run, 1))
            try:
                made = await self._create_once(order, name)
            except SandboxError as exc:
                if exc.code is SandboxErrorCode.LIMIT_REACHED:
                    text = f"{exc}; {self._count_own()} sandboxes of this process are running"
                    raise SandboxError(exc.code, text, retryable=exc.retryable) from exc
                if not is_status(exc, 409) or not run:
                    raise
                # One of the run's earlier sandboxes, or the record of its snapshot: not ours to take.
                self._numbers[run] = self._numbers.get(run, 1) + 1
                continue
            if run:
                self._numbers[run] = self._numbers.get(run, 1) + 1
            try:
                return await self.with_session(made)
            except BaseException:
                await self.discard(made)
                raise
        raise SandboxError(SandboxErrorCode.CREATE_FAILED, f"run {run} has too many sandboxes")

    async def with_session(self, record: sdk.Sandbox) -> sdk.Sandbox:
        """Returns the record with what the service knows of its session, which some answers leave out."""
        if record.current_session is not None:
            return record
        return await self.find_record(record.name) or record

    async def discard(self, record: sdk.Sandbox) -> None:
        """Ends one that nobody got: if even this fails it is tried again at the end, and it ends itself."""
        try:
            await end_record(record)
        except SandboxError:
            self._unsure.add(record.name)

    async def close(self) -> None:
        """Removes what may have been made without our knowing."""
        await self._orphans.close()
        for name in tuple(self._unsure):
            await self._discard(name)

    async def _create_once(self, order: Order, name: str) -> sdk.Sandbox:
        try:
            made = await self._orphans.ask(
                self._ask(order, name), lambda _made: self._discard(name)
            )
        except SandboxError as exc:
            if is_status(exc, 409) and name in self._unsure:
                found = await self._look(name, exc)
            elif isinstance(exc.__cause__, sdk.SandboxTerminalStateError):
                self._unsure.add(name)
                await self._discard(name)
                raise
            elif exc.retryable and not is_status(exc, 429):
                self._unsure.add(name)
                found = await self._look(name, exc)
            else:
                raise
            made = found
        except asyncio.CancelledError:
            self._unsure.add(name)  # until its answer has come, and it has been removed
            raise
        self._unsure.discard(name)
        return made

    async def _ask(self, order: Order, name: str) -> sdk.Sandbox:
        settings, source = self._settings, order.source
        async with map_errors(
            "cannot make a sandbox",
            timeout_s=settings.create_timeout_s,
            otherwise=SandboxErrorCode.CREATE_FAILED,
            missing=SandboxErrorCode.CREATE_FAILED
            if source is None
            else SandboxErrorCode.NOT_FOUND,
        ):
            return await self.sdk.create_sandbox(
                name=name,
                image=settings.image if source is None else None,
                source=sdk.SnapshotSource(snapshot_id=source.vercel_id) if source else None,
                execution_time_limit=order.lifetime_s,
                resources=sdk.SandboxResources(vcpus=settings.vcpus),
                # Otherwise each end would write, and bill, a snapshot.
                persistent=False,
                network_policy=order.network_policy,
                tags=sandbox_tags(Owner.of(self._settings.owner), order.labels),
                region=settings.region,
            )

    async def _look(self, name: str, failure: SandboxError) -> sdk.Sandbox:
        """Returns what the request has made; if nothing, or nothing of use, its failure is raised."""
        try:
            async with asyncio.timeout(min(_LOOK_TIMEOUT_S, self._settings.create_timeout_s)):
                record = await self.find_record(name)
                while record is not None and record.status not in (
                    sdk.SandboxStatus.RUNNING,
                    *_TERMINAL,
                ):
                    await asyncio.sleep(_POLL_S)
                    record = await self.find_record(name)
        except (SandboxError, TimeoutError):
            raise failure from failure.__cause__  # still unknown: found by its name next time
        if record is not None and record.status is sdk.SandboxStatus.RUNNING:
            return record
        if record is not None:
            await self._discard(name)
        raise failure from failure.__cause__

    async def _discard(self, name: str) -> None:
        try:
            async with asyncio.timeout(_DISCARD_TIMEOUT_S):
                record = await self.find_record(name)
                if record is not None:
                    await end_record(record)
        except (SandboxError, TimeoutError) as exc:
            _log.warning(
                "sandbox not destroyed",
                extra={
                    "action": "sandbox.stop_failed",
                    "sandbox_id": name,
                    "reason": str(exc) or "no answer in time",
                },
            )
        else:
            self._unsure.discard(name)


async def end_record(record: sdk.Sandbox) -> None:
    """Stops a sandbox and removes its record; what is gone already is fine. Snapshots stay."""
    for doing, step in (("stop", record.stop), ("destroy", record.destroy)):
        try:
            await ask(step, f"cannot {doing} a sandbox")
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.NOT_FOUND and not is_status(exc, 410, 422):
                raise

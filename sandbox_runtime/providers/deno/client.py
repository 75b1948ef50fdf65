"""Deno's control plane as sandboxes need it, over the SDK: typed, bounded, repeated where that is safe, errors mapped."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, cast

import httpx
import websockets
from deno_sandbox import HTTPStatusError
from deno_sandbox.console import AsyncConsoleClient, AsyncPaginatedList
from deno_sandbox.errors import (
    AuthenticationError,
    MissingApiToken,
    ProcessAlreadyExited,
    RpcValidationError,
    UnknownRpcMethod,
)
from deno_sandbox.options import InternalOptions
from deno_sandbox.sandbox import AsyncSandbox
from deno_sandbox.snapshots import AsyncSnapshots
from deno_sandbox.volumes import AsyncVolumes

from sandbox_runtime.errors import ErrorMap, RequestContext, SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import repeat
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.rpc import ConnectionLost, RemoteError, UnexpectedAnswer

REQUEST_TIMEOUT_S = 15.0
"""Of one request. The SDK's own limit is 10 s for each phase of it."""

CONCURRENCY_LIMIT = "SANDBOX_CONCURRENCY_LIMIT_EXCEEDED"
"""Seen on the platform, 2026; also that an unready volume is answered with 500."""

_REMEDY = "look at DENO_DEPLOY_TOKEN"
_CREDENTIALS = (401, 403)
_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An HTTP answer that is no success."""

    status: int
    code: str
    message: str


def refusal_of(exc: BaseException | None) -> Refusal | None:
    """Returns what was answered, if the exception was made of an answer."""
    match exc:
        case HTTPStatusError():
            return Refusal(status=exc.status_code, code=exc.code, message=exc.message)
        case websockets.InvalidStatus():
            code, message = _parse_refusal(bytes(exc.response.body or b""))
            return Refusal(status=exc.response.status_code, code=code, message=message)
        case _:
            return None


def _parse_refusal(body: bytes) -> tuple[str, str]:
    try:
        said = json.loads(body)
        return str(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        return "", body[:_MESSAGE_CHARS].decode("utf-8", "replace")


def _translate(exc: Exception, context: RequestContext) -> SandboxError:
    """Says LIMIT_REACHED for a quota, UNAVAILABLE when Deno does not answer or does not take the token."""
    if isinstance(exc, (HTTPStatusError, websockets.InvalidStatus)):
        return _from_status(exc, context)
    code, reason, retryable = None, _short(exc), True
    match exc:
        case AuthenticationError() | MissingApiToken():
            code, reason, retryable = SandboxErrorCode.UNAVAILABLE, f"{exc}; {_REMEDY}", False
        case TimeoutError():
            reason = "no answer from Deno in time"
        case RemoteError():
            retryable = exc.retryable
        case ProcessAlreadyExited() | RpcValidationError() | UnknownRpcMethod():
            retryable = False
        case (
            UnexpectedAnswer()
            | json.JSONDecodeError()
            | UnicodeDecodeError()
            | websockets.InvalidHandshake()
            | httpx.InvalidURL()
        ):
            reason = f"not an answer of Deno: {reason}"
        case _:
            code = SandboxErrorCode.UNAVAILABLE
            reason = f"the connection to Deno broke: {reason or type(exc).__name__}"
    return context.error(reason, code, retryable=retryable)


def _from_status(
    exc: HTTPStatusError | websockets.InvalidStatus, context: RequestContext
) -> SandboxError:
    refusal = refusal_of(exc)
    assert refusal is not None  # noqa: S101  # both classes are answers
    status = refusal.status
    text = f"{refusal.message[:_MESSAGE_CHARS].strip()} ({status} {refusal.code})"
    reason = f"{text}; {_REMEDY}" if status in _CREDENTIALS else text
    return context.error_of_status(status, reason, {409: (None, True)})


def _short(exc: BaseException) -> str:
    return str(exc)[:_MESSAGE_CHARS]


map_errors = ErrorMap(
    _translate,
    HTTPStatusError,
    AuthenticationError,
    MissingApiToken,
    ProcessAlreadyExited,
    RpcValidationError,
    UnknownRpcMethod,
    RemoteError,
    ConnectionLost,
    UnexpectedAnswer,
    websockets.WebSocketException,
    httpx.HTTPError,
    httpx.InvalidURL,
    json.JSONDecodeError,
    UnicodeDecodeError,
    OSError,
    timeout_s=REQUEST_TIMEOUT_S,
)
"""Bounds a request to Deno and maps its errors."""


SESSION_BYTES = 5_000_000_000
ROOT_BYTES = 10 * 1024**3
BUILTIN_BASE = "builtin:debian-13"
"""The only one. Source: Deno documentation, "Volumes & Snapshots", read 2026-11."""
_MAX_PAGES, _PAGE = 200, 100
_ATTEMPTS = 4
_MAX_WAIT_S = 8.0
_STOP_TIMEOUT_S, _STOP_AGAIN_S = 30.0, 1.5
_FIRST_POLL_S, _MAX_POLL_S = 0.05, 2.0
_CONFLICT, _GONE = 409, 404
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSandbox:
    """A sandbox as the control plane lists it."""

    id: str
    running: bool
    created_at: datetime
    region: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDisk:
    """A volume or a snapshot."""

    slug: str
    region: str
    base: str | None
    """Slug of the snapshot that it was made from."""
    allocated_bytes: int | None
    """What it takes beside what it was made from; an estimate."""


def parse_cursor(found: str | None) -> str | None:
    """Returns the cursor of the next page: the SDK takes the whole link for it (0.16.0, console.py), the platform wants what is in its query."""
    if found is None or "cursor=" not in found:
        return found
    cursor: str | None = httpx.URL(found).params.get("cursor")
    return cursor


def parse_sandbox(item: dict[str, Any]) -> ListedSandbox:
    """Parses a sandbox as it is listed. Raises: UnexpectedAnswer."""
    try:
        return ListedSandbox(
            id=item["id"],
            running=item["status"] == "running",
            created_at=_time(item["created_at"]),
            region=item.get("region") or "",
            labels=item.get("labels") or {},
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise _odd(item) from exc


def parse_disk(item: Mapping[str, Any], *, allocated: str) -> StoredDisk:
    """Parses a volume or snapshot; `allocated` names the field of its own size. Raises: UnexpectedAnswer."""
    try:
        base = item.get("base_snapshot") or {}
        return StoredDisk(
            slug=item["slug"],
            region=item["region"],
            base=base.get("slug"),
            allocated_bytes=item.get(allocated),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise _odd(item) from exc


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _odd(item: object) -> UnexpectedAnswer:
    return UnexpectedAnswer(str(item)[:200])


class DenoClient:
    """Deno's control plane over one connection pool. Open it with `open_client`."""

    def __init__(self, client: AsyncConsoleClient, settings: DenoSettings) -> None:
        self._client = client
        self._volumes = AsyncVolumes(client)
        self._snapshots = AsyncSnapshots(client)
        self._region = settings.region
        self._wait_s = settings.retry_wait_s

    async def list_sandboxes(self) -> Sequence[ListedSandbox]:
        """Lists all sandboxes of the organisation: the SDK cannot filter by labels (0.16.0: it sends the `repr` of the dictionary)."""
        return await self._pages("/api/v3/sandboxes", {}, parse_sandbox)

    async def count_running(self) -> int:
        return sum(sandbox.running for sandbox in await self.list_sandboxes())

    async def end_sandbox(self, sandbox_id: str) -> None:
        """Ends a sandbox, and returns when it does not run any more. An unknown one is fine.

        Raises:
            SandboxError: UNAVAILABLE, also when it still runs after 30 s.
        """
        # The request may be slow, or fail, while it does its work (seen on the platform, 2026): what is listed counts.
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                await self._repeated(
                    f"cannot end sandbox {sandbox_id}", self._handle(sandbox_id).kill
                )
            except SandboxError as exc:
                if exc.code is not SandboxErrorCode.NOT_FOUND and not exc.retryable:
                    raise
            if await self._until(lambda: self._is_over(sandbox_id), timeout_s=_STOP_AGAIN_S):
                return
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE, f"sandbox {sandbox_id} still runs", retryable=True
        )

    async def _is_over(self, sandbox_id: str) -> bool:
        return not any(
            sandbox.running for sandbox in await self.list_sandboxes() if sandbox.id == sandbox_id
        )

    async def extend(self, sandbox_id: str, lifetime_s: float) -> datetime:
        """Asks that a sandbox lives so long from now; returns until when it really does."""
        return await self._repeated(
            f"cannot extend sandbox {sandbox_id}",
            lambda: self._handle(sandbox_id).extend_timeout(cast("int", lifetime_s)),
        )

    def _handle(self, sandbox_id: str) -> AsyncSandbox:
        """Returns the SDK's sandbox without its connection, for requests to the control plane alone."""
        return AsyncSandbox(self._client, cast("Any", None), sandbox_id)

    async def volumes(self) -> Sequence[StoredDisk]:
        parse = partial(parse_disk, allocated="estimated_allocated_size")
        return await self._pages("/api/v2/volumes", {"limit": _PAGE}, parse)

    async def snapshots(self) -> Sequence[StoredDisk]:
        parse = partial(parse_disk, allocated="allocated_size")
        return await self._pages("/api/v2/snapshots", {"limit": _PAGE}, parse)

    async def create_volume(self, slug: str, *, size_bytes: int, source: str | None) -> None:
        """Makes a volume, from a snapshot or empty. When nobody knows whether a request was done, the slug tells.

        Raises:
            SandboxError: NOT_FOUND for an unknown source; CREATE_FAILED.
        """
        is_repeated = False

        async def create() -> None:
            nonlocal is_repeated
            if is_repeated and await self._volumes.get(slug) is not None:
                return
            try:
                made = await self._volumes.create(
                    slug, self._region, size_bytes, from_snapshot=source
                )
                parse_disk(made, allocated="")
            except HTTPStatusError as exc:
                is_repeated = exc.status_code != _CONFLICT  # it is somebody else's then
                raise
            except BaseException:
                is_repeated = True
                raise

        await self._repeated(
            f"cannot make volume {slug}", create, otherwise=SandboxErrorCode.CREATE_FAILED
        )

    async def snapshot_volume(self, volume: str, slug: str) -> StoredDisk:
        """Saves a volume whose sandbox has just ended: the platform needs some seconds to let go of it.

        Raises:
            SandboxError: UNAVAILABLE.
        """

        async def snapshot() -> StoredDisk:
            # A repetition first asks whether the one before was done after all.
            made = await self._snapshots.get(slug) or await self._volumes.snapshot(
                volume, slug=slug
            )
            return parse_disk(made, allocated="allocated_size")

        return await self._repeated(f"cannot snapshot volume {volume}", snapshot, attempts=8)

    async def delete_volume(self, slug: str) -> bool:
        """Deletes a volume and returns whether it is gone: one that is mounted, or that snapshots were made from, stays."""
        return await self._deleted(
            f"cannot delete volume {slug}", lambda: self._volumes.delete(slug)
        )

    async def delete_snapshot(self, slug: str) -> bool:
        """Deletes a snapshot and returns whether it is gone: one that volumes were made from stays."""
        return await self._deleted(
            f"cannot delete snapshot {slug}", lambda: self._snapshots.delete(slug)
        )

    async def _deleted(self, doing: str, delete: Callable[[], Awaitable[None]]) -> bool:
        async def attempt() -> bool:
            try:
                await delete()
            except HTTPStatusError as exc:
                if exc.status_code not in {_CONFLICT, _GONE}:
                    raise
                return exc.status_code == _GONE
            return True

        return await self._repeated(doing, attempt)

    async def _pages(
        self, path: str, params: dict[str, Any], parse: Callable[[dict[str, Any]], _T]
    ) -> list[_T]:
        found: list[_T] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            ask = partial(self._page, path, cursor, params, parse)
            items, cursor = await self._repeated(f"cannot list {path}", ask)
            found += items
            if cursor is None:
                return found
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"{path} has more than {_MAX_PAGES} pages")

    async def _page(
        self,
        path: str,
        cursor: str | None,
        params: dict[str, Any],
        parse: Callable[[dict[str, Any]], _T],
    ) -> tuple[list[_T], str | None]:
        page: AsyncPaginatedList[Any] = await self._client.get_paginated(
            path, cursor, params or None
        )
        return [parse(item) for item in page.items], parse_cursor(page.next_cursor)

    async def _repeated(
        self,
        doing: str,
        ask: Callable[[], Awaitable[_T]],
        *,
        otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE,
        attempts: int = _ATTEMPTS,
    ) -> _T:
        """Repeats a request while its error says that this may help."""

        async def once() -> _T:
            async with map_errors(doing, otherwise=otherwise):
                return await ask()

        return await repeat(
            once, attempts=attempts, first_wait_s=self._wait_s, max_wait_s=_MAX_WAIT_S
        )

    async def _until(self, holds: Callable[[], Awaitable[bool]], *, timeout_s: float) -> bool:
        poll_s = _FIRST_POLL_S
        try:
            async with asyncio.timeout(timeout_s):
                while not await holds():
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, _MAX_POLL_S)
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def open_client(settings: DenoSettings) -> AsyncIterator[DenoClient]:
    """Opens a client; sends nothing yet."""
    base = httpx.URL(settings.sandbox_url)
    # As the SDK reads them from the environment, which only the service's own settings may do here.
    options = InternalOptions(
        sandbox_ws_url=base.copy_with(scheme=base.scheme.replace("http", "ws")),
        sandbox_url=base,
        console_url=httpx.URL(settings.console_url),
        token=settings.token,
        regions=[settings.region],
        sandbox_base_domain=None,
    )
    client = AsyncConsoleClient(options)
    try:
        yield DenoClient(client, settings)
    finally:
        await client.close()

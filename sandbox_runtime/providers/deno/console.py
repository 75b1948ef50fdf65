"""Deno's control plane as sandboxes need it, over the SDK: typed, bounded, repeated where that is safe, errors mapped."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

import httpx
from deno_sandbox import HTTPStatusError
from deno_sandbox.console import AsyncConsoleClient, AsyncPaginatedList
from deno_sandbox.options import InternalOptions
from deno_sandbox.sandbox import AsyncSandbox
from deno_sandbox.snapshots import AsyncSnapshots
from deno_sandbox.volumes import AsyncVolumes
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.deno.errors import asking
from sandbox_runtime.providers.deno.forms import (
    ListedSandbox,
    StoredDisk,
    parse_cursor,
    parse_disk,
    parse_sandbox,
)
from sandbox_runtime.providers.deno.settings import DenoSettings

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


class Console:
    """One connection pool. Open it with `open_console`."""

    def __init__(self, client: AsyncConsoleClient, settings: DenoSettings) -> None:
        self._client = client
        self._volumes = AsyncVolumes(client)
        self._snapshots = AsyncSnapshots(client)
        self._region = settings.region
        self._wait_s = settings.retry_wait_s

    async def list_sandboxes(self) -> Sequence[ListedSandbox]:
        """All of the organisation: the SDK cannot filter by labels (0.16.0: it sends the `repr` of the dictionary)."""
        return await self._pages("/api/v3/sandboxes", {}, parse_sandbox)

    async def count_running(self) -> int:
        return sum(sandbox.running for sandbox in await self.list_sandboxes())

    async def end_sandbox(self, sandbox_id: str) -> None:
        """Returns when it does not run any more. An unknown one is fine.

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
        """Ask that it lives so long from now; until when it really does."""
        return await self._repeated(
            f"cannot extend sandbox {sandbox_id}",
            lambda: self._handle(sandbox_id).extend_timeout(cast("int", lifetime_s)),
        )

    async def expose_ssh(self, sandbox_id: str) -> str:
        """Address by which a person gets in; its user name is the credential: `user@host -p port`."""
        found = await self._repeated(
            f"cannot open sandbox {sandbox_id} to SSH",
            lambda: self._handle(sandbox_id).expose_ssh(),
        )
        return f"{found['username']}@{found['hostname']} -p {found['port']}"

    def _handle(self, sandbox_id: str) -> AsyncSandbox:
        """The SDK's, without its connection: only for requests to the control plane."""
        return AsyncSandbox(self._client, cast("Any", None), sandbox_id)

    async def volumes(self) -> Sequence[StoredDisk]:
        parse = partial(parse_disk, allocated="estimated_allocated_size")
        return await self._pages("/api/v2/volumes", {"limit": _PAGE}, parse)

    async def snapshots(self) -> Sequence[StoredDisk]:
        parse = partial(parse_disk, allocated="allocated_size")
        return await self._pages("/api/v2/snapshots", {"limit": _PAGE}, parse)

    async def create_volume(self, slug: str, *, size_bytes: int, source: str | None) -> None:
        """From a snapshot, or empty. When nobody knows whether a request was done, the slug tells.

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
        """Of a volume whose sandbox has just ended: the platform needs some seconds to let go of it.

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
        """Whether it is gone: one that is mounted, or that snapshots were made from, stays."""
        return await self._deleted(
            f"cannot delete volume {slug}", lambda: self._volumes.delete(slug)
        )

    async def delete_snapshot(self, slug: str) -> bool:
        """Whether it is gone: one that volumes were made from stays."""
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
        """Ask again while the error says that this may help."""
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=wait_exponential(multiplier=self._wait_s, max=_MAX_WAIT_S)
            + wait_random(0, self._wait_s),
            retry=retry_if_exception(lambda exc: isinstance(exc, SandboxError) and exc.retryable),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                async with asking(doing, otherwise=otherwise):
                    return await ask()
        raise AssertionError("tenacity ends with a result or an error")

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
async def open_console(settings: DenoSettings) -> AsyncIterator[Console]:
    """No request yet."""
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
        yield Console(client, settings)
    finally:
        await client.close()

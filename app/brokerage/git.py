"""Leads git's smart HTTP protocol to the one repository of a run: the sandbox has no network, and the token stays outside.

Source: gitprotocol-http(5), gitprotocol-pack(5), git 2.39.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.requests import ClientDisconnect

from app.brokerage.admission import CLIENT_GONE, Admission, Kind, LiveGrant, note_effect
from app.brokerage.bodies import read_body
from app.brokerage.git_lines import (
    MAX_COMMAND_BYTES,
    CommandError,
    PushCommands,
    find_refusal,
    read_commands,
    render_refusal,
)
from app.brokerage.git_remotes import GitRemotes, slug_of
from app.brokerage.requests import Refused, find_odd_header, forbidden
from app.brokerage.streaming import PassedThrough, StreamCutError
from app.brokerage.tokens import read_git_token
from app.log import get_logger
from app.runs.broker_ports import RepositoryGrant

TIMEOUT = httpx.Timeout(connect=10.0, read=120.0, write=60.0, pool=10.0)
"""A server may count objects for a while; the run's own deadline is the real bound."""
MAX_PASSAGE_S = 900.0
"""Of one request, both ways."""
MAX_SILENCE_S = 120.0
"""Between two pieces of it; as long as a server is waited for."""
MAX_NEGOTIATION_BYTES = 16 * 1024 * 1024
"""Of what a fetch says that it wants and has."""
SERVICES = ("git-upload-pack", "git-receive-pack")
REACHED = 400
"""The lowest status of an error."""
FORWARDED = ("content-type", "content-encoding", "accept", "git-protocol")
_ANSWERED = ("content-type", "cache-control", "content-encoding")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a request's path says."""

    slug: str
    """Of the repository: its URL without the scheme."""
    service: str
    is_discovery: bool


class GitBroker:
    """Only the run's own repository is reached, and only the branch of its thread is written."""

    def __init__(
        self,
        *,
        admission: Admission,
        remotes: GitRemotes,
        http: httpx.AsyncClient,
        max_bytes: int,
    ) -> None:
        """`max_bytes`: of one answer, and of one push."""
        self._admission = admission
        self._remotes = remotes
        self._http = http
        self._max_bytes = max_bytes

    def router(self) -> APIRouter:
        """Routes below `/broker`."""
        router = APIRouter(prefix="/broker/git")
        router.add_api_route(
            "/{path:path}", self._pass, methods=["GET", "POST"], response_model=None
        )
        return router

    async def _pass(self, path: str, request: Request) -> Response:
        try:
            async with AsyncExitStack() as held:
                return await self._answer(path, request, held)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)  # git was killed; nobody reads this

    async def _answer(self, path: str, request: Request, held: AsyncExitStack) -> Response:
        live = self._admission.admit(request, held, Kind.GIT, read=read_git_token)
        if isinstance(live, Response):
            return live
        asked = _read_path(request, path)
        if isinstance(asked, Refused):
            return self._refuse(asked, live)
        refused = find_odd_header(_passing(request)) or await self._find_refusal(
            asked, live.grant.repository
        )
        if refused is not None:
            return self._refuse(refused, live)
        if asked.service == "git-receive-pack" and not asked.is_discovery:
            return await self._push(request, live, asked, held=held)
        return await self._fetch(request, live, asked, held=held)

    async def _fetch(
        self, request: Request, live: LiveGrant, asked: _Asked, *, held: AsyncExitStack
    ) -> Response:
        """Its second request; or the first one of either kind, which changes nothing."""
        content: bytes | None = None
        if not asked.is_discovery:
            wanted = await read_body(request, live, held, max_bytes=MAX_NEGOTIATION_BYTES)
            if isinstance(wanted, Refused):
                return self._refuse(wanted, live)
            content = wanted
        return await self._forward(request, live, asked, content=content, held=held)

    async def _find_refusal(
        self, asked: _Asked, repository: RepositoryGrant | None
    ) -> Refused | None:
        if repository is None:
            return forbidden("this run has no repository")
        if asked.slug.casefold() != slug_of(repository.url).casefold():
            return forbidden(f"this run works in {slug_of(repository.url)} alone")
        problem = await self._remotes.find_problem(repository.url)
        return forbidden(problem) if problem else None

    async def _push(
        self, request: Request, live: LiveGrant, asked: _Asked, *, held: AsyncExitStack
    ) -> Response:
        if request.headers.get("content-encoding", "identity") != "identity":
            return self._refuse(forbidden("a push comes as it is, not compressed"), live)
        body = self._bounded(request.stream())
        begun = bytearray()
        commands = await _read_beginning(body, begun)
        if isinstance(commands, Refused):
            return self._refuse(commands, live)
        reason = find_refusal(commands, _granted(live).branch)
        if not reason and commands.commands:
            reason = await self._note_effect(live)
        if reason:
            self._refuse(forbidden(reason), live)
            with suppress(_TooMuchError):
                async for _ in body:  # git reads no answer before it has told all
                    pass
            return Response(
                render_refusal(commands, reason),
                media_type="application/x-git-receive-pack-result",
            )
        content = _whole(bytes(begun), body)
        return await self._forward(request, live, asked, content=content, held=held)

    async def _note_effect(self, live: LiveGrant) -> str:
        """Why nothing may be changed; empty = it is in the run's record that something may be."""
        if not self._admission.is_live(live):  # what a push changes may come long after its token
            return "the run is over"
        if not await note_effect(live):
            return "the run's record cannot be written, so nothing may be changed"
        return ""

    async def _forward(
        self,
        request: Request,
        live: LiveGrant,
        asked: _Asked,
        *,
        content: bytes | AsyncIterator[bytes] | None,
        held: AsyncExitStack,
    ) -> Response:
        url = _granted(live).url
        way = f"info/refs?service={asked.service}" if asked.is_discovery else asked.service
        outgoing = self._http.build_request(
            request.method,
            f"{url.rstrip('/')}/{way}",
            content=content,
            headers=_passing(request)
            | {"accept-encoding": "identity"}
            | dict(self._remotes.headers_for(url)),
            timeout=TIMEOUT,
        )
        try:
            answer = await self._http.send(outgoing, stream=True)
        except (httpx.HTTPError, _TooMuchError) as exc:
            message = f"{slug_of(url)} could not be reached: {type(exc).__name__}"
            return self._refuse(Refused(status=502, kind="api_error", message=message), live)
        _log.info(
            "broker.forwarded",
            run_id=live.grant.run_id,
            server=urlsplit(url).hostname,
            service=asked.service,
            status=answer.status_code,
        )
        held.push_async_callback(answer.aclose)
        if not answer.is_success:
            return self._refuse(_told(answer, slug_of(url)), live)
        headers = {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}
        return PassedThrough(
            self._back(answer),
            status_code=answer.status_code,
            headers=headers,
            held=held.pop_all(),
        )

    async def _back(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._bounded(answer.aiter_raw()):
                yield chunk
        except (httpx.HTTPError, _TooMuchError) as exc:
            raise StreamCutError from exc

    async def _bounded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        passed, until_s = 0, time.monotonic() + MAX_PASSAGE_S
        while True:
            rest_s = until_s - time.monotonic()
            try:
                async with asyncio.timeout(min(rest_s, MAX_SILENCE_S)):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError as exc:
                raise _TooMuchError from exc
            passed += len(chunk)
            if passed > self._max_bytes or rest_s < 0:
                raise _TooMuchError
            yield chunk

    def _refuse(self, refused: Refused, live: LiveGrant) -> Response:
        """As plain text, which git shows to whoever called it (of answers to `info/refs`)."""
        self._admission.refuse(refused, live)
        return PlainTextResponse(f"Orion: {refused.message}\n", status_code=refused.status)


class _TooMuchError(Exception):
    """More bytes or seconds than one request may take."""


def _granted(live: LiveGrant) -> RepositoryGrant:
    """Of a request that was admitted."""
    assert live.grant.repository is not None  # noqa: S101 - otherwise it was refused
    return live.grant.repository


_NO_WAY = Refused(status=404, kind="not_found_error", message="no such way of git's")


async def _read_beginning(body: AsyncIterator[bytes], begun: bytearray) -> PushCommands | Refused:
    """What a push will change; `begun` is given all that was read for it."""
    try:
        async for chunk in body:
            begun += chunk
            commands = read_commands(bytes(begun[:MAX_COMMAND_BYTES]))
            if commands is not None:
                return commands
            if len(begun) >= MAX_COMMAND_BYTES:
                break
    except CommandError as exc:
        return forbidden(str(exc))
    except _TooMuchError:
        message = "the push did not say in time what it changes"
        return Refused(status=408, kind="timeout_error", message=message)
    return forbidden("a push must say first what it changes")


async def _whole(begun: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begun
    async for chunk in rest:
        yield chunk


def _passing(request: Request) -> dict[str, str]:
    return {name: request.headers[name] for name in FORWARDED if name in request.headers}


def _read_path(request: Request, path: str) -> _Asked | Refused:
    if request.method == "GET":
        service = request.query_params.get("service", "")
        slug, found, _ = path.partition("/info/refs")
        if not found or service not in SERVICES or path != f"{slug}/info/refs":
            return _NO_WAY
        return _Asked(slug=slug_of(slug), service=service, is_discovery=True)
    slug, _, service = path.rpartition("/")
    if service not in SERVICES:
        return _NO_WAY
    return _Asked(slug=slug_of(slug), service=service, is_discovery=False)


def _told(answer: httpx.Response, slug: str) -> Refused:
    """An error of the server's, so that git does not ask a person for a password."""
    status = answer.status_code
    if status in (401, 403):
        return forbidden(f"{slug} does not let Orion in (HTTP {status})")
    if status == 404:  # noqa: PLR2004 - HTTP's own
        return Refused(status=404, kind="not_found_error", message=f"{slug} does not exist")
    if status < REACHED:
        moved = f"{slug} has moved elsewhere (HTTP {status}), where Orion does not follow"
        return Refused(status=404, kind="not_found_error", message=moved)
    return Refused(status=502, kind="api_error", message=f"{slug} answered HTTP {status}")

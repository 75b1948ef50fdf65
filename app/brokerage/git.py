"""Git's smart HTTP protocol, forwarded to the one repository of a run: the sandbox has no network, and the token stays outside.

Sources: gitprotocol-http(5); gitprotocol-pack(5), "Reference Update Request and Packfile Transfer" and "Report Status";
gitprotocol-common(5), pkt-line; git 2.39.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from app.brokerage.credentials import CredentialError, GitCredentials
from app.brokerage.http import (
    ProxyResponse,
    Refusal,
    StreamCutError,
    answer_while_connected,
    find_header_refusal,
    forbidden,
    read_body,
)
from app.brokerage.registry import (
    GrantRegistry,
    LiveGrant,
    RequestKind,
    let_do,
    read_git_token,
)
from app.runs.broker import NotApprovedError, RepositoryGrant, push_deed, slug_of

MAX_COMMAND_BYTES = 64 * 1024
"""For all commands of a push. Orion's own pushes have one; a push by hand may have hundreds."""
_LENGTH_CHARS = 4
_MIN_LINE = 4
_NO_ID = re.compile(rb"0{40}(?:0{24})?")
_COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) ([^\0\n ]+)\n?")
_SHALLOW = re.compile(rb"shallow [0-9a-f]{40,64}\n?")
TIMEOUT = httpx.Timeout(connect=10.0, read=120.0, write=60.0, pool=10.0)
"""A server may count objects for a while; the run's own deadline is the real bound."""
MAX_NEGOTIATION_BYTES = 16 * 1024 * 1024
"""For the lists of what a fetch wants and has."""
SERVICES = ("git-upload-pack", "git-receive-pack")
REACHED = 400
"""The lowest status of an error."""
FORWARDED = ("content-type", "content-encoding", "accept", "git-protocol")
_ANSWERED = ("content-type", "cache-control", "content-encoding")


class CommandError(ValueError):
    """A push whose commands cannot be parsed or are not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCommand:
    ref: str
    commit: str
    """Its id, in hexadecimal."""
    is_delete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCommands:
    """All commands of a push; none in the request by which git probes the connection."""

    commands: tuple[PushCommand, ...]
    capabilities: frozenset[str]


def read_commands(body: bytes) -> PushCommands | None:
    """Parses the commands at the beginning of a push; None while they are not complete.

    Raises:
        CommandError: these are no commands that Orion lets pass.
    """
    found: list[PushCommand] = []
    capabilities: frozenset[str] = frozenset()
    at = 0
    while True:
        if len(body) < at + _LENGTH_CHARS:
            return None
        try:
            length = int(body[at : at + _LENGTH_CHARS], 16)
        except ValueError:
            raise CommandError("a push begins with lines of git's own form") from None
        if length == 0:
            return PushCommands(commands=tuple(found), capabilities=capabilities)
        if length <= _MIN_LINE:
            raise CommandError("a push begins with lines of git's own form")
        if len(body) < at + length:
            return None
        line = body[at + _LENGTH_CHARS : at + length]
        if not _SHALLOW.fullmatch(line):
            if not found:  # servers read them behind any command; a second one with some is refused
                line, _, said = line.partition(b"\0")
                capabilities = _read_capabilities(said)
            found.append(_read_command(line))
        at += length


def _read_capabilities(said: bytes) -> frozenset[str]:
    """Returns the names alone: to git, `push-options=x` is `push-options`. Raises: CommandError: there is a NUL, where git ends them and others may not."""
    if b"\0" in said:
        raise CommandError("a push says what it can do in one piece")
    return frozenset(one.partition("=")[0] for one in said.decode("utf-8", "replace").split())


def _read_command(line: bytes) -> PushCommand:
    command = _COMMAND.fullmatch(line)
    if command is None:
        raise CommandError("only plain updates may be pushed, without certificates")
    return PushCommand(
        ref=command[3].decode("utf-8", "replace"),
        commit=command[2].decode(),
        is_delete=bool(_NO_ID.fullmatch(command[2])),
    )


def check_push(commands: PushCommands, branch: str) -> str:
    """Returns why a push is refused; empty when it may pass.

    `branch`: the only branch that may be created and updated; empty when there is none.
    """
    for command in commands.commands:
        if not branch:
            return "nothing may be pushed yet"
        if command.ref != f"refs/heads/{branch}":
            return f"only the branch {branch} may be pushed from here"
        if command.is_delete:
            return "nothing may be deleted from here"
    return "" if "push-options" not in commands.capabilities else "push options may not be sent"


def render_refusal(commands: PushCommands, reason: str) -> bytes:
    """Renders the report by which a server refuses each command: git shows `! [remote rejected] … (reason)`."""
    lines = [b"unpack ok\n"]
    lines += [f"ng {command.ref} {reason}\n".encode() for command in commands.commands]
    report = b"".join(map(_line, lines)) + b"0000"
    is_banded = bool({"side-band-64k", "side-band"} & commands.capabilities)
    return _line(b"\x01" + report) + b"0000" if is_banded else report


def _line(data: bytes) -> bytes:
    return f"{len(data) + _LENGTH_CHARS:04x}".encode() + data


@dataclass(frozen=True, slots=True, kw_only=True)
class GitTimings:
    """Time limits for one git request."""

    max_passage_s: float = 900.0
    """For request and answer together."""
    max_silence_s: float = 120.0
    """Between two chunks; as long as the broker waits for a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GitRequest:
    """A git request, as its path describes it."""

    slug: str
    """The repository's URL without the scheme."""
    service: str
    is_discovery: bool


_TIMINGS = GitTimings()


class GitBroker:
    """A proxy for git over HTTP. Only the run's own repository is reached, and only the branch of its thread is written."""

    def __init__(
        self,
        *,
        registry: GrantRegistry,
        credentials: GitCredentials,
        http: httpx.AsyncClient,
        max_bytes: int,
        timings: GitTimings = _TIMINGS,
    ) -> None:
        """`max_bytes`: the limit of one answer, and of one push."""
        self._timings = timings
        self._registry = registry
        self._credentials = credentials
        self._http = http
        self._max_bytes = max_bytes

    def router(self) -> APIRouter:
        """Returns the routes below `/broker`."""
        router = APIRouter(prefix="/broker/git")
        router.add_api_route(
            "/{path:path}", self._pass, methods=["GET", "POST"], response_model=None
        )
        return router

    async def _pass(self, path: str, request: Request) -> Response:
        return await answer_while_connected(partial(self._answer, path, request))

    async def _answer(self, path: str, request: Request, held: AsyncExitStack) -> Response:
        live = await self._registry.admit(request, held, RequestKind.GIT, read=read_git_token)
        if isinstance(live, Response):
            return live
        git_request = _read_path(request, path)
        if isinstance(git_request, Refusal):
            return self._refuse(git_request, live)
        refused = find_header_refusal(_forwarded_headers(request)) or await self._check_repository(
            git_request, live.grant.repository
        )
        if refused is not None:
            return self._refuse(refused, live)
        if git_request.service == "git-receive-pack" and not git_request.is_discovery:
            return await self._push(request, live, git_request, held=held)
        return await self._fetch(request, live, git_request, held=held)

    async def _fetch(
        self, request: Request, live: LiveGrant, git_request: _GitRequest, *, held: AsyncExitStack
    ) -> Response:
        """Forwards a fetch, or the discovery request of a fetch or push, which changes nothing."""
        content: bytes | None = None
        if not git_request.is_discovery:
            wanted = await read_body(request, live.bodies, held, max_bytes=MAX_NEGOTIATION_BYTES)
            if isinstance(wanted, Refusal):
                return self._refuse(wanted, live)
            content = wanted
        return await self._forward(request, live, git_request, content=content, held=held)

    async def _check_repository(
        self, git_request: _GitRequest, repository: RepositoryGrant | None
    ) -> Refusal | None:
        if repository is None:
            return forbidden("this run has no repository")
        if git_request.slug.casefold() != slug_of(repository.url).casefold():
            return forbidden(f"this run works in {slug_of(repository.url)} alone")
        problem = await self._credentials.remotes.check_server(repository.url)
        return forbidden(problem) if problem else None

    async def _push(
        self, request: Request, live: LiveGrant, git_request: _GitRequest, *, held: AsyncExitStack
    ) -> Response:
        if request.headers.get("content-encoding", "identity") != "identity":
            return self._refuse(forbidden("a push comes as it is, not compressed"), live)
        body = self._bounded(request.stream())
        begun = bytearray()
        commands = await _read_push_commands(body, begun)
        if isinstance(commands, Refusal):
            return self._refuse(commands, live)
        reason = check_push(commands, _granted(live).branch)
        if not reason and commands.commands:
            reason = await self._let_push(live, commands)
        if reason:
            self._refuse(forbidden(reason), live)
            with suppress(_LimitExceededError):
                async for _ in body:  # git reads no answer before it has told all
                    pass
            return Response(
                render_refusal(commands, reason),
                media_type="application/x-git-receive-pack-result",
            )
        content = _join(bytes(begun), body)
        return await self._forward(request, live, git_request, content=content, held=held)

    async def _let_push(self, live: LiveGrant, commands: PushCommands) -> str:
        """Sees that the run may change this; returns why it may not, or an empty string."""
        if not self._registry.is_live(live):  # what a push changes may come long after its token
            return "the run is over"
        try:
            await let_do(
                live, push_deed(_granted(live), ",".join(one.commit for one in commands.commands))
            )
        except NotApprovedError as exc:
            return str(exc)
        return ""

    async def _forward(
        self,
        request: Request,
        live: LiveGrant,
        git_request: _GitRequest,
        *,
        content: bytes | AsyncIterator[bytes] | None,
        held: AsyncExitStack,
    ) -> Response:
        url = _granted(live).url
        way = (
            f"info/refs?service={git_request.service}"
            if git_request.is_discovery
            else git_request.service
        )
        owner = _granted(live).acting_for
        try:
            credentials = await self._credentials.headers_for(url, owner)
        except CredentialError as exc:
            return self._refuse(forbidden(str(exc)), live)
        outgoing = self._http.build_request(
            request.method,
            f"{url.rstrip('/')}/{way}",
            content=content,
            headers=_forwarded_headers(request)
            | {"accept-encoding": "identity"}
            | dict(credentials),
            timeout=TIMEOUT,
        )
        try:
            answer = await self._http.send(outgoing, stream=True)
        except (httpx.HTTPError, _LimitExceededError) as exc:
            message = f"{slug_of(url)} could not be reached: {type(exc).__name__}"
            return self._refuse(Refusal(status=502, kind="api_error", message=message), live)
        live.log_forward(
            server=urlsplit(url).hostname or "",
            service=git_request.service,
            status=answer.status_code,
        )
        held.push_async_callback(answer.aclose)
        if not answer.is_success:
            who = "Orion" if owner is None else "you, with your GitHub account,"
            return self._refuse(_find_error_refusal(answer, slug_of(url), who), live)
        headers = {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}
        return ProxyResponse(
            self._stream_back(answer),
            status_code=answer.status_code,
            headers=headers,
            held=held.pop_all(),
        )

    async def _stream_back(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._bounded(answer.aiter_raw()):
                yield chunk
        except (httpx.HTTPError, _LimitExceededError) as exc:
            raise StreamCutError from exc

    async def _bounded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        passed, until_s = 0, time.monotonic() + self._timings.max_passage_s
        while True:
            rest_s = until_s - time.monotonic()
            try:
                async with asyncio.timeout(min(rest_s, self._timings.max_silence_s)):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError as exc:
                raise _LimitExceededError from exc
            passed += len(chunk)
            if passed > self._max_bytes or rest_s < 0:
                raise _LimitExceededError
            yield chunk

    def _refuse(self, refused: Refusal, live: LiveGrant) -> Response:
        """Renders a refusal as plain text, which git shows to its caller (for answers to `info/refs`)."""
        self._registry.refuse(refused, live)
        return PlainTextResponse(f"Orion: {refused.message}\n", status_code=refused.status)


class _LimitExceededError(Exception):
    """A request took more bytes or seconds than one may."""


def _granted(live: LiveGrant) -> RepositoryGrant:
    """Returns the repository of an admitted request's grant."""
    assert live.grant.repository is not None  # noqa: S101 - otherwise it was refused
    return live.grant.repository


_UNKNOWN_PATH = Refusal(status=404, kind="not_found_error", message="no such way of git's")


async def _read_push_commands(
    body: AsyncIterator[bytes], begun: bytearray
) -> PushCommands | Refusal:
    """Reads the commands of a push from its body; `begun` collects all bytes that were read."""
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
    except _LimitExceededError:
        message = "the push did not say in time what it changes"
        return Refusal(status=408, kind="timeout_error", message=message)
    return forbidden("a push must say first what it changes")


async def _join(begun: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begun
    async for chunk in rest:
        yield chunk


def _forwarded_headers(request: Request) -> dict[str, str]:
    return {name: request.headers[name] for name in FORWARDED if name in request.headers}


def _read_path(request: Request, path: str) -> _GitRequest | Refusal:
    if request.method == "GET":
        service = request.query_params.get("service", "")
        slug, found, _ = path.partition("/info/refs")
        if not found or service not in SERVICES or path != f"{slug}/info/refs":
            return _UNKNOWN_PATH
        return _GitRequest(slug=slug_of(slug), service=service, is_discovery=True)
    slug, _, service = path.rpartition("/")
    if service not in SERVICES:
        return _UNKNOWN_PATH
    return _GitRequest(slug=slug_of(slug), service=service, is_discovery=False)


def _find_error_refusal(answer: httpx.Response, slug: str, who: str) -> Refusal:
    """Translates an error of the server, so that git does not ask a person for a password."""
    status = answer.status_code
    if status in (401, 403):
        return forbidden(f"{slug} does not let {who} in (HTTP {status})")
    if status == 404:  # noqa: PLR2004 - HTTP's own
        return Refusal(status=404, kind="not_found_error", message=f"{slug} does not exist")
    if status < REACHED:
        moved = f"{slug} has moved elsewhere (HTTP {status}), where Orion does not follow"
        return Refusal(status=404, kind="not_found_error", message=moved)
    return Refusal(status=502, kind="api_error", message=f"{slug} answered HTTP {status}")

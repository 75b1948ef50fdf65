"""The operators' page: what is served at `/ops`, to whom. It only reads."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from app.audit.records import Act, AuditQuery
from app.errors import ErrorCode
from app.log import get_logger
from app.operators.desk import MAX_DAYS, SHOWN_RUNS, Desk
from app.operators.door import STAYS, Door
from app.operators.records import By
from app.runs.model import RunState
from app.runs.request import RunId
from app.store.runs import RunQuery
from app.web.assets import PAGE_HEADERS, file_response, page_response
from app.web.routes import bears, read_body

STATIC: Final = Path(__file__).parent / "static"
COOKIE: Final = "orion_ops"
VIEWS: Final = ("", "runs", "money", "errors", "processes", "audit")
READ_TIMEOUT_S: Final = 10.0
POLL_S: Final = 2.0
"""Between looks whether anything has changed, of one open page."""
STREAM_S: Final = 600.0
"""After which a browser opens its stream anew."""
MAX_STREAMS: Final = 20
"""Of one process; whoever comes later asks every now and then instead."""

_log = get_logger(__name__)
Endpoint = Callable[[Request], Awaitable[Response]]


class Verdict(StrEnum):
    """Whether a deed was allowed, as `verdict` says it in a query of the audit log."""

    ALLOWED = "allowed"
    REFUSED = "refused"


class _BadQueryError(ValueError):
    """Something behind the question mark is none of what may stand there."""


_RUN_PAGE: Final = re.compile(r"/ops/runs/[\w-]{1,64}", re.ASCII)
"""To which links below answers lead; whoever logs in there is shown it."""


class _Pages:
    def __init__(self, desk: Desk, door: Door, token: str) -> None:
        self._desk = desk
        self._door = door
        self._token = token
        self._streams = 0

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """Lets only operators in, and bounds how long they wait."""

        async def answer(request: Request) -> Response:
            if not self._is_known(request):
                return JSONResponse({"error": "needs the ops token"}, HTTPStatus.UNAUTHORIZED)
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    return await endpoint(request)
            except _BadQueryError as exc:
                return JSONResponse({"error": str(exc)}, HTTPStatus.BAD_REQUEST)
            except (TimeoutError, OSError) as exc:
                _log.warning("ops.unread", path=request.url.path, error=type(exc).__name__)
                return JSONResponse(
                    {"error": "the database does not answer"}, HTTPStatus.SERVICE_UNAVAILABLE
                )

        return answer

    def _is_known(self, request: Request) -> bool:
        return self._door.knows(request.cookies.get(COOKIE, "")) or bears(request, self._token)

    async def page(self, request: Request) -> Response:
        if not self._is_known(request):
            return page_response(STATIC / "login.html", HTTPStatus.UNAUTHORIZED)
        is_one = request.path_params.get("rest", "") in VIEWS or "run_id" in request.path_params
        return page_response(STATIC / "ops.html", HTTPStatus.OK if is_one else HTTPStatus.NOT_FOUND)

    async def log_in(self, request: Request) -> Response:
        body = await read_body(request)
        if isinstance(body, Response):
            return body
        said = parse_qs(body.decode(errors="replace")).get("token", [""])[0]
        if _is_foreign(request) or not self._door.opens_to(said.strip()):
            address = request.client.host if request.client else ""
            _log.warning("ops.refused", path=request.url.path, address=address)
            return _refused_page()
        shown = urlsplit(request.headers.get("referer", "")).path
        is_run = _RUN_PAGE.fullmatch(shown) is not None
        response = RedirectResponse(shown if is_run else "/ops", HTTPStatus.SEE_OTHER)
        is_https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
        response.set_cookie(
            COOKIE,
            self._door.cookie(),
            max_age=int(STAYS.total_seconds()),
            path="/ops",
            secure=is_https,
            httponly=True,
            samesite="lax",  # a link in Slack leads here
        )
        return response

    async def log_out(self, request: Request) -> Response:
        if _is_foreign(request):
            return JSONResponse({"error": "from another origin"}, HTTPStatus.FORBIDDEN)
        response = RedirectResponse("/ops", HTTPStatus.SEE_OTHER)
        response.delete_cookie(COOKIE, path="/ops")
        return response

    async def now(self, _request: Request) -> Response:
        return JSONResponse(await self._desk.now())

    async def runs(self, request: Request) -> Response:
        said = request.query_params
        query = RunQuery(
            state=_one_of(RunState, said.get("state", "")),
            code=_one_of(ErrorCode, said.get("code", "")),
            provider=said.get("provider", ""),
            agent=said.get("agent", ""),
            user=said.get("user", ""),
            before=_moment(said.get("before", "")),
            limit=SHOWN_RUNS,
        )
        return JSONResponse(await self._desk.runs(query))

    async def run(self, request: Request) -> Response:
        found = await self._desk.run(RunId(request.path_params["run_id"]))
        if found is None:
            return JSONResponse({"error": "no such run"}, HTTPStatus.NOT_FOUND)
        return JSONResponse(found)

    async def money(self, request: Request) -> Response:
        by = _one_of(By, request.query_params.get("by", "")) or By.DAY
        return JSONResponse(await self._desk.spent(days=_days(request), by=by))

    async def errors(self, request: Request) -> Response:
        return JSONResponse(await self._desk.errors(days=_days(request)))

    async def processes(self, _request: Request) -> Response:
        return JSONResponse(await self._desk.processes())

    async def audit(self, request: Request) -> Response:
        said = request.query_params
        verdict = _one_of(Verdict, said.get("verdict", ""))
        query = AuditQuery(
            act=_one_of(Act, said.get("act", "")),
            user=said.get("user", ""),
            channel=said.get("channel", ""),
            is_allowed=None if verdict is None else verdict is Verdict.ALLOWED,
        )
        return JSONResponse(await self._desk.audit(query))

    async def events(self, request: Request) -> Response:
        if not self._is_known(request):
            return JSONResponse({"error": "needs the ops token"}, HTTPStatus.UNAUTHORIZED)
        if self._streams >= MAX_STREAMS:
            return JSONResponse({"error": "too many"}, HTTPStatus.SERVICE_UNAVAILABLE)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._changes(), media_type="text/event-stream", headers=headers)

    async def _changes(self) -> AsyncIterator[str]:
        """Tells that something has changed; what it is the page asks for. Source: HTML Living Standard, "Server-sent events"."""
        self._streams += 1
        known = ""
        try:
            async with asyncio.timeout(STREAM_S):
                while True:
                    version = await self._desk.version()
                    changed = json.dumps({"version": version})
                    yield ": alive\n\n" if version == known else f"data: {changed}\n\n"
                    known = version
                    await asyncio.sleep(POLL_S)
        except (TimeoutError, OSError):
            return  # the browser comes again
        finally:
            self._streams -= 1


def create_pages(desk: Desk, door: Door, *, token: str) -> Sequence[Route]:
    """Returns the routes below `/ops`. `token`: `ORION_OPS_TOKEN`, which programs may say in a header instead of the cookie."""
    pages = _Pages(desk, door, token)

    async def asset(request: Request) -> Response:
        return file_response(request.path_params["name"], STATIC)

    data = {
        "now": pages.now,
        "runs": pages.runs,
        "runs/{run_id}": pages.run,
        "money": pages.money,
        "errors": pages.errors,
        "processes": pages.processes,
        "audit": pages.audit,
    }
    return [
        Route("/ops", pages.page),
        Route("/ops/runs/{run_id}", pages.page),
        Route("/ops/login", pages.log_in, methods=["POST"]),
        Route("/ops/logout", pages.log_out, methods=["POST"]),
        Route("/ops/static/{name}", asset),
        Route("/ops/events", pages.events),
        *(Route(f"/ops/api/{name}", pages.guarded(answer)) for name, answer in data.items()),
        Route("/ops/{rest:path}", pages.page),
    ]


def _refused_page() -> Response:
    problem = "That is not the token, or the form was on another site."
    shown = f'<p class="problem" role="alert">{problem}</p>'
    page = (STATIC / "login.html").read_text("utf-8").replace("<!-- problem -->", shown)
    return HTMLResponse(page, HTTPStatus.FORBIDDEN, headers=PAGE_HEADERS)


def _is_foreign(request: Request) -> bool:
    """Whether a page of another origin sends it."""
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc != request.headers.get("host", "")


def _one_of(kind: Any, said: str) -> Any:  # noqa: ANN401 - any enumeration, and a member of it
    if not said:
        return None
    try:
        return kind(said)
    except ValueError:
        known = ", ".join(kind)
        raise _BadQueryError(f"{said!r} is none of: {known}") from None


def _moment(said: str) -> datetime | None:
    if not said:
        return None
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        raise _BadQueryError(f"before: {said!r} is no moment") from None
    if at.tzinfo is None:
        raise _BadQueryError(f"before: {said!r} has no zone")
    return at


def _days(request: Request) -> int:
    said = request.query_params.get("days", "7")
    if not (said.isascii() and said.isdecimal() and 1 <= int(said[:4]) <= MAX_DAYS):
        raise _BadQueryError(f"days: {said!r} is not 1 to {MAX_DAYS}")
    return int(said)

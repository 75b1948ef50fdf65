"""Looks at pull requests on GitHub: conditional requests, so that what has not changed costs nothing of the limit.

Source: GitHub REST API, "Best practices for using the REST API", "Pull requests", "Check runs", "Commit statuses", read 2026-11.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from app.accounts.records import Owner
from app.brokerage.credentials import GitCredentials
from app.brokerage.github_api import TIMEOUT_S, api_headers, describe_failure
from app.brokerage.http import trusted
from app.pull_requests.news import (
    Check,
    CheckState,
    PullView,
    Remark,
    RemarkKind,
    addresses,
)
from app.pull_requests.records import PullRequest, PullState
from app.runs.repository.watch import BusyHostError, PullGoneError

MAX_PAGES: Final = 3
"""Of a hundred each: checks, reviews or comments beyond that are not seen."""
MAX_ANNOTATED: Final = 5
"""Checks whose annotations are read."""
MAX_REMEMBERED: Final = 2_000
"""Pages, and pull requests."""
MAX_PAGE_BYTES: Final = 256 * 1024
"""A larger one is read anew each time."""
PAGE_SIZE: Final = 100
REFUSED_S: Final = 3_600.0
SETTLED: Final = timedelta(minutes=1)
"""GitHub tells changes by the second: what changed just now may have changed again."""
MIN_WAIT_S, MAX_WAIT_S = 30.0, 3_600.0
_MAX_SUMMARY_CHARS: Final = 2_000
_GONE: Final = (404, 410, 451)
_GOOD: Final = frozenset({"success", "neutral", "skipped"})
"""Source: GitHub REST API, check runs, `conclusion`, read 2026-11: all others are failures."""
_REVIEWS: Final = {
    "APPROVED": RemarkKind.APPROVAL,
    "CHANGES_REQUESTED": RemarkKind.CHANGES,
    "COMMENTED": RemarkKind.REMARK,
}
"""Source: GitHub REST API, pull request reviews, `state`, read 2026-11; others are not sent yet, or taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    etag: str
    content: Any
    next_url: str
    is_full: bool
    """It is a list to which nothing can be added."""


@dataclass(slots=True, kw_only=True)
class _Reading:
    """One look, by one token."""

    http: httpx.AsyncClient
    generation: str
    """ETags are specific to the token. Source: GitHub, as above."""
    pages: OrderedDict[tuple[str, str], _Page] = field(repr=False)
    refused: dict[tuple[str, str], float]
    """Until when, on the monotonic clock, the token is not asked for lists that it may not read, by their URLs' pattern."""

    async def one(self, url: str) -> Any:  # noqa: ANN401 - GitHub's JSON
        return (await self._page(url)).content

    async def all(self, url: str, key: str = "") -> Sequence[Mapping[str, Any]]:
        """Returns the objects of a list, or of the list of that name, of all its pages; nothing of a list that is not there."""
        found: list[Mapping[str, Any]] = []
        next_url = f"{url}{'&' if '?' in url else '?'}per_page={PAGE_SIZE}"
        for _ in range(MAX_PAGES):
            try:
                page = await self._page(next_url)
            except httpx.HTTPStatusError as exc:
                if exc.response.status_code in _GONE:
                    break
                raise
            content = _of(page.content, key) if key else page.content
            found += [one for one in _list(content) if isinstance(one, dict)]
            next_url = page.next_url
            if not next_url:
                break
        return found

    async def allowed(self, url: str, key: str, kind: str) -> Sequence[Mapping[str, Any]]:
        """Returns as `all`, or nothing where the token may not read that, which is tried once an hour. Source: GitHub: fine-grained tokens cannot be given checks, read 2026-11."""
        place = self.generation, kind
        if self.refused.get(place, 0.0) > time.monotonic():
            return ()
        try:
            return await self.all(url, key)
        except httpx.HTTPStatusError as exc:
            if exc.response.status_code != httpx.codes.FORBIDDEN:
                raise
            self.refused[place] = time.monotonic() + REFUSED_S
            return ()

    async def _page(self, url: str) -> _Page:
        known = self.pages.pop((self.generation, url), None)
        # What follows a full page may be new though the page is not.
        is_conditional = known is not None and known.etag and not known.is_full
        headers = {"if-none-match": known.etag} if known is not None and is_conditional else {}
        answer = await self.http.get(url, headers=headers)
        if known is None or answer.status_code != httpx.codes.NOT_MODIFIED:
            _refuse_busy(answer)
            answer.raise_for_status()
            known = _Page(
                etag=answer.headers.get("etag", ""),
                content=answer.json(),
                next_url=answer.links.get("next", {}).get("url", ""),
                is_full=_is_full(answer.json()),
            )
            if len(answer.content) > MAX_PAGE_BYTES:
                return known
        self.pages[self.generation, url] = known
        if len(self.pages) > MAX_REMEMBERED:
            self.pages.popitem(last=False)
        return known


class GitHubPulls:
    """Implements PullRequestHost."""

    def __init__(
        self,
        *,
        credentials: GitCredentials,
        api_url: str,
        mask: Callable[[str], str],
        called: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`mask` takes secrets out of what is written there; `called`: the name by which comments address Orion, behind an @; `timeout_s`: of each request."""
        self._called = called
        self._credentials = credentials
        self._api_url = api_url.rstrip("/")
        self._mask = mask
        self._timeout_s = timeout_s
        self._pages: OrderedDict[tuple[str, str], _Page] = OrderedDict()
        self._remarks: OrderedDict[str, tuple[str, Sequence[Remark]]] = OrderedDict()
        """By pull requests' ids, with what GitHub says of when they changed."""
        self._refused: dict[tuple[str, str], float] = {}

    async def look(self, pull: PullRequest) -> PullView:
        owner = Owner(team=pull.team, person=pull.acting_for) if pull.acting_for else None
        token = await self._credentials.token_for(pull.name, owner)
        try:
            async with httpx.AsyncClient(
                verify=trusted(),
                headers=api_headers(token),
                timeout=self._timeout_s,
                follow_redirects=True,  # a repository that was renamed
            ) as http:
                reading = _Reading(
                    http=http,
                    generation=hashlib.sha256(token.encode()).hexdigest(),
                    pages=self._pages,
                    refused=self._refused,
                )
                return await self._look(pull, reading)
        except httpx.HTTPStatusError as exc:
            raise ConnectionError(f"GitHub gave HTTP {exc.response.status_code}") from exc
        except (httpx.HTTPError, ValueError) as exc:
            raise ConnectionError(f"GitHub {describe_failure(exc)}") from exc

    async def _look(self, pull: PullRequest, reading: _Reading) -> PullView:
        repository = f"{self._api_url}/repos/{pull.name}"
        try:
            found = await reading.one(f"{repository}/pulls/{pull.number}")
        except httpx.HTTPStatusError as exc:
            if exc.response.status_code in _GONE:
                raise PullGoneError from exc
            raise
        head = _text(_of(found, "head"), "sha")
        if not head:
            raise ValueError("a pull request without a commit")
        state = PullState.OPEN
        if _text(found, "state") != "open":
            state = PullState.MERGED if _of(found, "merged") is True else PullState.CLOSED
        checks: Sequence[Check] = ()
        if state is PullState.OPEN:
            checks = await self._checks(reading, repository, head)
        return PullView(
            state=state,
            head=head,
            # `unknown` until somebody has asked for it. Source: GitHub REST API, "Get a pull request", read 2026-11.
            has_conflict=_text(found, "mergeable_state") == "dirty",
            checks=checks,
            remarks=await self._all_remarks(reading, repository, pull, _text(found, "updated_at")),
        )

    async def _checks(self, reading: _Reading, repository: str, head: str) -> Sequence[Check]:
        commit = f"{repository}/commits/{head}"
        runs = await reading.allowed(
            f"{commit}/check-runs?filter=latest", "check_runs", f"{repository}/check-runs"
        )
        statuses = await reading.allowed(f"{commit}/status", "statuses", f"{repository}/status")
        checks: list[Check] = []
        annotated = 0
        for run in runs:
            check = _check(run)
            if check.state is CheckState.BAD and annotated < MAX_ANNOTATED:
                annotated += 1
                said = await self._annotations(reading, repository, run)
                check = replace(check, summary=f"{check.summary}\n{said}".strip())
            checks.append(check)
        return [self._masked(check) for check in (*checks, *map(_status, statuses))]

    def _masked(self, check: Check) -> Check:
        return replace(
            check,
            name=self._mask(check.name),
            link=self._link(check.link),
            summary=self._mask(check.summary)[:_MAX_SUMMARY_CHARS],
        )

    def _link(self, link: str) -> str:
        """Returns a link; empty where a secret is in it."""
        return link if self._mask(link) == link else ""

    async def _annotations(self, reading: _Reading, repository: str, run: Mapping[str, Any]) -> str:
        """Returns what a check says of single lines, one a line. Source: GitHub REST API, "List check run annotations", read 2026-11."""
        count = _of(_of(run, "output"), "annotations_count")
        if not isinstance(count, int) or not count:
            return ""
        try:
            found = await reading.one(f"{repository}/check-runs/{run.get('id')}/annotations")
        except httpx.HTTPStatusError:
            return ""
        return "\n".join(
            f"{_text(one, 'path')}:{one.get('start_line')}: {_text(one, 'message')}"
            for one in _list(found)
            if isinstance(one, dict)
        )

    async def _all_remarks(
        self, reading: _Reading, repository: str, pull: PullRequest, updated_at: str
    ) -> Sequence[Remark]:
        """Returns reviews and comments; asks for them only where the pull request has changed."""
        known = self._remarks.pop(pull.id, ("", ()))
        if not updated_at or known[0] != updated_at:
            own = f"{repository}/pulls/{pull.number}"
            reviews = await reading.all(f"{own}/reviews")
            lines = await reading.all(f"{own}/comments")
            comments = await reading.all(f"{repository}/issues/{pull.number}/comments")
            known = (updated_at, list(self._read_remarks(reviews, lines, comments)))
        self._remarks[pull.id] = known if _is_settled(updated_at) else ("", known[1])
        if len(self._remarks) > MAX_REMEMBERED:
            self._remarks.popitem(last=False)
        return known[1]

    def _read_remarks(
        self,
        reviews: Sequence[Mapping[str, Any]],
        lines: Sequence[Mapping[str, Any]],
        comments: Sequence[Mapping[str, Any]],
    ) -> Iterator[Remark]:
        of_reviews: dict[Any, list[str]] = {}
        for line in lines:
            place = f"{_text(line, 'path')}:{line.get('line') or line.get('original_line')}"
            text = self._mask(f"{place}: {_text(line, 'body')}")
            of_reviews.setdefault(line.get("pull_request_review_id"), []).append(text)
        for review in reviews:
            kind = _REVIEWS.get(_text(review, "state"))
            said = of_reviews.get(review.get("id"), [])
            is_empty = kind is RemarkKind.REMARK and not (said or _text(review, "body"))
            if kind is not None and not is_empty:
                yield self._remark(review, f"review:{review.get('id')}", kind, said)
        for comment in comments:
            if addresses(_text(comment, "body"), self._called):
                key = f"comment:{comment.get('id')}"
                yield self._remark(comment, key, RemarkKind.COMMENT, ())

    def _remark(
        self, found: Mapping[str, Any], key: str, kind: RemarkKind, lines: Sequence[str]
    ) -> Remark:
        return Remark(
            key=key,
            kind=kind,
            by=_text(_of(found, "user"), "login"),
            text=self._mask(_text(found, "body")),
            lines=tuple(lines),
            link=self._link(_text(found, "html_url")),
        )


def _check(run: Mapping[str, Any]) -> Check:
    conclusion, output = _text(run, "conclusion"), _of(run, "output")
    state = CheckState.GOOD if conclusion in _GOOD else CheckState.BAD
    if _text(run, "status") != "completed":
        state = CheckState.GOING
    said = (_text(output, "title"), _text(output, "summary"))
    return Check(
        name=_text(run, "name"),
        state=state,
        link=_text(run, "html_url"),
        summary="\n".join(filter(None, said)),
    )


def _status(status: Mapping[str, Any]) -> Check:
    states = {"success": CheckState.GOOD, "pending": CheckState.GOING}
    return Check(
        name=_text(status, "context"),
        state=states.get(_text(status, "state"), CheckState.BAD),
        link=_text(status, "target_url"),
        summary=_text(status, "description"),
    )


def _is_settled(updated_at: str) -> bool:
    """Whether what was read after a change has all of it."""
    try:
        return datetime.now(UTC) - datetime.fromisoformat(updated_at) > SETTLED
    except (TypeError, ValueError):
        return False


def _is_full(content: Any) -> bool:  # noqa: ANN401 - GitHub's JSON
    lists = [content, *(content.values() if isinstance(content, dict) else ())]
    return any(isinstance(one, list) and len(one) >= PAGE_SIZE for one in lists)


def _refuse_busy(answer: httpx.Response) -> None:
    """Raises: BusyHostError: GitHub does not want to be asked for a while. Source: GitHub REST API, "Rate limits", read 2026-11."""
    is_out = answer.headers.get("x-ratelimit-remaining") == "0"
    asked_s = answer.headers.get("retry-after", "")
    is_limit = answer.status_code == httpx.codes.TOO_MANY_REQUESTS
    if answer.status_code == httpx.codes.FORBIDDEN:
        is_limit = is_out or bool(asked_s) or "rate limit" in answer.text[:2_000].casefold()
    if not is_limit:
        return
    wait_s = float(asked_s) if asked_s.isdecimal() else MIN_WAIT_S
    reset = answer.headers.get("x-ratelimit-reset", "")
    if is_out and not asked_s and reset.isdecimal():
        wait_s = float(reset) - time.time()
    raise BusyHostError(min(max(wait_s, MIN_WAIT_S), MAX_WAIT_S))


def _of(value: Any, name: str) -> Any:  # noqa: ANN401 - GitHub's JSON
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any, name: str) -> str:  # noqa: ANN401 - GitHub's JSON
    found = _of(value, name)
    return found if isinstance(found, str) else ""


def _list(value: Any) -> Sequence[Any]:  # noqa: ANN401 - GitHub's JSON
    return value if isinstance(value, list) else ()

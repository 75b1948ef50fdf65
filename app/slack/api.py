"""Calls of Slack's Web API: bounded, retried where that is safe, failing in three ways only.

SlackFault
    SlackRefusal        Slack said no, in a word such as `is_archived`; repeating it is useless
    SlackRateLimit      not carried out; may be repeated after `retry_after_s`
    SlackUnreachable    nobody knows whether it was carried out
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from app.aio import Gate, always_open
from app.errors import LeaseLostError
from app.log import get_logger
from app.slack.limits import METHOD_RATES, CallLimits, Rate

MAX_RETRY_AFTER_S: Final = 60.0
"""Longer pauses are cut: the limit is per minute. Source: Slack Web API rate limits, read 2026-11."""
CALL_TIMEOUT_S: Final = 10.0
SHARE_METHOD: Final = "files.completeUploadExternal"
"""What an upload calls, the bytes in between; when Slack wants one left alone, the first is."""
READING_METHODS: Final = ("auth.test",)
"""Besides those that are called by GET."""
_ATTEMPTS: Final = 6
_UNREACHABLE: Final = (
    aiohttp.ClientError,
    SlackClientError,
    TimeoutError,
    OSError,
    ValueError,
    # Of the SDK itself, where a body is no JSON though its status is good.
    AttributeError,
    TypeError,
)
_AMBIGUOUS_WORDS: Final = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout"}
)
"""Slack may have carried them out in part. Source: Slack Web API, common errors, read 2026-11."""


class SlackFault(Exception):  # noqa: N818 - a fault is what the tree in the docstring calls it
    """A call that failed; `word` is stable and safe to log."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class SlackRefusal(SlackFault):
    """Slack said no."""


class SlackRateLimit(SlackFault):
    """Not now."""

    def __init__(self, *, retry_after_s: float) -> None:
        super().__init__("ratelimited")
        self.retry_after_s = retry_after_s


class SlackUnreachable(SlackFault):
    """No answer, or none that says what happened."""


class SlackLeaseLost(SlackFault, LeaseLostError):  # noqa: N818 - a fault, as above
    """Nothing was sent: it may be another process's by now."""

    def __init__(self) -> None:
        super().__init__("lease_lost")


_RESULTS: Mapping[type[SlackFault], str] = {SlackRefusal: "refused", SlackRateLimit: "limited"}
OnCall = Callable[[str, str], None]
"""Is told of each call: its method, and `ok`, `refused`, `limited` or `unreachable`."""


def no_count(_method: str, _result: str) -> None:
    """Is OnCall of who counts nothing."""


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Bounds what is done with Slack. Raises: SlackUnreachable: `timeout`, when the block takes longer."""
    block = asyncio.timeout(seconds)
    try:
        async with block:
            yield
    except TimeoutError as exc:
        if not block.expired():
            raise
        raise SlackUnreachable("timeout") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a call is attempted, with which waits between, and how long that may take; tests shorten them."""

    first_wait_s: float = 0.5
    max_wait_s: float = 8.0
    attempts: int = _ATTEMPTS
    call_timeout_s: float = CALL_TIMEOUT_S
    """Of one attempt."""
    write_timeout_s: float = 60.0
    """Of all that one write takes, besides the time in line for Slack's limits."""


class SlackApi:
    """One workspace's Web API. The caller owns the client and its session."""

    def __init__(
        self,
        client: AsyncWebClient,
        *,
        policy: RetryPolicy,
        rates: Mapping[str, Rate] = METHOD_RATES,
        may_write: Gate = always_open,
        on_call: OnCall = no_count,
    ) -> None:
        """`rates`: see `CallLimits`. `may_write`: before each call that changes something."""
        self._on_call = on_call
        self.client = client
        self.policy = policy
        self._may_write = may_write
        self.limits = CallLimits(methods=rates)
        self.scopes: frozenset[str] = frozenset()
        """Of the token, as Slack's last answer told; empty before."""
        self._told: tuple[datetime, float] | None = None
        """Slack's time, and the loop's when it was told."""
        self._log = get_logger(__name__)

    def now(self) -> datetime:
        """Returns the moment by Slack's clock, as its last answer told, to the second; by this machine's before there was one."""
        if self._told is None:
            return datetime.now(UTC)
        told, at_s = self._told
        return told + timedelta(seconds=asyncio.get_running_loop().time() - at_s)

    async def once(
        self,
        method: str,
        arguments: Mapping[str, Any],
        *,
        verb: str = "POST",
        has_turn: bool = False,
        is_urgent: bool = True,
    ) -> Mapping[str, Any]:
        """Makes one attempt, when its turn has come; `has_turn`: the caller has waited for that. Raises: SlackFault: as above.

        `is_urgent`: its turn comes before that of those that are not.
        """
        payload = {name: value for name, value in arguments.items() if value is not None}
        channel = str(payload.get("channel", ""))
        if not has_turn:
            await self.limits.turn(method, channel, is_urgent=is_urgent)
        if verb != "GET" and method not in READING_METHODS:
            await self.confirm()
        with self._mapped_errors(method, channel):
            async with asyncio.timeout(self.policy.call_timeout_s):
                if verb == "GET":
                    response = await self.client.api_call(method, http_verb=verb, params=payload)
                else:
                    response = await self.client.api_call(method, json=payload)
        if not isinstance(response.data, dict):
            raise SlackUnreachable("no_json")
        self._learn(response.headers)
        return response.data

    def _learn(self, headers: Mapping[str, str]) -> None:
        """Source: RFC 9110, 6.6.1 `Date`; Slack Web API, `x-oauth-scopes` of each answer, read 2026-11."""
        if scopes := headers.get("x-oauth-scopes"):
            self.scopes = frozenset(one.strip() for one in scopes.split(","))
        with suppress(ValueError):
            told = parsedate_to_datetime(headers.get("Date", ""))
            # Without a zone it is UTC as well: a date is always in GMT.
            self._told = (told.replace(tzinfo=UTC), asyncio.get_running_loop().time())

    async def share(self, files: Mapping[str, str], *, channel: str, thread_ts: str) -> None:
        """Shares uploaded files, names by their ids, in a message of a thread, in one attempt. Raises: SlackFault: as above."""
        await self.limits.turn(SHARE_METHOD)
        await self.confirm()
        with self._mapped_errors(SHARE_METHOD, channel):
            async with asyncio.timeout(self.policy.call_timeout_s):
                await self.client.files_completeUploadExternal(
                    files=[{"id": file_id, "title": name} for file_id, name in files.items()],
                    channel_id=channel,
                    thread_ts=thread_ts,
                )

    async def repeated(
        self,
        method: str,
        arguments: Mapping[str, Any],
        *,
        verb: str = "POST",
        is_urgent: bool = True,
    ) -> Mapping[str, Any]:
        """Attempts until it is carried out; only for calls that may be carried out twice. Raises: SlackFault: the last attempt's."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type((SlackUnreachable, SlackRateLimit)),
            wait=self._wait_s,
            stop=stop_after_attempt(self.policy.attempts),
            reraise=True,
        )
        return await attempts(self.once, method, arguments, verb=verb, is_urgent=is_urgent)

    async def confirm(self) -> None:
        """Asks whether something may be changed. Raises: SlackLeaseLost: no more."""
        try:
            await self._may_write()
        except LeaseLostError as exc:
            raise SlackLeaseLost from exc

    def _wait_s(self, state: RetryCallState) -> float:
        fault = state.outcome.exception() if state.outcome else None
        if isinstance(fault, SlackRateLimit):
            return 0.0  # the next attempt's turn comes after the pause
        exponential = self.policy.first_wait_s * 2.0 ** (state.attempt_number - 1)
        return min(exponential, self.policy.max_wait_s)

    @contextmanager
    def _mapped_errors(self, method: str, channel: str) -> Iterator[None]:
        result = "unreachable"
        try:
            yield
            result = "ok"
        except SlackApiError as exc:
            fault = self._fault(method, channel, exc)
            result = _RESULTS.get(type(fault), result)
            raise fault from exc
        except _UNREACHABLE as exc:
            raise SlackUnreachable(type(exc).__name__) from exc
        finally:
            self._on_call(method, result)

    def _fault(self, method: str, channel: str, error: SlackApiError) -> SlackFault:
        response = error.response
        # A body that is no JSON leaves the HTTP library's response instead of the SDK's.
        status: int = getattr(response, "status_code", 0) or getattr(response, "status", 0)
        data = getattr(response, "data", None)
        word = data.get("error") if isinstance(data, dict) else None
        if status == 429 or word in ("ratelimited", "rate_limited"):  # noqa: PLR2004 - HTTP
            retry_after_s = min(asked_pause_s(getattr(response, "headers", {})), MAX_RETRY_AFTER_S)
            if not self.limits.pause_s(method, channel):  # else it was on its way already
                self._log.warning(
                    "slack.rate_limited",
                    method=method,
                    channel=channel,
                    retry_after_s=retry_after_s,
                )
            self.limits.pause(method, channel, retry_after_s)
            return SlackRateLimit(retry_after_s=retry_after_s)
        if status >= 500 or not isinstance(word, str) or word in _AMBIGUOUS_WORDS:  # noqa: PLR2004 - HTTP
            return SlackUnreachable(word if isinstance(word, str) else f"http_{status}")
        return SlackRefusal(word)


def asked_pause_s(headers: Mapping[str, str]) -> float:
    """Returns how long Slack wants to be left alone after a 429; a second where it does not say."""
    value = _header(headers, "retry-after")
    return float(value) if value.isdecimal() else 1.0


def _header(headers: Mapping[str, str], wanted: str) -> str:
    return next((value for name, value in headers.items() if name.lower() == wanted), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BotIdentity:
    team_id: str
    bot_id: str
    bot_user_id: str
    url: str = ""
    """The workspace's address, with a slash at its end; empty = Slack did not say."""

    def link(self, channel: str, ts: str, *, thread_ts: str = "") -> str:
        """Returns the permalink of a message, empty where the workspace's address is not known.

        Source: Slack Web API, chat.getPermalink, examples of its answer, read 2026-11.
        """
        if not self.url:
            return ""
        address = f"{self.url}archives/{channel}/p{ts.replace('.', '')}"
        is_reply = thread_ts not in ("", ts)
        return f"{address}?thread_ts={thread_ts}&cid={channel}" if is_reply else address

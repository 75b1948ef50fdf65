"""Opens the way to one workspace's Web API: replies, thread reader and identity over one HTTP session."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from pydantic import SecretStr
from slack_sdk.web.async_client import AsyncWebClient

from app.accounts.links import AccountLinks, Login
from app.accounts.records import AccountStore
from app.aio import Gate, TaskGroup, always_open, open_task_group
from app.audit.records import AuditLog
from app.log import get_logger
from app.runs.intake import Intake
from app.runs.model import Run
from app.runs.ports import OwnKeyStore
from app.slack.api import (
    BotIdentity,
    OnCall,
    RetryPolicy,
    SlackApi,
    SlackFault,
    SlackLeaseLost,
    SlackRefusal,
    SlackUnreachable,
    no_count,
)
from app.slack.ask_modal import AskModal
from app.slack.blocks import PLAIN_STYLE, ReplyStyle
from app.slack.catch_up import CatchUp, HeardStore
from app.slack.commands import SlashCommand
from app.slack.fields import text_of
from app.slack.files import SlackFiles
from app.slack.hearing import Hearing
from app.slack.history import SlackThreadReader
from app.slack.home import BACKGROUND_TIMEOUT_S, AppHome, WelcomeStore
from app.slack.key_modal import KeyModal, Vendor
from app.slack.limits import METHOD_RATES, Rate
from app.slack.listeners import Surfaces
from app.slack.live import IsOver, LatePosts, UpdateTiming, nobody_else
from app.slack.manifest import find_lacking
from app.slack.markdown import escape, neutralise
from app.slack.message_events import MessageEvents
from app.slack.messages import OwnMessages
from app.slack.modals import OPEN_TIMEOUT_S, AnswerModal, FeedbackModal
from app.slack.overview import Overviews
from app.slack.replies import SlackReplies
from app.slack.signature import is_id
from app.slack.status import WorkingStatus
from app.slack.streams import LiveAnswers, Streams
from app.slack.unheard import UnheardReader

_CONNECT_TIMEOUT_S: Final = 5.0
_MAX_CONNECTIONS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackOptions:
    bot_token: SecretStr = field(repr=False)
    base_url: str = "https://slack.com/api/"
    style: ReplyStyle = PLAIN_STYLE
    live: LiveAnswers = field(default_factory=LiveAnswers)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    rates: Mapping[str, Rate] = field(default_factory=lambda: METHOD_RATES)
    """Of Slack's methods; tests have others."""
    timing: UpdateTiming = field(default_factory=UpdateTiming)
    look_again_after_s: float = 1.0
    """Between an ambiguous failure of a post and the look whether it stands there."""
    modal_timeout_s: float = OPEN_TIMEOUT_S
    """For all that comes before a modal stands."""


class SlackConnection:
    """One workspace. Made by `open_slack`, which closes it."""

    def __init__(
        self,
        api: SlackApi,
        options: SlackOptions,
        *,
        session: aiohttp.ClientSession,
        group: TaskGroup,
        is_over: IsOver,
    ) -> None:
        self._api = api
        self._modal_timeout_s = options.modal_timeout_s
        self._group = group
        self._identity: BotIdentity | None = None
        self._home: AppHome | None = None
        self._links: AccountLinks | None = None
        self._untold: set[str] = set()
        """User groups whose members Slack does not tell."""
        self._log = get_logger(__name__)
        self.files = SlackFiles(api, session, token=options.bot_token, base_url=options.base_url)
        messages = OwnMessages(api, self.files, look_again_after_s=options.look_again_after_s)
        self._status = WorkingStatus(api, group=group)
        self._late = LatePosts(api, messages, group=group, is_over=is_over)
        self._streams = Streams(api, messages, answers=options.live, group=group)
        self.replies = SlackReplies(
            api,
            messages=messages,
            status=self._status,
            late=self._late,
            streams=self._streams,
            style=options.style,
            timing=options.timing,
        )
        self.reader = SlackThreadReader(api, identity=self.identity)
        self.hearing = Hearing(api.now)

    def share_limits(self, processes: int) -> None:
        """Keeps to this process's part of Slack's limits; see `CallLimits.share`."""
        self._api.limits.share(processes)

    def close(self) -> None:
        """Gives up what waits for Slack's limits; what is on its way goes on."""
        self._status.close()
        self._late.close()
        self._streams.close()
        if self._home is not None:
            self._home.close()
        if self._links is not None:
            self._links.close()

    @property
    def scopes(self) -> frozenset[str]:
        """Returns what the app may do, as Slack's last answer told; empty before."""
        return self._api.scopes

    async def members_of(self, group: str) -> frozenset[str] | None:
        """Returns the members of a user group; None when Slack does not tell them to this app.

        Raises: ConnectionError: not now.
        """
        method = "usergroups.users.list"
        try:
            answer = await self._api.once(method, {"usergroup": group}, verb="GET")
        except SlackRefusal as exc:
            if group not in self._untold:
                self._untold.add(group)
                self._log.warning("slack.group_untold", group=group, error=exc.word)
            return None
        except SlackFault as exc:
            raise ConnectionError(exc.word) from exc
        users = answer.get("users")
        return frozenset(one for one in users if is_id(one)) if isinstance(users, list) else None

    def key_modal(
        self, store: OwnKeyStore, vendors: Mapping[str, Vendor], *, audit: AuditLog
    ) -> KeyModal:
        """Returns the modal where people give keys of their own."""
        return KeyModal(
            self._api,
            store=store,
            audit=audit,
            vendors=vendors,
            open_timeout_s=self._modal_timeout_s,
        )

    def account_links(
        self,
        store: AccountStore,
        logins: Sequence[Login],
        *,
        audit: AuditLog,
        now: Callable[[], datetime],
        waits: bool = True,
    ) -> AccountLinks:
        """Returns where people link accounts; each is told what came of it alone. `waits`: in the background, until they have typed their code in."""
        group = self._group if waits else None
        self._links = AccountLinks(
            store, logins, audit=audit, group=group, tell=self._tell_alone, now=now
        )
        return self._links

    async def say(self, channel: str, text: str) -> str:
        """Posts a text, in which nothing is a mention or a link, into a channel; returns the message's ts. Raises: SlackFault."""
        arguments = {"channel": channel, "text": escape(neutralise(text)), "unfurl_links": False}
        answer = await self._api.once("chat.postMessage", arguments)
        return str(answer.get("ts", ""))

    async def _tell_alone(self, channel: str, user: str, text: str) -> None:
        """Implements Tell."""
        arguments = {"channel": channel, "user": user, "text": text}
        try:
            await self._api.once("chat.postEphemeral", arguments)
        except (SlackRefusal, SlackLeaseLost) as exc:
            self._log.warning("slack.update_failed", operation="tell_alone", error=exc.word)
        except SlackFault:
            self._late.tell(arguments)

    def surfaces(
        self,
        intake: Intake,
        overviews: Overviews,
        *,
        welcomes: WelcomeStore,
        keys: KeyModal | None,
        links: AccountLinks | None = None,
        takes_comments: bool = True,
        mask: Callable[[str], str],
        on_group: Callable[[str], Coroutine[None, None, None]] | None = None,
        background_timeout_s: float = BACKGROUND_TIMEOUT_S,
    ) -> Surfaces:
        """Returns where people reach Orion besides messages.

        `keys`, `links`: None = they give no keys of their own, link no accounts. `takes_comments`: whoever finds an answer bad is asked why. `on_group`: called in the background when a user group has changed. `background_timeout_s`: for what closing this connection may have to wait for.
        """
        self._home = AppHome(
            self._api,
            group=self._group,
            overviews=overviews,
            welcomes=welcomes,
            takes_keys=keys is not None,
            timeout_s=background_timeout_s,
        )
        return Surfaces(
            keys=keys,
            feedback=self.feedback_modal(intake) if takes_comments else None,
            answer=self.answer_modal(intake),
            ask=AskModal(
                self._api,
                intake=intake,
                identity=self.identity,
                mask=mask,
                open_timeout_s=self._modal_timeout_s,
            ),
            commands=SlashCommand(overviews, intake=intake, links=links),
            home=self._home,
            groups=partial(self._tell_group, on_group) if on_group else None,
        )

    def _tell_group(
        self, on_group: Callable[[str], Coroutine[None, None, None]], group: str
    ) -> None:
        self._group.create_task(on_group(group), name="slack-group")

    def feedback_modal(self, intake: Intake) -> FeedbackModal:
        """Returns the modal that asks what was wrong with an answer."""
        return FeedbackModal(self._api, intake=intake, open_timeout_s=self._modal_timeout_s)

    def answer_modal(self, intake: Intake) -> AnswerModal:
        """Returns the modal that takes an answer to an agent's question in words."""
        return AnswerModal(self._api, intake=intake, open_timeout_s=self._modal_timeout_s)

    def catch_up(
        self,
        intake: Intake,
        *,
        store: HeardStore,
        recent: Callable[[], Awaitable[Sequence[Run]]],
        window: timedelta,
        allowed_bots: Collection[str],
    ) -> CatchUp:
        """Returns what finds questions that nobody heard; see `CatchUp`, and `from_event` for `allowed_bots`."""
        return CatchUp(
            UnheardReader(self._api, identity=self.identity),
            hearing=self.hearing,
            messages=MessageEvents(intake, identity=self.identity, allowed_bots=allowed_bots),
            store=store,
            recent=recent,
            identify=self.known_identity,
            window=window,
        )

    def identity(self) -> BotIdentity | None:
        """Returns what the last successful `identify` said, or `know`; None before."""
        return self._identity

    def know(self, identity: BotIdentity) -> None:
        """Takes who the token belongs to from who has asked Slack."""
        self._identity = identity

    @property
    def lacking(self) -> Mapping[str, str]:
        """Returns the scopes that are missing, with what is off for want of each; none before Slack has said what it grants."""
        return find_lacking(self._api.scopes)

    async def identify(self) -> BotIdentity:
        """Asks Slack who the token belongs to; one attempt of at most 10 s.

        Raises:
            SlackFault: a SlackRefusal such as `invalid_auth` needs the operator.
        """
        response = await self._api.once("auth.test", {})
        names = {name: response.get(name) for name in ("team_id", "bot_id", "user_id", "url")}
        if not isinstance(names["team_id"], str) or not isinstance(names["user_id"], str):
            raise SlackUnreachable("incomplete_identity")
        self._identity = BotIdentity(
            team_id=names["team_id"],
            bot_id=text_of(names, "bot_id"),
            bot_user_id=names["user_id"],
            url=text_of(names, "url"),
        )
        return self._identity

    async def known_identity(self) -> BotIdentity:
        """Returns who the token belongs to; asks Slack where that is not known yet. Raises: as `identify`."""
        return self._identity or await self.identify()


@asynccontextmanager
async def open_slack(
    options: SlackOptions,
    *,
    may_write: Gate = always_open,
    is_over: IsOver = nobody_else,
    on_call: OnCall = no_count,
) -> AsyncIterator[SlackConnection]:
    """Opens a connection that makes no call until it is used. `may_write`: see `SlackApi`; `is_over`: see `LatePosts`."""
    timeout = aiohttp.ClientTimeout(total=options.policy.call_timeout_s, connect=_CONNECT_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        _Background() as group,
    ):
        client = create_client(
            token=options.bot_token.get_secret_value(), base_url=options.base_url, session=session
        )
        api = SlackApi(
            client,
            policy=options.policy,
            rates=options.rates,
            may_write=may_write,
            on_call=on_call,
        )
        connection = SlackConnection(api, options, session=session, group=group, is_over=is_over)
        try:
            yield connection
        finally:
            connection.close()


def create_client(
    *, token: str | None, base_url: str, session: aiohttp.ClientSession | None
) -> AsyncWebClient:
    """Creates the SDK's client without its own retries, which would post twice.

    Source: slack-sdk 3.47, async_default_handlers, read 2026-11.
    """
    client = AsyncWebClient(token=token, base_url=base_url, session=session, retry_handlers=[])
    if urlsplit(base_url).hostname in ("127.0.0.1", "localhost", "::1"):
        # The SDK takes the environment's proxy for every host, this machine included.
        client.proxy = None
    return client


class _Background:
    """A TaskGroup for what may go on beside its block; the block's own errors pass through as they are."""

    def __init__(self) -> None:
        self._group = open_task_group()

    async def __aenter__(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, asyncio.CancelledError):
            kind = error = traceback = None
        await self._group.__aexit__(kind, error, traceback)

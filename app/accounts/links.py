"""How a person links an account: they are shown a code alone, type it in at the service, and are told when that was heard."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from app.accounts.records import Account, AccountStore, Owner, Service, TokenPair
from app.aio import TaskGroup, retry_store
from app.log import get_logger

MAX_WAITING: Final = 200
"""People who may be typing a code in, in one process."""
_log = get_logger(__name__)


class LinkError(Exception):
    """The account was not linked; the message is for the person: lower case, no full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """A code that a person must type in at a service, and by what the service is asked whether they have."""

    user_code: str
    """For the person alone: whoever gets another one to type it in has their account."""
    verification_url: str
    device_code: str = field(repr=False)
    expires_at: datetime
    interval_s: float
    """Between two questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A service's answer: the code was not typed in yet."""

    interval_s: float
    """Until the next question; the service may want it slower than before."""


class Login(Protocol):
    """How accounts of one service are linked. Its methods raise ConnectionError where the service does not answer."""

    async def begin(self) -> DeviceCode:
        """Asks for a code. Raises: LinkError: there is none."""
        ...

    async def ask(self, code: DeviceCode) -> TokenPair | Waiting:
        """Asks whether it was typed in. Raises: LinkError: it will not be."""
        ...

    async def account_of(self, tokens: TokenPair) -> Account:
        """Returns whose tokens these are. Raises: LinkError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    code: DeviceCode
    task: asyncio.Task[None]
    """Asks until it is known; cancelled when the person, or the process, wants it no more."""


Tell = Callable[[str, str, str], Awaitable[None]]
"""Tells a person alone, by a channel, their id and a text. Never raises."""


class AccountLinks:
    """Links accounts of GitHub. Who is typing a code in is known to this process alone; what was linked is kept."""

    def __init__(
        self,
        store: AccountStore,
        login: Login,
        *,
        group: TaskGroup,
        tell: Tell,
        now: Callable[[], datetime],
    ) -> None:
        """`group`: in which it is asked whether codes were typed in."""
        self._store = store
        self._login = login
        self._group = group
        self._tell = tell
        self._now = now
        self._waiting: dict[Owner, _Asked] = {}

    def close(self) -> None:
        """Asks no more whether codes were typed in; who was about to must begin again."""
        for owner in list(self._waiting):
            self._give_up(owner)

    async def begin(self, owner: Owner, *, channel: str) -> str:
        """Returns what the person is told, who has asked in that channel: a code, for them alone."""
        linked = await self._store.get(owner, Service.GITHUB)
        if linked is not None:
            return f"Your GitHub account is linked: {linked.login}. `/orion unlink` forgets it."
        if owner not in self._waiting:
            if len(self._waiting) >= MAX_WAITING:
                return (
                    "Too many people are linking accounts just now. Please try again in a minute."
                )
            try:
                code = await self._login.begin()
            except (LinkError, ConnectionError) as exc:
                return f"Your GitHub account cannot be linked now: {exc}."
            if owner not in self._waiting:  # else the same person has asked twice at once
                task = self._group.create_task(
                    self._ask_until_known(owner, code, channel), name="link-account"
                )
                self._waiting[owner] = _Asked(code=code, task=task)
        code = self._waiting[owner].code
        return (
            f"Open {code.verification_url} and type in `{code.user_code}`: then what I push for you is pushed as you. "
            "Do so only for a code that you have asked for here yourself. I tell you when it is done."
        )

    async def unlink(self, owner: Owner) -> str:
        """Forgets the account; returns what the person is told."""
        await self._end(owner)
        if await self._store.unlink(owner, Service.GITHUB):
            _log.info("account.unlinked", service=Service.GITHUB, user=owner.person)
            return "Your GitHub account is forgotten here. At GitHub, under Applications, you can take my access back as well."
        return "No GitHub account of yours is linked."

    def _give_up(self, owner: Owner) -> asyncio.Task[None] | None:
        asked = self._waiting.pop(owner, None)
        if asked is None:
            return None
        asked.task.cancel()
        return asked.task

    async def _end(self, owner: Owner) -> None:
        """Gives up, and returns when nothing of it goes on: an account that is about to be kept would come after its end."""
        if (task := self._give_up(owner)) is not None:
            await asyncio.wait([task])

    async def _ask_until_known(self, owner: Owner, code: DeviceCode, channel: str) -> None:
        try:
            account = await self._wait(code)
            await retry_store(lambda: self._store.link(owner, account))
            _log.info("account.linked", service=account.service, user=owner.person)
            said = f"Your GitHub account is linked: {account.login}. What I push for you is pushed as you from now on."
        except LinkError as exc:
            said = f"Your GitHub account was not linked: {exc}."
        except Exception as exc:  # noqa: BLE001 - what goes wrong for one person must not end what goes on for others
            _log.warning("account.not_linked", user=owner.person, error=type(exc).__name__)
            said = "Your GitHub account could not be linked. Please try `/orion link` again."
        self._waiting.pop(owner, None)
        await self._tell(channel, owner.person, said)

    async def _wait(self, code: DeviceCode) -> Account:
        """Returns the account of whoever has typed the code in. Raises: LinkError: nobody has in time, or it was refused."""
        found: TokenPair | Waiting = Waiting(interval_s=code.interval_s)
        interval_s = code.interval_s
        while self._now() < code.expires_at:
            await asyncio.sleep(interval_s)
            with suppress(ConnectionError):  # it is asked again
                if isinstance(found, Waiting):
                    found = await self._login.ask(code)
                if isinstance(found, Waiting):
                    interval_s = max(interval_s, found.interval_s)
                else:  # kept while it is asked whose they are: the code gives them once
                    return await self._login.account_of(found)
        if not isinstance(found, Waiting):
            raise LinkError("GitHub did not say whose account it is in time")
        raise LinkError("the code was not typed in in time")

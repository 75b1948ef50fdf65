"""How a person links an account: they are shown a code alone, type it in at the service, and are told when that was heard."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from app.accounts.records import GITHUB, Account, AccountStore, Owner, Service, TokenPair
from app.aio import TaskGroup, retry_store
from app.log import get_logger

MAX_WAITING: Final = 200
"""Codes that may be about to be typed in, in one process."""
SHOWN_CHARS: Final = 40
"""Of a name that is none."""
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

    service: Service
    title: str
    """The service, as people call it, and, in any case of its letters, ask for it."""
    promise: str
    """What is true of who has linked an account: ends a sentence."""

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


_Place = tuple[Owner, Service]
Tell = Callable[[str, str, str], Awaitable[None]]
"""Tells a person alone, by a channel, their id and a text. Never raises."""


class AccountLinks:
    """Links accounts. Who is typing a code in is known to this process alone; what was linked is kept."""

    def __init__(
        self,
        store: AccountStore,
        logins: Sequence[Login],
        *,
        group: TaskGroup,
        tell: Tell,
        now: Callable[[], datetime],
    ) -> None:
        """`logins`: one at the least. `group`: in which it is asked whether codes were typed in."""
        self._store = store
        self._logins = {login.title.lower(): login for login in logins}
        self._group = group
        self._tell = tell
        self._now = now
        self._waiting: dict[_Place, _Asked] = {}

    def close(self) -> None:
        """Asks no more whether codes were typed in; who was about to must begin again."""
        for place in list(self._waiting):
            self._give_up(place)

    async def begin(self, owner: Owner, name: str, *, channel: str) -> str:
        """Returns what the person is told, who has asked in that channel to link an account: a code, for them alone.

        `name`: of the service; empty = the only one, or GitHub.
        """
        login = self._find(name)
        if login is None:
            return self._which("link", name)
        linked = await self._store.get(owner, login.service)
        if linked is not None:
            return f"{_linked(login, linked)}. `/orion unlink {login.title}` forgets it."
        place = owner, login.service
        if place not in self._waiting:
            if len(self._waiting) >= MAX_WAITING:
                return (
                    "Too many people are linking accounts just now. Please try again in a minute."
                )
            try:
                code = await login.begin()
            except (LinkError, ConnectionError) as exc:
                return f"Your {login.title} account cannot be linked now: {exc}."
            if place not in self._waiting:  # else the same person has asked twice at once
                task = self._group.create_task(
                    self._ask_until_known(owner, login, code, channel), name="link-account"
                )
                self._waiting[place] = _Asked(code=code, task=task)
        code = self._waiting[place].code
        return (
            f"Open {code.verification_url} and type in `{code.user_code}`: then {login.promise}. "
            "Do so only for a code that you have asked for here yourself. I tell you when it is done."
        )

    async def unlink(self, owner: Owner, name: str) -> str:
        """Forgets an account of the person's; returns what they are told. `name`: as with `begin`."""
        login = self._find(name)
        if login is None:
            return self._which("unlink", name)
        await self._end((owner, login.service))
        if await self._store.unlink(owner, login.service):
            _log.info("account.unlinked", service=login.title, user=owner.person)
            return f"Your {login.title} account is forgotten here. There, among your applications, you can take my access back as well."
        return f"No {login.title} account of yours is linked."

    def _find(self, name: str) -> Login | None:
        if not name:
            only = next(iter(self._logins.values())) if len(self._logins) == 1 else None
            return only or self._logins.get(GITHUB)
        return self._logins.get(name.lower())

    def _which(self, word: str, name: str) -> str:
        shown = ", ".join(f"`/orion {word} {login.title}`" for login in self._logins.values())
        said = f"There is no `{name[:SHOWN_CHARS]}` to have an account at. " if name else ""
        return f"{said}There is: {shown}."

    def _give_up(self, place: _Place) -> asyncio.Task[None] | None:
        asked = self._waiting.pop(place, None)
        if asked is None:
            return None
        asked.task.cancel()
        return asked.task

    async def _end(self, place: _Place) -> None:
        """Gives up, and returns when nothing of it goes on: an account that is about to be kept would come after its end."""
        if (task := self._give_up(place)) is not None:
            await asyncio.wait([task])

    async def _ask_until_known(
        self, owner: Owner, login: Login, code: DeviceCode, channel: str
    ) -> None:
        try:
            account = await self._wait(login, code)
            await retry_store(lambda: self._store.link(owner, account))
            _log.info("account.linked", service=login.title, user=owner.person)
            said = f"{_linked(login, account)}. From now on {login.promise}."
        except LinkError as exc:
            said = f"Your {login.title} account was not linked: {exc}."
        except Exception as exc:  # noqa: BLE001 - what goes wrong for one person must not end what goes on for others
            _log.warning("account.not_linked", user=owner.person, error=type(exc).__name__)
            said = f"Your {login.title} account could not be linked. Please try `/orion link {login.title}` again."
        self._waiting.pop((owner, login.service), None)
        await self._tell(channel, owner.person, said)

    async def _wait(self, login: Login, code: DeviceCode) -> Account:
        """Returns the account of whoever has typed the code in. Raises: LinkError: nobody has in time, or it was refused."""
        found: TokenPair | Waiting = Waiting(interval_s=code.interval_s)
        interval_s = code.interval_s
        while self._now() < code.expires_at:
            await asyncio.sleep(interval_s)
            with suppress(ConnectionError):  # it is asked again
                if isinstance(found, Waiting):
                    found = await login.ask(code)
                if isinstance(found, Waiting):
                    interval_s = max(interval_s, found.interval_s)
                else:  # kept while it is asked whose they are: the code gives them once
                    return await login.account_of(found)
        if not isinstance(found, Waiting):
            raise LinkError(f"{login.title} did not say whose account it is in time")
        raise LinkError("the code was not typed in in time")


def _linked(login: Login, account: Account) -> str:
    name = f": {account.login}" if account.login else ""
    return f"Your {login.title} account is linked{name}"

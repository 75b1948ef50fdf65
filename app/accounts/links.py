"""How a person links an account: they alone are shown a code, take it to the service, and are told when that was heard."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from app.accounts.records import (
    GITHUB,
    Account,
    AccountStore,
    LinkCode,
    Owner,
    Service,
    TokenPair,
)
from app.aio import TaskGroup, retry_store
from app.audit.records import Act, AuditEntry, AuditLog
from app.log import get_logger

MAX_WAITING: Final = 200
"""Codes that may be about to be typed in, in one process."""
SHOWN_CHARS: Final = 40
"""Of a name that is none."""
_log = get_logger(__name__)


class LinkError(Exception):
    """The account was not linked; the message is for the person: lower case, no full stop."""


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
    returns_to: str
    """Where the person's browser ends, with that in its address which they must bring back; empty = the service is asked whether they have typed in the code."""

    async def begin(self) -> LinkCode:
        """Asks for a code. Raises: LinkError: there is none."""
        ...

    async def ask(self, code: LinkCode, brought: str) -> TokenPair | Waiting:
        """Asks what has become of it. `brought`: the address; empty where none is. Raises: LinkError: nothing, or it will not."""
        ...

    async def account_of(self, tokens: TokenPair) -> Account:
        """Returns whose tokens these are. Raises: LinkError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    code: LinkCode
    task: asyncio.Task[None]
    """Asks until it is known; cancelled when the person, or the process, wants it no more."""


_Place = tuple[Owner, Service]
Tell = Callable[[str, str, str], Awaitable[None]]
"""Tells a person alone, by a channel, their id and a text. Never raises."""


class AccountLinks:
    """Links accounts. A code is kept, so that whichever process is asked next finds out what became of it."""

    def __init__(
        self,
        store: AccountStore,
        logins: Sequence[Login],
        *,
        audit: AuditLog,
        group: TaskGroup | None,
        tell: Tell,
        now: Callable[[], datetime],
    ) -> None:
        """`logins`: one at the least. `group`: in which it is asked whether codes were typed in; None = when the person says so."""
        self._store = store
        self._audit = audit
        self._logins = {login.title.lower(): login for login in logins}
        self._group = group
        self._tell = tell
        self._now = now
        self._waiting: dict[_Place, _Asked] = {}

    def close(self) -> None:
        """Asks no more whether codes were typed in, until their people do."""
        for place in list(self._waiting):
            self._give_up(place)

    async def begin(self, owner: Owner, words: str, *, channel: str) -> str:
        """Returns what the person is told, who has asked in that channel to link an account: a code, for them alone, or what became of it.

        `words`: the service's name; empty = the only one, or GitHub. Behind it what they bring back from there.
        """
        name, _, brought = words.partition(" ")
        login = self._find(name)
        if login is None or (brought and not login.returns_to):
            return self._which("link", words)
        try:
            return await self._begin(owner, login, channel, brought)
        except (LinkError, ConnectionError) as exc:
            return f"Your {login.title} account cannot be linked now: {exc}."

    async def unlink(self, owner: Owner, name: str) -> str:
        """Forgets an account of the person's; returns what they are told. `name`: as with `begin`."""
        login = self._find(name)
        if login is None:
            return self._which("unlink", name)
        await self._end((owner, login.service))
        await self._store.drop_code(owner, login.service)
        if await self._store.get(owner, login.service) is not None:
            await self._note(owner, "unlink", login.title)
        if await self._store.unlink(owner, login.service):
            _log.info("account.unlinked", service=login.title, user=owner.person)
            return f"Your {login.title} account is forgotten here. There, among your applications, you can take my access back as well."
        return f"No {login.title} account of yours is linked."

    async def _begin(self, owner: Owner, login: Login, channel: str, brought: str) -> str:
        linked = await self._store.get(owner, login.service)
        if linked is not None:
            return f"{_linked(login, linked)}. `/orion unlink {login.title}` forgets it."
        is_waiting = (owner, login.service) in self._waiting
        if not is_waiting and len(self._waiting) >= MAX_WAITING:
            return "Too many people are linking accounts just now. Please try again in a minute."
        if brought:
            return await self._take(owner, login, channel, brought)
        code = await self._code(owner, login, channel)
        if code is None:
            return await self._begin(owner, login, channel, "")
        return self._what_to_do(login, code)

    def _what_to_do(self, login: Login, code: LinkCode) -> str:
        if login.returns_to:
            page = code.verification_url.replace("&", "&amp;")
            return (
                f"<{page}|Say yes at {login.title}>: then {login.promise}. Your browser ends at an address that begins with "
                f"`{login.returns_to}`, whether or not it finds a page there; copy it, and write `/orion link {login.title} ADDRESS` here. "
                "Bring only an address to which you have come from here."
            )
        then = f"Then write `/orion link {login.title}` again."
        return (
            f"Open {code.verification_url} and type in `{code.user_code}`: then {login.promise}. Do so only for a code that you "
            f"have asked for here yourself. {'I tell you when it is done.' if self._group else then}"
        )

    def _find(self, name: str) -> Login | None:
        if not name:
            only = next(iter(self._logins.values())) if len(self._logins) == 1 else None
            return only or self._logins.get(GITHUB)
        return self._logins.get(name.lower())

    def _which(self, word: str, name: str) -> str:
        shown = ", ".join(f"`/orion {word} {login.title}`" for login in self._logins.values())
        said = f"There is no `{name[:SHOWN_CHARS]}` to have an account at. " if name else ""
        return f"{said}There is: {shown}."

    async def _code(self, owner: Owner, login: Login, channel: str) -> LinkCode | None:
        """Returns the code that the person may type in, a new one where there is none; None: it was, and the account is linked."""
        place = owner, login.service
        if place in self._waiting:
            return self._waiting[place].code
        code = await self._store.find_code(*place)
        found: TokenPair | Waiting | None = None
        if code is not None and self._now() < code.expires_at and not login.returns_to:
            with suppress(LinkError):  # it is no good any more
                found = await login.ask(code, "")
        if isinstance(found, TokenPair):
            await self._link(owner, login, await login.account_of(found))
            return None
        if code is None or found is None:
            code = await login.begin()
        if place in self._waiting:  # the same person has asked twice at once
            return self._waiting[place].code
        if self._group is not None and not login.returns_to:
            self._keep_asking(
                self._group, place, code, self._ask_until_known(owner, login, code, channel)
            )
        await self._store.keep_code(*place, code)
        return code

    async def _take(self, owner: Owner, login: Login, channel: str, brought: str) -> str:
        """Returns what the person is told who has brought something back."""
        code = await self._store.find_code(owner, login.service)
        if code is None or self._now() >= code.expires_at:
            return f"That has come too late, or you have not begun here. Please write `/orion link {login.title}` first."
        if self._group is None:
            return await self._outcome(owner, login, code, brought)
        place = owner, login.service
        if place not in self._waiting:
            asking = self._ask_until_known(owner, login, code, channel, brought)
            self._keep_asking(self._group, place, code, asking)
        return f"I ask {login.title}, and tell you what it says."

    def _keep_asking(
        self, group: TaskGroup, place: _Place, code: LinkCode, asking: Coroutine[Any, Any, None]
    ) -> None:
        task = group.create_task(asking, name="link-account")
        self._waiting[place] = _Asked(code=code, task=task)

    async def _link(self, owner: Owner, login: Login, account: Account) -> None:
        await self._note(owner, "link", f"{login.title} as {account.login or account.id}")
        await retry_store(lambda: self._store.link(owner, account))
        await self._store.drop_code(owner, login.service)
        _log.info("account.linked", service=login.title, user=owner.person)

    async def _note(self, owner: Owner, word: str, target: str) -> None:
        """Keeps that a person links or unlinks an account."""
        now = self._now()
        entry = AuditEntry(
            id=f"{owner.team}:{owner.person}:{word}:{now.timestamp():.6f}",
            at=now,
            team=owner.team,
            channel="",
            user=owner.person,
            act=Act.LINK,
            target=f"{word} {target}",
            is_allowed=True,
            reason="an account of their own",
            run_id="",
        )
        await retry_store(lambda: self._audit.add(entry))

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
        self, owner: Owner, login: Login, code: LinkCode, channel: str, brought: str = ""
    ) -> None:
        try:
            said = await self._outcome(owner, login, code, brought)
        except Exception as exc:  # noqa: BLE001 - what goes wrong for one person must not end what goes on for others
            _log.warning("account.not_linked", user=owner.person, error=type(exc).__name__)
            said = f"Your {login.title} account could not be linked. Please try `/orion link {login.title}` again."
        self._waiting.pop((owner, login.service), None)
        if said:
            with suppress(OSError):
                if not brought:  # else it may have been a wrong address, and they bring another one
                    await self._store.drop_code(owner, login.service)
            await self._tell(channel, owner.person, said)

    async def _outcome(self, owner: Owner, login: Login, code: LinkCode, brought: str) -> str:
        """Returns what the person is told; empty where another process has told them, or they have given it up there."""
        account: Account | None = None
        try:
            account = await self._wait(login, code, brought)
            said = f"{_linked(login, account)}. From now on {login.promise}."
        except LinkError as exc:
            said = f"Your {login.title} account was not linked: {exc}."
        kept = await retry_store(lambda: self._store.find_code(owner, login.service))
        if kept is None or kept.secret != code.secret:
            return ""
        if account is not None:
            await self._link(owner, login, account)
        return said

    async def _wait(self, login: Login, code: LinkCode, brought: str) -> Account:
        """Returns the account of whoever has taken the code there. Raises: LinkError: nobody has in time, or it was refused."""
        found: TokenPair | Waiting = Waiting(interval_s=code.interval_s)
        interval_s = code.interval_s
        pause_s = 0.0 if brought else interval_s
        while self._now() < code.expires_at:
            await asyncio.sleep(pause_s)
            with suppress(ConnectionError):  # it is asked again
                if isinstance(found, Waiting):
                    found = await login.ask(code, brought)
                if isinstance(found, Waiting):
                    interval_s = max(interval_s, found.interval_s)
                else:  # kept while it is asked whose they are: the code gives them once
                    return await login.account_of(found)
            pause_s = interval_s
        if not isinstance(found, Waiting):
            raise LinkError(f"{login.title} did not say whose account it is in time")
        raise LinkError(
            f"{login.title} gave no answer in time"
            if brought
            else "the code was not typed in in time"
        )


def _linked(login: Login, account: Account) -> str:
    name = f": {account.login}" if account.login else ""
    return f"Your {login.title} account is linked{name}"

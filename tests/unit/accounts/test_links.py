"""A person links an account: one code, asked for until it is heard, refused, over, or wanted no more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from app.accounts.links import MAX_WAITING, AccountLinks, LinkError, Waiting
from app.accounts.records import (
    GITHUB,
    Account,
    LinkCode,
    Owner,
    Service,
    TokenPair,
    mcp_service,
)
from app.aio import open_task_group
from app.audit.records import Act, AuditQuery
from app.store.accounts import MemoryAccountStore
from app.store.audit import MemoryAuditLog
from tests.waiting import until

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
ANN = Owner(team="T1", person="U1")
PAIR = TokenPair(access="ghu_1", refresh="ghr_1")
Answer = TokenPair | Waiting | Exception
VERIFIER = "d"
ADDRESS = "https://orion.test/linked/github?code=1&state=2"


@dataclass
class FakeLogin:
    """Answers these, the last one for ever."""

    answers: list[Answer]
    service: Service = GITHUB
    title: str = "GitHub"
    promise: str = "what I push for you is pushed as you"
    returns_to: str = ""
    asked: int = 0
    begun: int = 0
    fault: Exception | None = None
    faults_of_account: int = 0
    """So many questions whose account it is are not answered."""

    async def begin(self) -> LinkCode:
        if self.fault:
            raise self.fault
        self.begun += 1
        number = self.begun
        await asyncio.sleep(0)
        return LinkCode(
            user_code=f"CODE-{number}",
            verification_url="https://github.test/login/device",
            secret=VERIFIER,
            expires_at=NOW + timedelta(minutes=15),
            interval_s=0.01,
        )

    async def ask(self, code: LinkCode, brought: str) -> TokenPair | Waiting:
        assert code.secret == VERIFIER
        assert brought == (ADDRESS if self.returns_to else "")
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def account_of(self, tokens: TokenPair) -> Account:
        if self.faults_of_account:
            self.faults_of_account -= 1
            raise ConnectionError("gone")
        return Account(service=self.service, id="7", login="ann", tokens=tokens)


@dataclass
class World:
    login: FakeLogin
    links: AccountLinks
    store: MemoryAccountStore
    audit: MemoryAuditLog
    clock: list[datetime]
    told: asyncio.Queue[tuple[str, str, str]] = field(default_factory=asyncio.Queue)

    async def heard(self) -> str:
        async with asyncio.timeout(5):
            channel, user, text = await self.told.get()
        assert (channel, user) == ("C1", "U1")
        return text


@asynccontextmanager
async def world(*answers: Answer) -> AsyncIterator[World]:
    told: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()

    async def tell(channel: str, user: str, text: str) -> None:
        await told.put((channel, user, text))

    store, login, clock = MemoryAccountStore(), FakeLogin(list(answers)), [NOW]
    audit = MemoryAuditLog()
    async with asyncio.timeout(10), open_task_group() as group:
        links = AccountLinks(
            store, [login], audit=audit, group=group, tell=tell, now=lambda: clock[0]
        )
        yield World(login, links, store, audit, clock, told)
        links.close()


async def test_a_code_is_typed_in() -> None:
    """Whoever asks twice has one code; then the account is there, and they are told."""
    async with world(Waiting(interval_s=0.01), ConnectionError("gone"), PAIR) as one:
        for _ in range(2):
            said = await one.links.begin(ANN, "", channel="C1")
            assert "https://github.test/login/device" in said
            assert "`CODE-1`" in said
        assert "is linked: ann" in await one.heard()
        kept = await one.store.get(ANN, GITHUB)
        assert kept is not None
        assert kept.tokens == PAIR
        assert "is linked: ann" in await one.links.begin(ANN, "", channel="C1")
        assert one.login.begun == 1
        assert "is forgotten here" in await one.links.unlink(ANN, "")
        assert await one.store.get(ANN, GITHUB) is None
        assert "No GitHub account" in await one.links.unlink(ANN, "")
        kept_of = await one.audit.find(AuditQuery())
        assert sorted(entry.target for entry in kept_of) == ["link GitHub as ann", "unlink GitHub"]
        assert {(entry.user, entry.act) for entry in kept_of} == {("U1", Act.LINK)}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (LinkError("you have said no to it at GitHub"), "you have said no to it at GitHub"),
        (RuntimeError("a bug"), "could not be linked"),
    ],
)
async def test_it_comes_to_nothing(answer: Exception, told: str) -> None:
    """They are told, nothing is kept, and may begin again."""
    async with world(answer) as one:
        await one.links.begin(ANN, "", channel="C1")
        assert told in await one.heard()
        assert await one.store.get(ANN, GITHUB) is None
        assert "`CODE-2`" in await one.links.begin(ANN, "", channel="C1")


async def test_a_code_that_nobody_types_in() -> None:
    async with world(Waiting(interval_s=0.01)) as one:
        await one.links.begin(ANN, "", channel="C1")
        one.clock[0] += timedelta(minutes=15)
        assert "not typed in in time" in await one.heard()


async def test_who_wants_it_no_more_is_not_linked() -> None:
    """Though they type it in afterwards."""
    async with world(Waiting(interval_s=0.01)) as one:
        await one.links.begin(ANN, "", channel="C1")
        await one.links.unlink(ANN, "")
        one.login.answers = [PAIR]
        await asyncio.sleep(0.05)
        assert await one.store.get(ANN, GITHUB) is None
        assert one.told.empty()


@pytest.mark.parametrize("fault", [LinkError("no app"), ConnectionError("no app")])
async def test_there_is_no_code(fault: Exception) -> None:
    async with world() as one:
        one.login.fault = fault
        assert "cannot be linked now: no app" in await one.links.begin(ANN, "", channel="C1")


async def test_tokens_are_kept_while_it_is_asked_whose_they_are() -> None:
    """The code gives them once."""
    async with world(PAIR, LinkError("the code was used")) as one:
        one.login.faults_of_account = 2
        await one.links.begin(ANN, "", channel="C1")
        assert "is linked: ann" in await one.heard()
        assert one.login.asked == 1


async def test_who_asks_twice_at_once_has_one_code() -> None:
    async with world(Waiting(interval_s=0.01)) as one:
        async with open_task_group() as group:
            asked = [group.create_task(one.links.begin(ANN, "", channel="C1")) for _ in range(3)]
        assert len({task.result() for task in asked}) == 1


async def test_a_service_that_ends_waits_for_nobody_to_type() -> None:
    """Though the code would be good for a quarter of an hour."""
    async with world(Waiting(interval_s=600)) as one:
        await one.links.begin(ANN, "", channel="C1")
        one.login.answers = [PAIR]
        one.links.close()
    assert await one.store.get(ANN, GITHUB) is None


@asynccontextmanager
async def brief(login: FakeLogin, store: MemoryAccountStore) -> AsyncIterator[AccountLinks]:
    """Those of a process that ends with its answer."""

    async def tell(*_told: str) -> None:
        raise AssertionError("nothing goes on behind an answer")

    async with asyncio.timeout(10):
        yield AccountLinks(
            store, [login], audit=MemoryAuditLog(), group=None, tell=tell, now=lambda: NOW
        )


async def test_processes_that_end_with_their_answer() -> None:
    """The code is kept, and asked for when the person comes back, whichever process hears it."""
    login, store = (
        FakeLogin([Waiting(interval_s=5), ConnectionError("gone"), PAIR]),
        MemoryAccountStore(),
    )
    for shown in ("`/orion link GitHub` again", "`CODE-1`", "cannot be linked now: gone"):
        async with brief(login, store) as links:
            assert shown in await links.begin(ANN, "", channel="C1")
    async with brief(login, store) as links:
        assert "is linked: ann" in await links.begin(ANN, "", channel="C1")
        assert await store.find_code(ANN, GITHUB) is None
        assert (login.begun, login.asked) == (1, 3)


async def test_a_code_that_is_good_no_more() -> None:
    """It was refused, or is too old: there is another one. What was given up is forgotten."""
    login, store = FakeLogin([LinkError("no")]), MemoryAccountStore()
    async with brief(login, store) as links:
        for number in (1, 2):
            assert f"`CODE-{number}`" in await links.begin(ANN, "", channel="C1")
        code = await store.find_code(ANN, GITHUB)
        assert code is not None
        await store.keep_code(ANN, GITHUB, replace(code, expires_at=NOW))
        assert "`CODE-3`" in await links.begin(ANN, "", channel="C1")
        assert login.asked == 1
        await links.unlink(ANN, "")
        assert await store.find_code(ANN, GITHUB) is None


async def test_another_process_hears_it_first() -> None:
    """The code gives the account once; who comes second says nothing."""
    async with world(LinkError("the code was used")) as one:
        await one.links.begin(ANN, "", channel="C1")
        await one.store.link(ANN, Account(service=GITHUB, id="7", login="ann", tokens=PAIR))
        await one.store.drop_code(ANN, GITHUB)
        await until(lambda: not one.links._waiting)
        assert one.told.empty()


async def test_who_gives_it_up_at_another_process_is_not_linked() -> None:
    async with world(Waiting(interval_s=0.01)) as one:
        await one.links.begin(ANN, "", channel="C1")
        await one.store.drop_code(ANN, GITHUB)
        one.login.answers = [PAIR]
        await until(lambda: not one.links._waiting)
        assert await one.store.get(ANN, GITHUB) is None
        assert one.told.empty()


async def test_how_many_may_wait() -> None:
    async with world(Waiting(interval_s=0.01)) as one:
        people = [Owner(team="T1", person=f"U{number}") for number in range(10, 11 + MAX_WAITING)]
        said = [await one.links.begin(owner, "", channel="C1") for owner in people]
        assert ["Too many" in text for text in said] == [False] * MAX_WAITING + [True]


async def test_how_many_may_wait_for_what_they_brought() -> None:
    async with brought_back(ConnectionError("gone")) as one:
        people = [Owner(team="T1", person=f"U{number}") for number in range(10, 11 + MAX_WAITING)]
        for owner in people:
            await one.links.begin(owner, "github", channel="C1")
        said = [await one.links.begin(owner, f"github {ADDRESS}", channel="C1") for owner in people]
        assert ["Too many" in text for text in said] == [False] * MAX_WAITING + [True]


async def test_accounts_at_several_services() -> None:
    """Each by its name, in any case of its letters; without a name GitHub's is meant, or the only one."""
    store, audit = MemoryAccountStore(), MemoryAuditLog()
    github, crm = FakeLogin([PAIR]), FakeLogin([PAIR], service=mcp_service("crm"), title="Crm")

    async def tell(_channel: str, _user: str, _text: str) -> None:
        await asyncio.sleep(0)

    async with asyncio.timeout(10), open_task_group() as group:
        links = AccountLinks(
            store, [github, crm], audit=audit, group=group, tell=tell, now=lambda: NOW
        )
        only = AccountLinks(store, [crm], audit=audit, group=group, tell=tell, now=lambda: NOW)
        assert "There is no `wiki`" in await links.begin(ANN, "wiki", channel="C1")
        assert "`/orion link Crm`" in await links.begin(ANN, "wiki", channel="C1")
        await links.begin(ANN, "crm", channel="C1")
        await until(lambda: (ANN, crm.service) in store._rows)
        assert (github.begun, crm.begun) == (0, 1)
        await links.begin(ANN, "", channel="C1")
        await until(lambda: (ANN, GITHUB) in store._rows)
        assert "Crm account is linked" in await only.begin(ANN, "", channel="C1")
        assert "Crm account is forgotten" in await links.unlink(ANN, "CRM")
        assert await store.get(ANN, GITHUB) is not None
        assert "`/orion unlink GitHub`" in await links.unlink(ANN, "wiki")


@asynccontextmanager
async def brought_back(*answers: Answer) -> AsyncIterator[World]:
    """Accounts at a service from which people bring something back."""
    async with world(*answers) as one:
        one.login.returns_to = "https://orion.test/linked/github"
        yield one


async def test_an_address_is_brought_back() -> None:
    """The service is asked then and not before, again where it gives no answer; who brings it twice is not asked about twice."""
    async with brought_back(ConnectionError("gone"), PAIR) as one:
        said = await one.links.begin(ANN, "", channel="C1")
        assert "<https://github.test/login/device|" in said
        assert "`https://orion.test/linked/github`" in said
        assert one.login.asked == 0
        for _ in range(2):
            assert "I ask GitHub" in await one.links.begin(ANN, f"github {ADDRESS}", channel="C1")
        assert "is linked: ann" in await one.heard()
        assert one.login.asked == 2
        assert await one.store.find_code(ANN, GITHUB) is None
        kept = await one.store.get(ANN, GITHUB)
        assert kept is not None
        assert kept.tokens == PAIR


async def test_another_address_is_brought_back_after_a_wrong_one() -> None:
    async with brought_back(LinkError("that is not the address"), PAIR) as one:
        await one.links.begin(ANN, "github", channel="C1")
        await one.links.begin(ANN, f"github {ADDRESS}", channel="C1")
        assert "was not linked: that is not the address" in await one.heard()
        await one.links.begin(ANN, f"github {ADDRESS}", channel="C1")
        assert "is linked: ann" in await one.heard()


async def test_an_address_of_nothing_that_was_begun() -> None:
    """Or of something that is too old; and one where nothing is brought back."""
    async with brought_back(PAIR) as one:
        assert "too late, or" in await one.links.begin(ANN, f"github {ADDRESS}", channel="C1")
        await one.links.begin(ANN, "github", channel="C1")
        one.clock[0] += timedelta(minutes=15)
        assert "too late, or" in await one.links.begin(ANN, f"github {ADDRESS}", channel="C1")
        one.login.returns_to = ""
        assert "There is no `github" in await one.links.begin(ANN, "github x", channel="C1")
        assert one.login.asked == 0


async def test_a_service_that_gives_no_answer_to_what_was_brought() -> None:
    async with brought_back(ConnectionError("gone")) as one:
        await one.links.begin(ANN, "github", channel="C1")
        await one.links.begin(ANN, f"github {ADDRESS}", channel="C1")
        one.clock[0] += timedelta(minutes=15)
        assert "GitHub gave no answer in time" in await one.heard()


async def test_an_address_for_a_process_that_ends_with_its_answer() -> None:
    login, store = (
        FakeLogin([PAIR], returns_to="https://orion.test/linked/github"),
        MemoryAccountStore(),
    )
    async with brief(login, store) as links:
        await links.begin(ANN, "github", channel="C1")
    async with brief(login, store) as links:
        assert "is linked: ann" in await links.begin(ANN, f"github {ADDRESS}", channel="C1")
        assert await store.find_code(ANN, GITHUB) is None

"""Where processes find each other's grants, and what one Orion is called: on both databases."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.aio import open_task_group
from app.runs.testing import (
    GrantNews,
    ModelCall,
    ModelGrant,
    ReportedCall,
    RepositoryGrant,
    RunId,
    Usage,
)
from app.store.engine import UnreadableStoreError
from app.store.grants import LEFT_FOR
from app.store.installation import Installation
from app.store.runs import SqlRunStore, open_store
from app.store.tables import grants
from tests.building import T0, make_run
from tests.postgres import unreachable

RUN = make_run()
GRANT = ModelGrant(
    run_id=RUN.id,
    models=("m-1", "m-2"),
    expires_at=datetime.now(UTC) + timedelta(minutes=5),
    session_id="ses_1",
    repository=RepositoryGrant(url="https://github.com/o/r", branch="orion/x"),
    own_key_protocol="anthropic",
)
NOTHING = GrantNews()
SECRET, NEWER, OTHER = "first-" * 6, "newer-" * 6, "other-" * 6


def call_of(name: str, run_id: RunId = RUN.id, *, minutes: int = 0) -> ReportedCall:
    at = T0 + timedelta(minutes=minutes)
    call = ModelCall(
        model="m-1",
        started_at=at,
        first_token_at=None,
        ended_at=at,
        status=200,
        usage=Usage(input_tokens=3, model_calls=1),
    )
    return ReportedCall(id=name, run_id=run_id, call=call)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "orion.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def store(location: Path | str) -> AsyncIterator[SqlRunStore]:
    async with open_store(location) as store:
        await store.add(RUN)
        yield store


async def test_a_grant_is_found_without_its_key(store: SqlRunStore) -> None:
    """As it was opened last, until it is closed; which may be repeated."""
    await store.grants.open(replace(GRANT, own_key="sk-of-a-person"), process="one")
    assert await store.grants.find(RUN.id) == GRANT
    newer = replace(GRANT, models=("m-3",))
    await store.grants.open(newer, process="one")
    assert await store.grants.find(RUN.id) == newer
    for _ in range(2):
        assert await store.grants.close(RUN.id, process="one") == NOTHING
    assert await store.grants.find(RUN.id) is None


async def test_a_reported_call_is_taken_once(store: SqlRunStore) -> None:
    """By the process whose grant it is, however often it was reported; those of a closed grant are given back."""
    await store.grants.open(GRANT, process="one")
    first, second, late = call_of("b"), call_of("a", minutes=1), call_of("c", RunId("run_2"))
    assert await store.grants.report([second, first, late]) == {"c"}
    assert await store.grants.report([first]) == set()
    assert (await store.grants.take("other")) == NOTHING
    assert (await store.grants.take("one")).calls == (first, second)
    assert (await store.grants.take("one")) == NOTHING
    third = call_of("d")
    await store.grants.report([third])
    assert (await store.grants.close(RUN.id, process="one")).calls == (third,)
    assert await store.grants.report([third]) == {"d"}


async def test_only_who_opened_a_grant_last_closes_it(store: SqlRunStore) -> None:
    """One that was thought dead comes back too late: it takes nothing from its successor."""
    await store.grants.open(GRANT, process="frozen")
    await store.grants.report([call_of("a")])
    await store.grants.open(GRANT, process="next")
    assert await store.grants.take("frozen") == NOTHING
    assert await store.grants.close(RUN.id, process="frozen") == NOTHING
    assert await store.grants.find(RUN.id) == GRANT
    assert (await store.grants.take("next")).calls == (call_of("a"),)


async def test_an_effect_is_recorded_with_its_run(store: SqlRunStore) -> None:
    """Only while its grant is open; whoever executes it hears of it until then."""
    assert not await store.grants.note_effect(RUN.id)
    await store.grants.open(GRANT, process="one")
    assert await store.grants.note_effect(RUN.id)
    record = await store.get(RUN.id)
    assert record is not None
    assert record.has_outside_effect
    for _ in range(2):
        assert (await store.grants.take("one")).effects == {RUN.id}
    assert (await store.grants.close(RUN.id, process="one")).effects == {RUN.id}


async def test_what_dead_processes_left_goes_after_a_day(store: SqlRunStore) -> None:
    old = replace(GRANT, run_id=RunId("run_old"), expires_at=datetime.now(UTC) - 2 * LEFT_FOR)
    await store.grants.open(old, process="dead")
    await store.grants.report([call_of("a", old.run_id)])
    await store.grants.open(GRANT, process="one")
    assert await store.grants.find(old.run_id) is None
    with store._database.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(grants)) == 1
        assert connection.exec_driver_sql("SELECT count(*) FROM orion_grant_calls").scalar() == 0


@pytest.mark.postgresql
async def test_a_database_that_does_not_answer_is_an_os_error(postgres_url: str) -> None:
    """As the broker expects it; and all is well when it is back."""
    async with open_store(postgres_url) as store:
        await store.grants.open(GRANT, process="one")
        with unreachable(postgres_url):
            with pytest.raises(OSError, match="cannot be used now"):
                await store.grants.find(RUN.id)
            with pytest.raises(OSError, match="cannot be used now"):
                await store.grants.report([call_of("a")])
        assert await store.grants.find(RUN.id) == GRANT


async def test_all_processes_share_one_name_and_one_key(location: Path | str) -> None:
    """Though they start at once on an empty database; another database is another Orion."""
    found: list[Installation] = []

    async def start() -> None:
        async with open_store(location) as store:
            found.append(await store.installation.load())

    async with open_task_group() as group:
        for _ in range(6):
            group.create_task(start())
    assert len(found) == 6
    assert all(one == found[0] for one in found)
    assert len(found[0].signing_key) == 32
    assert found[0].signing_key.hex() not in repr(found[0])


async def test_another_secret_for_peoples_keys_is_refused(store: SqlRunStore) -> None:
    """It may be changed where all have both for a while; who has none is refused beside those that have one."""
    check = partial(store.installation.check_own_keys, adopts=True)
    await check([])
    await store.installation.check_own_keys([OTHER], adopts=False)  # looks, and leaves it open
    await check([SECRET])
    with pytest.raises(UnreadableStoreError, match=r"ORION_OWN_KEYS_SECRET is missing"):
        await check([])
    with pytest.raises(UnreadableStoreError, match=r"ORION_OWN_KEYS_SECRET is not the one") as told:
        await check([OTHER])
    assert OTHER not in str(told.value)
    await check([SECRET, NEWER])
    await check([NEWER, SECRET])
    await check([SECRET, NEWER])
    await check([NEWER, SECRET])
    await check([NEWER])
    with pytest.raises(UnreadableStoreError):
        await check([SECRET])

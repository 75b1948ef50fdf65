"""What every session store promises."""

from collections.abc import AsyncIterator
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.runs.testing import (
    NameTakenError,
    Session,
    SessionStatus,
    SessionStore,
)
from app.store.runs import open_store
from app.store.sessions import MemorySessionStore
from sandbox_runtime.task_group import together
from tests.building import T0, make_session


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    match request.param:
        case "memory":
            yield MemorySessionStore()
        case "sqlite":
            async with open_store(tmp_path / "orion.db") as sqlite:
                yield sqlite.sessions
        case _:
            async with open_store(request.getfixturevalue("postgres_url")) as postgres:
                yield postgres.sessions


async def test_add_is_once(store: SessionStore) -> None:
    """A thread's second record changes nothing."""
    session = make_session()
    assert await store.add(session) == session
    assert await store.add(replace(session, name="other-name", provider="docker")) == session


async def test_names_are_unique(store: SessionStore) -> None:
    """Two threads never share a name."""
    await store.add(make_session(1, name="same-name"))
    with pytest.raises(NameTakenError):
        await store.add(make_session(2, name="same-name"))
    assert await store.get(make_session(2).id) is None


async def test_every_field_survives(store: SessionStore) -> None:
    """What is written is read back, field by field."""
    await store.add(replace(make_session(), prompt="fix «it»\x01"))
    changed = await store.update(
        make_session().id,
        provider="docker",
        status=SessionStatus.EXITED,
        exit_code=137,
        agent="claude",
        model="m",
        branch="b",
        repo="o/r",
        used_at=T0,
        region="iad1",
        mount_dir="/srv/x",
        sandbox_id="s",
        container_name="c",
        snapshot_slug="n",
        agent_session_id="0f8f",
        heard_until="1795302364.000100",
        elsewhere={"vercel": "snap_ü"},
        detached="env_1",
        base_branch="main",
        chosen_model="m",
        kept_by="p-1",
        kept_until=T0,
        kept_environment="env_2",
    )
    assert changed is not None
    assert await store.get(changed.id) == changed
    assert not {f.name for f in fields(Session) if getattr(changed, f.name) in (None, "", {})}
    assert changed.elsewhere == {"vercel": "snap_ü"}
    assert changed.thread == make_session().thread


async def test_what_is_kept_is_taken_once(store: SessionStore) -> None:
    """Of several who would end or use a sandbox that one process keeps, one may; nobody takes what nobody keeps."""
    session = await store.add(make_session())
    assert not await store.take_kept(session.id, by="")
    await store.update(session.id, sandbox_id="s", kept_by="p-1", kept_until=T0)
    assert not await store.take_kept(session.id, by="p-2")
    taken = await together(
        store.take_kept(session.id, by="p-1"), store.take_kept(session.id, by="p-1")
    )
    assert sorted(taken) == [False, True]
    found = await store.get(session.id)
    assert found is not None
    assert (found.kept_by, found.kept_until, found.sandbox_id) == ("", None, "s")
    assert not await store.take_kept(make_session(2).id, by="p-1")


async def test_found_by_name_or_id(store: SessionStore) -> None:
    """A name is matched whole, an id by its beginning; nothing matches the empty text or a pattern."""
    first, second = await store.add(make_session(1)), await store.add(make_session(2))
    assert await store.find(first.name) == [first]
    assert await store.find(second.id[:12]) == [second]
    assert {one.id for one in await store.find("ses_")} == {first.id, second.id}
    for text in ("", "brave", "%", "no-such"):
        assert await store.find(text) == []


async def test_order_and_removal(store: SessionStore) -> None:
    """Latest used first; the unused oldest first; what is removed is gone and can be removed again."""
    sessions = [await store.add(make_session(number)) for number in (1, 2, 3)]
    assert await store.all() == sessions[::-1]
    await store.update(sessions[0].id, used_at=T0 + timedelta(hours=1))
    assert [one.id for one in await store.all()] == [
        one.id for one in (sessions[0], sessions[2], sessions[1])
    ]
    old = await store.unused_since(T0 + timedelta(minutes=30), limit=1)
    assert old == [sessions[1]]
    await store.remove(sessions[1].id)
    await store.remove(sessions[1].id)
    assert await store.get(sessions[1].id) is None
    assert await store.update(sessions[1].id, provider="x") is None

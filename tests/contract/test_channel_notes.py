"""What every store of channels' notes promises."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from app.runs.testing import ChannelNote, ChannelNoteStore, RunId
from app.store.memory import MemoryChannelNoteStore
from app.store.runs import open_store
from sandbox_runtime.task_group import open_task_group
from tests.building import T0

NOTE = ChannelNote(
    run_id=RunId("run_1"),
    team="T1",
    channel="C1",
    user="U1",
    name="Ada",
    at=T0,
    text="the database is PostgreSQL \u00e9\u00df\u6f22",
)


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[ChannelNoteStore, ChannelNoteStore]]:
    """As two processes have them."""
    if request.param == "memory":
        alone = MemoryChannelNoteStore()
        yield alone, alone
        return
    is_sqlite = request.param == "sqlite"
    where = tmp_path / "orion.db" if is_sqlite else request.getfixturevalue("postgres_url")
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(open_store(where)) for _ in range(2)]
        yield first.channel_notes, second.channel_notes


async def test_a_note_is_kept_once_under_a_number_of_its_own(
    stores: tuple[ChannelNoteStore, ChannelNoteStore],
) -> None:
    """Numbers begin with 1 in each place, a message is one note however often it is told, and places do not see each other's."""
    store, other = stores
    first = await store.add(NOTE)
    assert first == replace(NOTE, number=1)
    assert await other.add(replace(NOTE, text="told again")) == first
    second = await other.add(replace(NOTE, run_id=RunId("run_2")))
    assert second.number == 2
    elsewhere = [
        await store.add(
            replace(NOTE, run_id=RunId(f"run_{team}{channel}"), team=team, channel=channel)
        )
        for team, channel in (("T2", "C1"), ("T1", "C2"), ("T1", "D1"))
    ]
    assert [note.number for note in elsewhere] == [1, 1, 1]
    assert await other.of("T1", "C1") == [first, second]
    for note in elsewhere:
        assert await store.of(note.team, note.channel) == [note]
    assert await store.of("T2", "C2") == []


async def test_what_is_forgotten_leaves_its_number_alone(
    stores: tuple[ChannelNoteStore, ChannelNoteStore],
) -> None:
    """Nobody gets that number again, a repetition says the same, and another place's note of that number stays."""
    store, other = stores
    await store.add(NOTE)
    await store.add(replace(NOTE, run_id=RunId("run_2")))
    await store.add(replace(NOTE, run_id=RunId("run_3"), channel="C2"))
    for one in stores:
        assert await one.forget("T1", "C1", (2, 7), by="run_9") == [2]
    assert await other.forget("T1", "C1", (2,), by="run_10") == []
    assert [note.number for note in await store.of("T1", "C1")] == [1]
    assert [note.number for note in await store.of("T1", "C2")] == [1]
    again = await store.add(replace(NOTE, run_id=RunId("run_4")))
    assert again.number == 3
    gone = await store.add(replace(NOTE, run_id=RunId("run_2")))
    assert (gone.text, gone.user, gone.name, gone.forgotten_by) == ("", "", "", "run_9")


async def test_notes_of_two_processes_at_once_get_two_numbers(
    stores: tuple[ChannelNoteStore, ChannelNoteStore],
) -> None:
    """Whoever was slower gets the next one."""
    async with open_task_group() as group:
        for number in range(8):
            note = replace(NOTE, run_id=RunId(f"run_{number}"))
            group.create_task(stores[number % 2].add(note))
    found = await stores[0].of("T1", "C1")
    assert [note.number for note in found] == list(range(1, 9))
    assert len({note.run_id for note in found}) == 8


async def test_an_operator_finds_all_of_a_person_and_of_a_channel(tmp_path: Path) -> None:
    """For `orion notes`; what is forgotten is not among it."""
    async with open_store(tmp_path / "orion.db") as store:
        notes = store.channel_notes
        for number, (channel, user) in enumerate((("C1", "U1"), ("C1", "U2"), ("D1", "U1"))):
            run_id = RunId(f"run_{number}")
            await notes.add(replace(NOTE, run_id=run_id, channel=channel, user=user))
        found = {
            (channel, user): [note.run_id for note in await notes.find(channel=channel, user=user)]
            for channel in ("", "C1")
            for user in ("", "U1")
        }
        assert found == {
            ("", ""): ["run_0", "run_1", "run_2"],
            ("", "U1"): ["run_0", "run_2"],
            ("C1", ""): ["run_0", "run_1"],
            ("C1", "U1"): ["run_0"],
        }
        await notes.forget("T1", "C1", [1], by="operator")
        assert [note.run_id for note in await notes.find(channel="", user="U1")] == ["run_2"]

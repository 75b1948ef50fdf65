"""The crash matrix in short: harm at the points that matter most, and at random under load. In full: those that are long."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.__main__ import run
from tests.crash.killing import Row
from tests.crash.load import SMALL, run_load
from tests.crash.matrix import OVER_SOCKET, Section, run_section
from tests.crash.place import Place
from tests.crash.points import Point
from tests.crash.rig import ALONE, FROZEN, KILLED, Shape
from tests.crash.scenarios import CatchUp, CatchUpOverSocket, Pooled, Question, Refusal
from tests.e2e.harness import WITH_POOL

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.crash,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(400),
]

CHOSEN = {
    "after dispatcher.submit",
    "after slack.chat.postMessage[progress]",
    "after provider.create",
    "before process.events.item",
    "before store.update[answering]",
    "after slack.chat.update[end]",
}


CHOSEN_OF_TWO = {"after slack.chat.postMessage[progress]", "before process.events.item"}


async def test_killed_where_it_matters_most(tmp_path: Path, prepared: Path) -> None:
    """Accepted and not placed; posted and not recorded; with a sandbox; writing; ended and not told; told and not closed."""
    place = Place(directory=tmp_path, prepared=prepared)
    rows = await _rows(place, Section(scenario=Question()), CHOSEN)
    assert len(rows) == len(CHOSEN)
    assert [row for row in rows if row.faults] == []


@pytest.mark.long
@pytest.mark.postgresql
@pytest.mark.parametrize(
    "shape",
    [KILLED, FROZEN],
    ids=lambda shape: shape.key,
)
async def test_of_two_processes_the_other_finishes(
    tmp_path: Path, prepared: Path, postgres_server: str, shape: Shape
) -> None:
    """Posted and not recorded; writing. A frozen one does no harm when it goes on."""
    place = Place(directory=tmp_path, prepared=prepared, server_url=postgres_server)
    rows = await _rows(place, Section(scenario=Question()), CHOSEN_OF_TWO, shape=shape)
    assert len(rows) == len(CHOSEN_OF_TWO)
    assert [row for row in rows if row.faults] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "section",
    [
        Section(scenario=CatchUp()),
        Section(scenario=CatchUpOverSocket(), settings=OVER_SOCKET),
    ],
    ids=["http", "socket"],
)
async def test_killed_while_catching_up(tmp_path: Path, prepared: Path, section: Section) -> None:
    """With the first of two messages accepted, and with both but the place not noted: each is answered once."""
    chosen = {"after dispatcher.submit", "before heard.keep"}
    rows = await _rows(Place(directory=tmp_path, prepared=prepared), section, chosen)
    assert len(rows) == len(chosen)
    assert [row for row in rows if row.faults] == []


@pytest.mark.long
@pytest.mark.postgresql
@pytest.mark.parametrize("shape", [KILLED, FROZEN], ids=lambda shape: shape.key)
async def test_of_two_processes_the_other_catches_up(
    tmp_path: Path, prepared: Path, postgres_server: str, shape: Shape
) -> None:
    """The one that has claimed it comes to harm: the other one claims it then."""
    place = Place(directory=tmp_path, prepared=prepared, server_url=postgres_server)
    chosen = {"after heard.claim", "before heard.keep"}
    rows = await _rows(place, Section(scenario=CatchUp()), chosen, shape=shape)
    assert len(rows) == len(chosen)
    assert [row for row in rows if row.faults] == []


@pytest.mark.long
async def test_killed_where_a_sandbox_waited(tmp_path: Path, prepared: Path) -> None:
    """A run that was given it, before its agent was told the question and while it writes; the pool, while it makes the next."""
    section = Section(scenario=Pooled(), settings=WITH_POOL)
    chosen = {"before sandbox.write_files", "before process.events.item", "after provider.create"}
    rows = await _rows(Place(directory=tmp_path, prepared=prepared), section, chosen)
    assert len(rows) == len(chosen)
    assert [row for row in rows if row.faults] == []


@pytest.mark.long
async def test_killed_while_refusing(tmp_path: Path, prepared: Path) -> None:
    """Who is refused is told so, also when the service dies between the decision and the telling."""
    place = Place(directory=tmp_path, prepared=prepared)
    rows = await _rows(place, Section(scenario=Refusal()), {"before replies.refuse"})
    assert [row.faults for row in rows] == [()]


async def test_killed_at_random_under_load(
    tmp_path: Path, prepared: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every event twice, as mention and as message: nothing lost, nothing doubled, threads in order."""
    result = await run_load(Place(directory=tmp_path, prepared=prepared), SMALL)
    record_property("killed at random: last restart to last answer [s]", round(result.last_s, 1))
    assert result.faults == []
    assert (result.lost, result.doubled, result.disordered) == (0, 0, 0)
    assert result.pairs > 0


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.postgresql
@pytest.mark.timeout(3600)
async def test_each_twelfth_point_in_every_shape(
    tmp_path: Path, prepared: Path, postgres_server: str
) -> None:
    """Of every scenario, and at random under load; all of them by `make crash-test`."""
    place = Place(directory=tmp_path, prepared=prepared, server_url=postgres_server)
    rows, loads = await run(place, each=12, plans=[SMALL])
    assert [row for row in rows if not row.is_good] == []
    assert [fault for load in loads for fault in load.faults] == []


async def _rows(
    place: Place, section: Section, chosen: set[str], *, shape: Shape = ALONE
) -> list[Row]:
    rows: list[Row] = []

    def choice(point: Point) -> bool:
        is_middle = point.number > 1 or not point.step.endswith(".item")
        return is_middle and f"{point.side} {point.step}" in chosen

    await run_section(place, section, shape, tell=rows.append, choice=choice)
    return rows

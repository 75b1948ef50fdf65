"""The labelled replies, decided over the wire with the offline model as the judge: what the papers say of it is measured here."""

from pathlib import Path

from tests.follow_ups.labelled import (
    SETS,
    decide_all,
    every_of,
    matrix_of,
    open_stand_in,
    read_set,
    render,
)

SURE = ("closing", "name", "other_name", "two_party")
PAGE = Path("docs/testing.md").read_text()


def test_the_set_is_what_it_is_said_to_be() -> None:
    """Two hundred, about half of them for Orion, in many languages, none in both halves."""
    sets = {name: read_set(name) for name in SETS}
    both = [one for ones in sets.values() for one in ones]
    assert {name: len(ones) for name, ones in sets.items()} == dict.fromkeys(SETS, 100)
    assert 80 <= sum(one.is_addressed for one in both) <= 120
    assert len({one.language for one in both}) >= 9
    threads = [tuple(one.thread) for one in both]
    assert len(set(threads)) == len(threads)
    assert all(any(author == "Orion" for author, _ in thread) for thread in threads)


async def test_the_figures_of_the_papers_are_measured(tmp_path: Path) -> None:
    """With the offline model; the sure rules, which every model has, are wrong about nobody."""
    async with open_stand_in() as judge:
        rows = {name: await decide_all(judge, read_set(name), tmp_path) for name in SETS}
    assert render(rows) in PAGE
    every = every_of(rows)
    wrong = [row for row in every if row.decision.is_answered != row.reply.is_addressed]
    assert [row for row in wrong if row.decision.reason in SURE] == []
    assert sum(row.decision.reason in SURE for row in every) >= 20
    assert matrix_of(rows["tuned"]).is_good

"""No step of a run can be forgotten: what a port can do is either killed or named with the reason why not."""

import re
from pathlib import Path

import pytest

from app.playground.slack.web_api import ALL_METHODS
from tests.crash.killing import choose
from tests.crash.points import Mailbox, Order, Point, Tripwire
from tests.crash.steps import KILLED_IN, SLACK_CALLS, SLACK_SPARED, SPARED, bare, steps_of_ports

SLACK_ROOM = Path(__file__).parents[2] / "app" / "slack"


def test_every_step_of_a_port_is_killed_or_named_with_a_reason() -> None:
    """A new method of a port fails here until it has its place in `steps.py`; a name that is gone fails too."""
    killed = {step for steps in KILLED_IN.values() for step in steps}
    assert sorted([*killed, *SPARED]) == sorted(steps_of_ports())
    assert all(SPARED.values())


def test_every_slack_call_is_killed_or_named_with_a_reason() -> None:
    """As above, for the Web API methods that stand in the Slack room."""
    source = "".join(path.read_text() for path in SLACK_ROOM.glob("*.py"))
    called = {
        name for name in re.findall(r'"([a-z]+(?:\.[A-Za-z]+)+)"', source) if name in ALL_METHODS
    }
    assert called - {"apps.connections.open"} == {*SLACK_CALLS, *SLACK_SPARED}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("store.update[running]", "store.update"),
        ("process.events.item", "process.events"),
        ("slack.chat.update[end]", "slack.chat.update"),
    ],
)
def test_a_point_names_its_step(step: str, expected: str) -> None:
    """States, streams and kinds of messages are points of one step."""
    assert bare(step) == expected


def test_every_step_is_chosen_once_before_and_after_and_streams_in_their_middle() -> None:
    """Of both messages of a thread the first; reads are left out."""
    passed = [
        Point(step=step, side=side, whose=whose)
        for whose in ("later", "first")
        for step in ("store.get", "store.begin")
        for side in ("before", "after")
    ]
    item = Point(step="process.events.item", side="before", whose="first")
    assert choose([*passed, *[item] * 9], kills="of a run") == [
        Point(step="store.begin", side="before", whose="first"),
        Point(step="store.begin", side="after", whose="first"),
        item,
        Point(step="process.events.item", side="before", whose="first", number=5),
    ]


def test_the_tripwire_meets_the_armed_point_only(tmp_path: Path) -> None:
    """Not another side, not another run's, not the first time when the second is asked for."""
    mailbox = Mailbox(tmp_path)
    wire = Tripwire(mailbox)
    mailbox.arm(
        Order(
            point=Point(step="store.add", side="after", number=2), hold=True, spared=("run_spared",)
        )
    )
    assert wire.passes("store.add", "before", "run_1")
    assert wire.passes("store.add", "after", "run_1")
    assert wire.passes("store.add", "after", "run_spared")
    assert mailbox.victims() == []
    assert not wire.passes("store.add", "after", "run_2")
    assert [victim["run_id"] for victim in mailbox.victims()] == ["run_2"]

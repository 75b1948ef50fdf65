"""In which order tests run, and which of them run beside each other: a plugin of pytest.

Files go to the workers longest first, so that none is left with a long one at the end; but to one of them shortest first: these
mostly wait, while the processors are busy with the long ones. A test marked `alone` has the machine to itself,
because its times count; one worker runs all of these at the end, when there is nothing else that would have to wait for them.
"""

import fcntl
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.nodeid import coerce_node_id
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

MACHINE = Path(__file__)
GATE = Path(__file__).with_name("conftest.py")
"""Two files that every process of a test run finds; only their locks are used."""
ALONE = "alone"
_SUFFIX = f"@{ALONE}"
"""Of the ids of such tests, between a worker and the scheduler."""
_ABOUT_S = {"agents": 2.0, "e2e": 8.0, "browser": 3.0, "docker": 1.0, "machines": 1.0}
_OTHERS_S = 0.1
"""Of one test, as a guess by the first of its markers here: it only orders files. `python -m tests.times` has the truth.

Those of agents come later than they would by their time: what they need is installed beside the first tests.
"""


class _ByFile(LoadFileScheduling):  # type: ignore[misc]  # untyped
    """A file goes to one worker, whose fixtures it shares, but for its tests that run alone."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if len(self.nodes) > 1 and node is self.nodes[-1]:
            shortest = next((scope for scope in reversed(self.workqueue) if scope != ALONE), ALONE)
            self.workqueue.move_to_end(shortest, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return ALONE if nodeid.endswith(_SUFFIX) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """For `--dist loadfile`, which goes with `--no-loadscope-reorder`: the order is that of the collection."""
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order files; within a file the order stays."""
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not _is_alone(item):
            files[item.path].append(item)
    ordered = sorted(files.values(), key=_about_s, reverse=True)
    alone = [item for item in items if _is_alone(item)]
    if hasattr(config, "workerinput"):
        for item in alone:
            item._id = coerce_node_id(item.nodeid + _SUFFIX)
    items[:] = [item for found in (*ordered, alone) for item in found]


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker(ALONE) is not None


def _about_s(items: list[pytest.Item]) -> float:
    marks = [{mark.name for mark in item.iter_markers()} for item in items]
    return sum(
        next((about_s for name, about_s in _ABOUT_S.items() if name in names), _OTHERS_S)
        for names in marks
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Before the test's own time begins to count."""
    with _held(exclusively=_is_alone(item)):
        return (yield)


@contextmanager
def _held(*, exclusively: bool) -> Iterator[None]:
    """The machine, shared or not. Who waits for it alone is at the gate, so that those who share do not pass it by."""
    with MACHINE.open() as machine, GATE.open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield

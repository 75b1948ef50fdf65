"""Tests run beside each other; one marked `alone` has the machine to itself, because its times count."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MACHINE = Path(__file__)
GATE = Path(__file__).with_name("conftest.py")
"""Two files that every process of a test run finds; only their locks are used."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Before the test's own time begins to count."""
    with _held(exclusively=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _held(*, exclusively: bool) -> Iterator[None]:
    """The machine, shared or not. Who waits for it alone is at the gate, so that those who share do not pass it by."""
    with MACHINE.open() as machine, GATE.open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield

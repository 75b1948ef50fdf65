"""A column of a record is declared where the record is, and where its changes are: the two agree, and the table follows."""

from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
import sqlalchemy as sa
from sqlalchemy.engine.interfaces import CacheStats

from app.runs.testing import (
    DefaultChanges,
    Defaults,
    Run,
    RunChanges,
    Session,
    SessionChanges,
    SpentCall,
)
from app.store.tables import Now, defaults, model_calls, runs, sessions

FIXED = {
    Run: {"id", "created_at", "drained", "revision", "stop_requested_by", "stop_requested_at"},
    Session: {"id", "name", "thread", "prompt", "created_at"},
    Defaults: {"pr"},
}
"""What no change names: it stays, or has a method of the store's own."""


def _kinds(hint: Any) -> set[Any]:
    return set(get_args(hint)) if NoneType in get_args(hint) else {hint}


LEASE = {"owner", "due_at", "claimed_at", "needs_slot"}
"""Who has a run, and when it may be had."""


@pytest.mark.parametrize(
    ("record", "changes"),
    [(Run, RunChanges), (Session, SessionChanges), (Defaults, DefaultChanges)],
)
def test_changes_are_fields_of_the_record(record: Any, changes: type) -> None:
    """Each with the record's type, or without its None; each other field is one that does not change."""
    of_record, of_changes = get_type_hints(record), get_type_hints(changes)
    assert {field.name for field in fields(record)} == set(of_changes) | FIXED[record]
    assert not FIXED[record] & set(of_changes)
    for name, hint in of_changes.items():
        assert _kinds(hint) <= _kinds(of_record[name]), name


@pytest.mark.parametrize(
    ("record", "table", "beside"),
    [
        (Run, runs, {"thread_key", "team", "user", "message_ts", "error_code"} | LEASE),
        (Session, sessions, {"team", "channel", "thread_ts"}),
        (Defaults, defaults, {"team", "owner"}),
        (SpentCall, model_calls, set()),
    ],
)
def test_each_field_has_a_column(record: Any, table: Any, beside: set[str]) -> None:
    """And no column is there for nothing: what stands beside is looked up, as the code of an outcome is."""
    names = {field.name for field in fields(record)} - {"thread", "pr"}
    assert {column.name for column in table.columns} == names | beside
    hints = get_type_hints(record)
    for name in names:
        assert table.c[name].nullable is (NoneType in get_args(hints[name])), name


def test_a_statement_with_the_time_of_the_database_is_compiled_once() -> None:
    with sa.create_engine("sqlite://").connect() as connection:
        found = [connection.execute(sa.select(Now())).context.cache_hit for _ in range(2)]
    assert found == [CacheStats.CACHE_MISS, CacheStats.CACHE_HIT]

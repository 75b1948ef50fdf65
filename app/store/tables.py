"""The tables as this Orion reads and writes them. A column of a record is a field of its dataclass: its type decides the column's.

Who adds a field adds a migration for the databases that are there (`app/store/migrations`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, NewType, Union, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from typing_extensions import override

from app.approvals.records import Approval
from app.audit.records import AuditEntry
from app.errors import ErrorCode
from app.pull_requests.records import PullRequest
from app.runs.broker import ModelGrant
from app.runs.budget import SpentCall
from app.runs.model import ChannelChange, ChannelNote, ModelCall, Process, Run, RunState
from app.runs.options import Defaults
from app.runs.session import Session

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

metadata = sa.MetaData()


class AnyText(sa.TypeDecorator[str]):
    """Text of agents, as long as it likes. PostgreSQL's knows no NUL character, and would refuse the whole record for one.

    Source: PostgreSQL 15 documentation, 8.3 Character Types.
    """

    impl = sa.Text
    cache_ok = True

    @override
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return value.replace("\x00", "\ufffd")


class UtcTime(sa.TypeDecorator[datetime]):
    """Aware UTC times as seconds since the epoch: the same on both databases, microseconds kept."""

    impl = sa.Double
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> float | None:
        return None if value is None else value.timestamp()

    @override
    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value, UTC)


class Now(FunctionElement[datetime]):
    """The database's own clock, the same for all processes whatever theirs say; to the millisecond."""

    type = UtcTime()
    inherit_cache = True


@compiles(Now, "sqlite")
def _now_of_sqlite(_element: Now, _compiler: object, **_options: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Now, "postgresql")
def _now_of_postgres(_element: Now, _compiler: object, **_options: object) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class OneOf(sa.TypeDecorator[StrEnum]):
    """A member of a closed set, as its text."""

    impl = sa.String(64)
    cache_ok = True

    def __init__(self, members: type[StrEnum]) -> None:
        super().__init__()
        self.members = members

    @override
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(value)

    @override
    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> StrEnum | None:
        return None if value is None else self.members(value)


class Whole(sa.TypeDecorator[Any]):
    """A value of several parts, as JSON: dataclasses, tuples, mappings, Pydantic's models."""

    impl = sa.JSON(none_as_null=True)
    cache_ok = True  # by `kind`

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - any annotation
        super().__init__()
        self.kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    @override
    def process_bind_param(self, value: Any | None, dialect: sa.Dialect) -> Any:
        return None if value is None else self._adapter.dump_python(value, mode="json")

    @override
    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> Any:
        return None if value is None else self._adapter.validate_python(value)


def columns_of(
    record: type,
    *,
    keys: Collection[str] = ("id",),
    without: Collection[str] = (),
    types: Mapping[str, sa.types.TypeEngine[Any]] = MappingProxyType({}),
) -> Iterator[sa.Column[Any]]:
    """Yields a column for each field of a dataclass; one that may be None may be null.

    Args:
        record: the dataclass.
        keys: the fields that are the primary key.
        without: fields that are kept otherwise.
        types: of columns that do not follow from the field's type.
    """
    hints = get_type_hints(record)
    for field in fields(record):
        if field.name not in without:
            kind, may_be_none = _without_none(hints[field.name])
            yield sa.Column(
                field.name,
                types.get(field.name) or _column_type(kind),
                primary_key=field.name in keys,
                nullable=may_be_none,
            )


def _without_none(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401 - any annotation
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    (kind,) = kinds  # a column has one type
    return kind, len(kinds) < len(get_args(hint))


def _column_type(kind: Any) -> sa.types.TypeEngine[Any]:  # noqa: ANN401 - any annotation
    if isinstance(kind, NewType):
        return _column_type(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return OneOf(kind)
    simple: Mapping[Any, type[sa.types.TypeEngine[Any]]] = {
        str: AnyText,
        bool: sa.Boolean,
        int: sa.BigInteger,
        float: sa.Double,
        datetime: UtcTime,
    }
    return simple[kind]() if kind in simple else Whole(kind)


def insert_for(connection: sa.Connection, table: sa.Table) -> "postgresql.Insert | sqlite.Insert":
    """Returns an insert that may say what to do where a row is there."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - all its drivers come along

    return postgresql.insert(table)


def values_of(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Returns the fields of a record by their columns."""
    return {name: getattr(record, name) for name in _names_of(record.__class__)}


@cache
def _names_of(kind: type) -> Sequence[str]:
    return tuple(field.name for field in fields(kind))


schema = sa.Table(
    "orion_schema",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True),
    # The lowest version that an Orion may read and write to work on these tables; null = no lower one than theirs.
    sa.Column("oldest", sa.Integer, nullable=True),
)

runs = sa.Table(
    "orion_runs",
    metadata,
    *columns_of(Run),
    # From the outcome and the request, for finding them.
    sa.Column("error_code", OneOf(ErrorCode), nullable=True),
    sa.Column("thread_key", sa.String(128), nullable=False),
    sa.Column("team", sa.String(32), nullable=False),
    sa.Column("user", sa.String(32), nullable=False),
    sa.Column("message_ts", sa.String(32), nullable=False),
    # Who has it, and when it may be had: see `app/store/leases.py`.
    sa.Column("owner", sa.String(32), nullable=True),
    sa.Column("due_at", UtcTime, nullable=True),
    sa.Column("claimed_at", UtcTime, nullable=True),
    sa.Column("needs_slot", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Index("ix_orion_runs_thread", "thread_key", "message_ts"),
    sa.Index("ix_orion_runs_user", "team", "user", "created_at"),
    sa.Index("ix_orion_runs_state", "state", "team", "user", "created_at"),
    # For the newest ones, and for figures about all of them.
    sa.Index("ix_orion_runs_created", "created_at"),
    sa.Index("ix_orion_runs_delivery", "delivery"),
    sa.Index("ix_orion_runs_due", "due_at"),
)
_CONDITIONS = {
    "ix_orion_runs_delivery": "delivery != ''",
    "ix_orion_runs_due": "due_at IS NOT NULL",
}
"""Index -> of which rows it is."""


@sa.event.listens_for(metadata, "before_create")
def _limit_indexes(_: sa.MetaData, connection: sa.Connection, **__: object) -> None:
    """Here, as to name a condition for PostgreSQL loads all of its drivers, which whoever has SQLite need not wait for."""
    for index in runs.indexes:
        if index.name in _CONDITIONS:
            where = sa.text(_CONDITIONS[index.name])
            index.dialect_kwargs[f"{connection.dialect.name}_where"] = where


_RUN_FIELDS = tuple(field.name for field in fields(Run))


def in_states(table: sa.FromClause, states: Collection[RunState]) -> sa.ColumnElement[bool]:
    """Whether a row of `runs`, or of an alias of it, is in one of these states.

    They stand in the statement itself: a list of parameters would be spelled out anew each time it is carried out.
    """
    return table.c.state.in_([sa.literal_column(f"'{state}'") for state in sorted(states)])


def run_of(row: sa.RowMapping) -> Run:
    """Returns the record of a row of `runs`."""
    return Run(**{name: row[name] for name in _RUN_FIELDS})


processes = sa.Table(
    "orion_processes",
    metadata,
    *columns_of(Process),
    # Hashes of the settings that must agree, by names; null = of an Orion that did not tell them.
    sa.Column("settings", sa.JSON(none_as_null=True), nullable=True),
)

run_files = sa.Table(
    "orion_run_files",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("content", AnyText, nullable=False),
)

model_calls = sa.Table(
    "orion_model_calls",
    metadata,
    *columns_of(SpentCall),
    sa.Index("ix_orion_model_calls_run", "run_id"),
    sa.Index("ix_orion_model_calls_at", "at"),
)

sessions = sa.Table(
    "orion_sessions",
    metadata,
    *columns_of(Session, without=("thread",)),
    *(sa.Column(name, sa.String(32), nullable=False) for name in ("team", "channel", "thread_ts")),
    sa.Index("ix_orion_sessions_name", "name", unique=True),
    sa.Index("ix_orion_sessions_provider", "provider"),
    sa.Index("ix_orion_sessions_status", "status"),
    sa.Index("ix_orion_sessions_used", "used_at"),
)

defaults = sa.Table(
    "orion_defaults",
    metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("owner", sa.String(32), primary_key=True),
    *columns_of(Defaults, keys=(), without=("pr",)),  # that is for one message
)

channel_changes = sa.Table(
    "orion_channel_changes",
    metadata,
    *columns_of(ChannelChange, keys=("run_id",), types={"run_id": sa.String(64)}),
    sa.Index("ix_orion_channel_changes_channel", "team", "channel"),
)

welcomes = sa.Table(
    "orion_welcomes",
    metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("person", sa.String(32), primary_key=True),
)

muted_threads = sa.Table(
    "orion_muted_threads",
    metadata,
    sa.Column("thread_key", sa.String(128), primary_key=True),
    sa.Column("is_muted", sa.Boolean, nullable=False),
    # Who said so last, in which message of the thread.
    sa.Column("user", sa.String(32), nullable=False),
    sa.Column("message_ts", sa.String(32), nullable=False),
)

channel_notes = sa.Table(
    "orion_channel_notes",
    metadata,
    *columns_of(ChannelNote, keys=("run_id",), types={"run_id": sa.String(64)}),
    sa.Index("ix_orion_channel_notes_number", "team", "channel", "number", unique=True),
    sa.Index("ix_orion_channel_notes_user", "team", "user"),
)

approvals = sa.Table(
    "orion_approvals",
    metadata,
    *columns_of(Approval, types={"id": sa.String(64), "run_id": sa.String(64)}),
    # Until then somebody else brings its card up to date.
    sa.Column("telling_until", UtcTime, nullable=True),
    sa.Index("ix_orion_approvals_run", "run_id", "number", unique=True),
    sa.Index("ix_orion_approvals_thread", "thread_key"),
    sa.Index("ix_orion_approvals_told", "is_told"),
    sa.Index("ix_orion_approvals_state", "team", "state"),
)

approval_hits = sa.Table(
    "orion_approval_hits",
    metadata,
    sa.Column("rule", AnyText, primary_key=True),
    sa.Column("hits", sa.BigInteger, nullable=False),
)

audit = sa.Table(
    "orion_audit",
    metadata,
    *columns_of(AuditEntry, types={"id": sa.String(128)}),
    sa.Index("ix_orion_audit_at", "at"),
)

pull_requests = sa.Table(
    "orion_pull_requests",
    metadata,
    *columns_of(PullRequest, types={"id": sa.String(64), "run_id": sa.String(64)}),
    # Until then that process looks after it, while it lives.
    sa.Column("claimed_until", UtcTime, nullable=True),
    sa.Column("claimed_by", sa.String(32), nullable=True),
    sa.Index("ix_orion_pull_requests_next", "next_at"),
    sa.Index("ix_orion_pull_requests_run", "run_id"),
)

own_keys = sa.Table(
    "orion_own_keys",
    metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("person", sa.String(32), primary_key=True),
    sa.Column("protocol", sa.String(16), primary_key=True),
    sa.Column("sealed", AnyText, nullable=False),
)

accounts = sa.Table(
    "orion_accounts",
    metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("person", sa.String(32), primary_key=True),
    sa.Column("service", sa.String(16), primary_key=True),
    sa.Column("account_id", AnyText, nullable=False),
    sa.Column("login", AnyText, nullable=False),
    sa.Column("sealed", AnyText, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=True),
    # Until then somebody refreshes its tokens.
    sa.Column("refreshing_until", UtcTime, nullable=True),
)

account_codes = sa.Table(
    "orion_account_codes",
    metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("person", sa.String(32), primary_key=True),
    sa.Column("service", sa.String(16), primary_key=True),
    sa.Column("verification_url", AnyText, nullable=False),
    sa.Column("sealed", AnyText, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("interval_s", sa.Double, nullable=False),
)

spent_days = sa.Table(
    "orion_spent_days",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),  # as in 2026-11-25, of UTC
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("cost", sa.BigInteger, nullable=False),
)

grants = sa.Table(
    "orion_grants",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("process", sa.String(64), nullable=False),
    sa.Column("content", Whole(ModelGrant), nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("has_effect", sa.Boolean, nullable=False),
)

grant_calls = sa.Table(
    "orion_grant_calls",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("call", Whole(ModelCall), nullable=False),
    sa.Index("ix_orion_grant_calls_run", "run_id"),
)

installation = sa.Table(
    "orion_installation",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),  # there is one
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("signing_key", sa.String(64), nullable=False),  # hexadecimal
    sa.Column("own_keys_check", sa.String(64), nullable=False),
)

slack_facts = sa.Table(
    "orion_slack_facts",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.JSON(none_as_null=True), nullable=False),
    sa.Column("at", UtcTime, nullable=False),  # when Slack told it
)

heard = sa.Table(
    "orion_heard",
    metadata,
    sa.Column("place", sa.String(32), primary_key=True),  # a channel's id; empty = everywhere
    sa.Column("until", UtcTime, nullable=False, server_default=sa.text("0")),
    sa.Column("owner", sa.String(32), nullable=True),  # the process that catches up
)

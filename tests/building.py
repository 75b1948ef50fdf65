"""Runs, requests and sessions for tests."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from app.audit.records import Act, AuditEntry
from app.runs.testing import (
    AttachedFile,
    MessageContent,
    Run,
    RunRequest,
    Session,
    Surface,
    Thread,
    run_id_for,
    session_id_for,
)

T0 = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def make_request(
    *,
    ts: str = "1795302364.000100",
    thread_ts: str | None = None,
    channel: str = "C1",
    user: str = "U1",
    text: str = "hello",
    surface: Surface = Surface.CHANNEL,
    is_external: bool = False,
    received_at: datetime | None = None,
    file_names: tuple[str, ...] = (),
) -> RunRequest:
    return RunRequest(
        run_id=run_id_for(team="T1", channel=channel, message_ts=ts),
        team="T1",
        channel=channel,
        thread_ts=thread_ts or ts,
        message_ts=ts,
        user=user,
        text=text,
        surface=surface,
        is_external=is_external,
        content=MessageContent(files=tuple(AttachedFile(name=name) for name in file_names)),
        received_at=received_at or T0,
    )


def make_run(request: RunRequest | None = None, *, age_s: float = 0.0) -> Run:
    request = request or make_request()
    return Run(id=request.run_id, request=request, created_at=T0 - timedelta(seconds=age_s))


def make_entry(**changes: Any) -> AuditEntry:
    entry = AuditEntry(
        id="entry",
        at=T0,
        team="T1",
        channel="C1",
        user="U1",
        act=Act.ASK,
        target="",
        is_allowed=True,
        reason="nothing forbids it",
        run_id="run_1",
    )
    return replace(entry, **changes)


def make_session(number: int = 1, *, name: str = "") -> Session:
    thread = Thread(team="T1", channel="C1", thread_ts=f"{number}.000001")
    return Session(
        id=session_id_for(thread),
        name=name or f"brave-otter-{number}",
        thread=thread,
        provider="local",
        created_at=T0 + timedelta(minutes=number),
        used_at=T0 + timedelta(minutes=number),
    )


def saying(text: str) -> Callable[[RunRequest], RunRequest]:
    """Returns the change of a question into another one."""
    return lambda request: request.model_copy(update={"text": text})

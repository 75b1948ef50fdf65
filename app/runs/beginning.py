"""The record of a thread's session when a run begins to use its files."""

from dataclasses import replace
from datetime import datetime

from app.runs.model import Run
from app.runs.session import (
    NameTakenError,
    Session,
    SessionStatus,
    SessionStore,
    session_id_for,
)
from sandbox_runtime.provider import Sandbox

NAME_ATTEMPTS = 5
PROMPT_CHARS = 200


async def record_begin(
    store: SessionStore,
    session: Session | None,
    run: Run,
    sandbox: Sandbox,
    *,
    provider: str,
    agent: str,
    model: str,
    chosen_model: str,
    mount_dir: str,
    masked_prompt: str,
    now: datetime,
) -> Session:
    """The record, made or brought up to date; safe to repeat."""
    if session is not None:
        if session.agent != agent:
            session = session.without_memory()
        updated = await store.update(
            session.id,
            status=SessionStatus.RUNNING,
            exit_code=None,
            provider=provider,
            agent=agent,
            model=model,
            mount_dir=mount_dir,
            snapshot_slug=session.snapshot_slug,
            agent_session_id=session.agent_session_id,
            sandbox_id=sandbox.id,
            container_name=sandbox.container_name,
            extra=session.begun(chosen_model=chosen_model),
            used_at=now,
        )
        if updated is not None:
            return updated
    for _ in range(NAME_ATTEMPTS):
        made = Session(
            id=session_id_for(run.thread),
            name=_new_name(),
            thread=run.thread,
            provider=provider,
            agent=agent,
            model=model,
            mount_dir=mount_dir,
            prompt=masked_prompt[:PROMPT_CHARS],
            sandbox_id=sandbox.id,
            container_name=sandbox.container_name,
            created_at=now,
            used_at=now,
        )
        try:
            return await store.add(replace(made, extra=made.begun(chosen_model=chosen_model)))
        except NameTakenError:
            continue
    raise AssertionError(f"{NAME_ATTEMPTS} random names were all taken")


def _new_name() -> str:
    from coolname import generate_slug  # noqa: PLC0415 - reads its word lists

    return str(generate_slug(2))

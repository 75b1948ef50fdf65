"""Which sandboxes a start keeps of those that the last process left."""

from pathlib import Path

from app.compose.core import sessions_to_keep
from app.runs.testing import Outcome, RunState, Session, session_id_for
from app.store.runs import open_store
from tests.building import T0, make_request, make_run

_ENDED = Outcome(state=RunState.SUCCEEDED, answer="told soon")


async def test_only_where_a_run_may_go_on(tmp_path: Path) -> None:
    """Not those of a run that waits, or whose outcome is only told: they would stay until their thread is forgotten."""
    async with open_store(tmp_path / "orion.db") as store:
        for number, state in enumerate((RunState.QUEUED, RunState.RUNNING, RunState.ANSWERING)):
            run = make_run(make_request(ts=f"{number + 1}.000100"))
            await store.add(run)
            await store.update(run.id, state=state)
            if state is RunState.ANSWERING:
                await store.update(run.id, outcome=_ENDED)
            await store.sessions.add(
                Session(
                    id=session_id_for(run.thread),
                    name=str(state),
                    thread=run.thread,
                    provider="local",
                    sandbox_id=f"of-{state}",
                    created_at=T0,
                    used_at=T0,
                )
            )
        kept = await sessions_to_keep(store)
        assert [session.sandbox_id for session in kept] == ["of-running"]

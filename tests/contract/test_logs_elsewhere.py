"""Following an agent that works on another host."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from app.cli.commands.logs import attach, show_log
from app.errors import ErrorCode
from app.runs.testing import Outcome, RunFileKind, RunState, session_id_for
from app.settings.settings import load_settings
from app.store.engine import place_of
from app.store.runs import open_store
from sandbox_runtime.task_group import open_task_group
from tests.building import make_session
from tests.dispatchers import new_run
from tests.waiting import until

pytestmark = pytest.mark.postgresql

FAILED = Outcome(state=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE)
FOLLOW = partial(show_log, follow=True, tail=None)


@pytest.mark.parametrize(("command", "is_here"), [(FOLLOW, False), (attach, False), (attach, True)])
async def test_who_cannot_be_followed_from_here_is_named(
    postgres_url: str,
    tmp_path: Path,
    command: Callable[..., Coroutine[None, None, object]],
    *,
    is_here: bool,
) -> None:
    """Beside the lines, at once; what was printed is there at the end."""
    given = {"orion_database_url": postgres_url, "orion_state_dir": str(tmp_path)}
    settings = load_settings(env_file=None, given=given, toml=None)
    said: list[str] = []
    written: list[str] = []
    async with open_store(postgres_url) as store, open_task_group() as group:
        host = place_of(tmp_path) if is_here else "there"
        store.leases.describe(place="", is_working=True, host=host)
        await store.leases.join()
        run = new_run()
        await store.add(run)
        await store.leases.schedule(run.id, state=RunState.PLACED)
        (claimed,) = await store.leases.claim(slots=1, waits_s=1000)
        await store.begin(claimed)
        session = replace(make_session(), thread=run.thread, id=session_id_for(run.thread))
        await store.sessions.add(session)
        following = command(settings, session.name, write=written.append, say=said.append)
        work = group.create_task(following)
        await until(lambda: said)
        await store.files.save(run.id, RunFileKind.LOG, "all that it printed")
        await store.update(run.id, state=RunState.FAILED, outcome=FAILED)
        await work
        unseen = [line for line in said if line.startswith("not seen from this host")]
        assert len(unseen) == (0 if is_here else 1)
        assert all(f"agents of {store.leases.process.name} print" in line for line in unseen)
    assert written == ["all that it printed"]

"""A state directory that an older Orion has worked in: raised, then served."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from app.runs.testing import RunState, run_id_for
from tests.e2e.harness import World, open_orion
from tests.e2e.orion_process import run_cli, scrubbed_environment

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

OLD_FILE = Path("tests/data/store/version-6.db.gz")


@pytest.fixture
def old_state(state_dir: Path) -> Path:
    """With the database that an older Orion has made."""
    state_dir.mkdir(mode=0o700)
    (state_dir / "orion.db").write_bytes(gzip.decompress(OLD_FILE.read_bytes()))
    return state_dir


async def test_what_an_older_orion_left_goes_on(
    world: World, old_state: Path, prepared: Path
) -> None:
    """With the engine's own tables in the file: new questions are answered, and one that waited for an hour is told so."""
    environment = scrubbed_environment() | {"ORION_STATE_DIR": str(old_state)}
    code, said = await run_cli("migrate", environment=environment, directory=old_state)
    assert (code, "raised from 6" in said) == (0, True)
    async with open_orion(world, old_state, prepared) as stage:
        assert "offline model" in await stage.ask("@Orion what is the weather?")
        waited = run_id_for(team="T0PLAY", channel="C0OLD", message_ts="1795302364.000100")
        async with asyncio.timeout(60):
            while (run := await stage.orion.run(waited)) is None or not run.state.is_final:
                await asyncio.sleep(0.1)
        assert run.state is RunState.FAILED
        assert run.delivery.startswith("failed(")  # its channel is nowhere
        code, listed = await stage.cli("runs", "list", "--json", "--limit", "100")
        assert (code, len(json.loads(listed))) == (0, 7)

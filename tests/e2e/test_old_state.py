"""A state directory that an older Orion has worked in: raised, then served."""

import asyncio
import gzip
import json
import tarfile
from pathlib import Path

import pytest

from app.runs.testing import RunState, run_id_for
from tests.e2e.harness import Stage, World, open_orion, text_of
from tests.e2e.orion_process import run_cli, scrubbed_environment

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

OLD_FILE = Path("tests/data/store/version-6.db.gz")
OLD_THREAD = Path("tests/data/store/version-6-thread.tar.gz")
"""A state directory without its environments: a thread has written two files and chosen a model."""
OLD_TS = "1795614955.862476"
"""Of that thread's first message, in the channel general."""


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


@pytest.fixture
def old_thread(state_dir: Path, prepared: Path) -> Path:
    """A state directory that an older Orion has made; its environments are the prepared ones, by the names that it gave them."""
    state_dir.mkdir(mode=0o700)
    with tarfile.open(OLD_THREAD) as archive:
        archive.extractall(state_dir, filter="data")
    ready = {name: _snapshot_of(prepared, snapshot) for name, snapshot in _names(prepared).items()}
    for name, snapshot in _names(state_dir).items():
        if name in ready:
            old, new = _snapshot_of(state_dir, snapshot)["environment"], ready[name]["environment"]
            link = state_dir / "environments" / old
            link.parent.mkdir(exist_ok=True)
            link.symlink_to((prepared / "environments" / new).resolve())
    return state_dir


@pytest.mark.long
async def test_a_thread_of_an_older_orion_has_its_files(
    world: World, old_thread: Path, prepared: Path
) -> None:
    """Work and home directory, the chosen model, the sandbox's name; raised and served by this Orion."""
    environment = scrubbed_environment() | {"ORION_STATE_DIR": str(old_thread)}
    code, said = await run_cli("migrate", environment=environment, directory=old_thread)
    assert (code, "raised from 6" in said) == (0, True)
    async with open_orion(world, old_thread, prepared, ORION_RETENTION_DAYS="3650") as stage:
        await _say_at(stage, OLD_TS)
        ts = await stage.client.say("@Orion run: cat notes ~/memory", thread_ts=OLD_TS)
        assert "4711\nkept" in text_of(await stage.answer(ts, thread_ts=OLD_TS))
        assert (await stage.record(ts)).model == "claude-opus-5-5"
        listed = json.loads((await stage.cli("sandboxes", "list", "--json"))[1])
        assert [row["name"] for row in listed] == ["illustrious-kangaroo"]


def _names(state_dir: Path) -> dict[str, str]:
    """The snapshot of each name."""
    rows = [json.loads(path.read_text()) for path in (state_dir / "names").iterdir()]
    return {row["name"]: row["snapshot"] for row in rows}


def _snapshot_of(state_dir: Path, snapshot: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(
        (state_dir / "snapshots" / snapshot / "snapshot.json").read_text()
    )
    return found


async def _say_at(stage: Stage, ts: str) -> None:
    """A message of this ts stands in the channel general."""
    workspace = stage.world.fake_slack.workspace
    messages = workspace.messages[stage.channel_id("general")]
    message = messages.pop(await stage.client.say("not for the bot"))
    message.ts = ts
    messages[ts] = message

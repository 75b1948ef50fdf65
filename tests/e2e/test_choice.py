"""Two agents in one service: asked for by a message, kept by its thread, set as a default, shown, misspelt."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from app.errors import ErrorCode
from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(300),
]

PARTS = ("environments", "snapshots", "names")


@pytest.fixture(scope="session")
def prepared_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environments of both agents in one state directory, as links."""
    both = tmp_path_factory.mktemp("both")
    for prepared in map(prepared_state_dir, ("anthropic", "claude")):
        for found in (one for part in PARTS for one in (prepared / part).iterdir()):
            target = both / found.parent.name / found.name
            if target.exists():
                continue  # the base, which both have
            target.parent.mkdir(exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, target, copy_function=os.link, symlinks=True)
            else:
                shutil.copy2(found, target, follow_symlinks=False)
    return both


@pytest.mark.long
async def test_two_agents_in_one_service(prepared_both: Path, tmp_path: Path) -> None:
    """The thread keeps its agent and its files when it changes the agent, and the new one knows what was said."""
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), prepared_both) as stage,
    ):
        ts = await stage.client.say("@Orion run: echo 4711 > kept.txt")
        await stage.answer(ts)
        assert (await stage.record(ts)).agent == "anthropic"

        second = await stage.client.say(
            "@Orion use claude: model=opus run: cat kept.txt", thread_ts=ts
        )
        assert "4711" in text_of(await stage.answer(second, thread_ts=ts))
        changed = await stage.record(second)
        assert (changed.agent, changed.model[:11]) == ("claude", "claude-opus")

        third = await stage.client.say("@Orion what did I ask before?", thread_ts=ts)
        assert "cat kept.txt" in text_of(await stage.answer(third, thread_ts=ts))
        kept = await stage.record(third)
        assert (kept.agent, kept.model) == ("claude", changed.model)
        code, shown = await stage.cli("runs", "show", kept.id, "--json")
        assert code == 0
        row = json.loads(shown)
        assert (row["agent"], row["model"]) == ("claude", kept.model)
        trace = await world.whole_trace(kept.trace_id)
        assert '"claude"' in json.dumps(trace)
        assert kept.model in json.dumps(trace)


async def test_settings_and_misspelt_options(prepared: Path, tmp_path: Path) -> None:
    """Defaults hold for the next thread, `settings` says from whom each value comes, and what is misspelt is refused."""
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), prepared) as stage,
    ):
        ts = await stage.client.say("@Orion settings channel agent=claude model=opus")
        assert "agent: `claude` (channel)" in text_of(await stage.answer(ts))
        assert stage.orion.log_lines("sandbox.created") == []

        ts = await stage.client.say("@Orion settings agent=anthropic")
        shown = text_of(await stage.answer(ts))
        assert "agent: `anthropic` (you)" in shown
        assert "(default)" in shown
        assert "model: `opus`" not in shown, "a model of another agent's"
        ts = await stage.client.say("@Orion use claude settings")
        shown = text_of(await stage.answer(ts))
        assert "agent: `claude` (message)" in shown
        assert "opus" in shown
        ts = await stage.client.say("@Orion settings reset")
        assert "agent: `claude` (channel)" in text_of(await stage.answer(ts))

        for wrong in (
            "agent=cluade hi",
            "use cluade: hi",
            "modle=opus hi",
            "settings agnet=claude",
        ):
            ts = await stage.client.say(f"@Orion {wrong}")
            run = await stage.ended(ts)
            assert run.result.error_code is ErrorCode.REQUEST_INVALID, wrong
            assert "did you mean" in run.result.detail, wrong


async def test_why_a_run_had_what_it_had(prepared: Path, tmp_path: Path) -> None:
    """From whom each setting came, in its thread for whoever asks there, and for the operator; what is changed since changes nothing of it."""
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), prepared) as stage,
    ):
        ts = await stage.client.say("@Orion use claude: hello")
        run = await stage.ended(ts)
        code, shown = await stage.cli("runs", "show", run.id)
        assert code == 0, shown
        assert "settings       agent: claude (message)" in shown
        assert "settings       time: 600 s (ORION_RUN_TIMEOUT_S)" in shown
        async with asyncio.timeout(10):  # they are kept in the background
            while "  execute-agent" not in shown:  # of slices, those of the last one
                _, shown = await stage.cli("runs", "show", run.id)
        steps = [
            line.partition(" s  ")[2] for line in shown.splitlines() if line.startswith("trace ")
        ]
        assert steps.index("queue-wait") < steps.index("execute-agent")
        assert any(step.startswith("  claude-") for step in steps)
        await stage.answer(await stage.client.say("@Orion settings agent=anthropic"))
        asked = await stage.client.say("@Orion settings", thread_ts=ts)
        told = text_of(await stage.answer(asked, thread_ts=ts))
        now, _, then = told.partition(f"The last run here, `{run.id}`, had:")
        assert "agent: `claude` (thread)" in now
        assert "agent: `claude` (message)" in then
        assert "time: `600 s` (ORION_RUN_TIMEOUT_S)" in then

"""Who may do what, in the whole service: a change of Slack's user group, and of the file, counts within seconds."""

import asyncio
import json
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import COLLEAGUE, YOU
from app.runs.testing import RunState
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

COUNTS_WITHIN_S = 5.0
TOML = """
[groups]
oncall = ["S0ONCALL"]

[[permissions]]
who = "oncall"
agents = "anthropic"

[[permissions]]
who = "everyone"
agents = "claude"
"""


async def _until(stage: Stage, state: RunState, *, user: str = YOU) -> str:
    """Asks until it ends so; gives the last answer."""
    async with asyncio.timeout(COUNTS_WITHIN_S + 15):
        while True:
            ts = await stage.client.say("@Orion hello", user=user)
            run = await stage.ended(ts)
            if run.state is state:
                return text_of(await stage.answer(ts))
            assert run.result.error_code in (None, ErrorCode.NOT_ALLOWED)


async def test_groups_and_the_file_count_as_they_are_now(tmp_path: Path) -> None:
    """Told with the rule and what may be had."""
    state_dir = new_state_dir(tmp_path)
    async with (
        open_world() as world,
        open_orion(world, state_dir, prepared_state_dir(), toml=TOML) as stage,
    ):
        said = await _until(stage, RunState.FAILED)
        assert "Anthropic is not for you here; of agents you may have: claude" in said
        await stage.client.change_usergroup("S0ONCALL", YOU)
        await _until(stage, RunState.SUCCEEDED)
        await _until(stage, RunState.FAILED, user=COLLEAGUE)
        await stage.client.change_usergroup("S0ONCALL", COLLEAGUE)
        await _until(stage, RunState.FAILED)
        changed = TOML.replace('agents = "claude"', 'agents = "anthropic"')
        await asyncio.to_thread((stage.orion.directory / "orion.toml").write_text, changed)
        await _until(stage, RunState.SUCCEEDED)
        code, said = await stage.cli("audit", "--refused", "--user", COLLEAGUE, "--json")
        assert code == 0, said
        entries = json.loads(said)
        assert {(one["act"], one["is_allowed"]) for one in entries} == {("ask", False)}
        assert all(one["reason"].endswith("(permissions[1] of orion.toml)") for one in entries), (
            said
        )
        code, said = await stage.cli("audit", "--run", entries[0]["run_id"])
        assert code == 0, said
        assert [line.split()[1:3] for line in said.splitlines()] == [
            ["refused", COLLEAGUE],
            ["allowed", COLLEAGUE],
        ]
        code, said = await stage.cli("audit", "--act", "aks")
        assert (code, said) == (
            2,
            "--act: there are ask, settings, memory, own-keys, link, stop, approve, not 'aks'\n",
        )

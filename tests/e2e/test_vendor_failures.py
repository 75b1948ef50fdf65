"""When its model fails, each agent's run has the same code, whatever its command line says of it."""

from pathlib import Path

import pytest

from app.errors import ErrorCode
from tests.e2e.harness import open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import PREPARED, prepared_state_dir

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(600),
]

CODES = {
    "!429": ErrorCode.MODEL_RATE_LIMITED,
    "!529": ErrorCode.MODEL_OVERLOADED,
    "!500": ErrorCode.MODEL_UNAVAILABLE,
    "!cut": ErrorCode.MODEL_UNAVAILABLE,
    "!garbage": ErrorCode.MODEL_UNAVAILABLE,
    "!context": ErrorCode.MODEL_CONTEXT_EXCEEDED,
}
ANSWERED_S = 300.0
"""Some try again for minutes."""


@pytest.mark.parametrize("agent", PREPARED)
async def test_each_failure_has_its_code(agent: str, tmp_path: Path) -> None:
    """All at once, in threads of their own."""
    async with (
        open_world() as world,
        open_orion(
            world, new_state_dir(tmp_path), prepared_state_dir(agent), ORION_AGENT=agent
        ) as stage,
    ):
        asked = {await stage.client.say(f"@Orion {word}"): word for word in CODES}
        found = {}
        for ts, word in asked.items():
            await stage.answer(ts, timeout_s=ANSWERED_S)
            found[word] = (await stage.record(ts)).result.error_code
        assert found == CODES

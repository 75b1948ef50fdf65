"""Each vendor's command line, and our own agent, use the operator's MCP servers: one outside, whose key stays there, beside one that is dead and one that hangs."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.notes_server import CANARY, open_notes, open_silence
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import VENDORS, prepared_state_dir

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(600),
]


_NAMELESS = ("gemini",)
"""Says that there are some."""
_SLOW = ("anthropic", "copilot", "gemini", "opencode")
"""A server that hangs delays them by ten seconds to a minute."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=[pytest.mark.long] if name in _SLOW else [])
        for name in ("anthropic", *VENDORS)
    ],
)
def prepared(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """An agent, and a state directory with its environment."""
    return request.param, prepared_state_dir(request.param)


async def test_a_server_outside_beside_sick_ones(
    prepared: tuple[str, Path], tmp_path: Path
) -> None:
    """The tool is used once, by way of the broker; the others cost neither the turn nor that one, and the dead one is told."""
    agent, directory = prepared
    file = tmp_path / "mcp.json"
    async with open_notes() as (url, notes), open_silence() as silent, open_world() as world:
        outside = {
            "type": "http",
            "url": url,
            "headers": {"Authorization": "Bearer ${NOTES_KEY}"},
        }
        dead = {"command": "/bin/false", "args": []}
        absent = {"command": "no-such-program"}
        servers = {"notes": outside, "dead": dead, "absent": absent, "silent": {"url": silent}}
        file.write_text(json.dumps({"mcpServers": servers}))
        async with open_orion(
            world,
            new_state_dir(tmp_path),
            directory,
            ORION_AGENT=agent,
            ORION_MCP_CONFIG_FILE=str(file),
            NOTES_KEY=CANARY,
        ) as stage:
            ts = await stage.client.say('@Orion call: note {"text": "first", "seconds": 0}')
            said = text_of(await stage.answer(ts, timeout_s=120))
            run = await stage.record(ts)
            assert "kept first" in said, run.result.detail
            assert "could not be used" in said, said
            if agent not in _NAMELESS:
                assert all(f"`{name}` could not be used" in said for name in ("dead", "absent"))
            assert notes == ["first"]
            assert run.has_outside_effect
            assert CANARY not in run.result.answer
            seen = await stage.client.say("@Orion run: env; cat ~/.*/*.json ~/.*/*.toml")
            assert CANARY not in text_of(await stage.answer(seen, timeout_s=120))

"""Records Orion's own agent over the pinned Anthropic SDK: see recording.py."""

import asyncio

from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from tests.agents.recording import FAILURES, Scene, record

SCENES = (
    Scene(name="tools", texts=("run: echo one\nedit: notes.txt\nrun: exit 3",)),
    Scene(name="stopped", texts=("!slow 20",), options={"stop_at": "text"}),
    *(scene for scene in FAILURES if scene.name != "session-unknown"),  # it has none
)


if __name__ == "__main__":
    asyncio.run(record(AnthropicAdapter(), "anthropic", SCENES, ()))

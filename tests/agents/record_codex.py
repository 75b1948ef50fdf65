"""Records the pinned Codex: see recording.py."""

import asyncio
import re

from agent_scripts.agents.codex.adapter import CodexAdapter
from tests.agents.recording import FAILURES, TURNS, Noise, record

_NOISE = (
    Noise(
        pattern=re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"),
        replacement="2026-11-22T00:00:00.000000Z",
    ),
    Noise(
        pattern=re.compile(r"(sessions/)\d{4}/\d\d/\d\d/rollout-[\dT-]{20}"),
        replacement=r"\g<1>2026/11/22/rollout-2026-11-22T00-00-00-",
    ),
    Noise(pattern=re.compile(r'("\w+(?:At|AtMs|Ms)":)\d+'), replacement=r"\g<1>1"),
    Noise(pattern=re.compile(r'("processId":")\d+'), replacement=r"\g<1>1"),
)

if __name__ == "__main__":
    asyncio.run(record(CodexAdapter(), "@openai/codex", (*TURNS, *FAILURES), _NOISE))

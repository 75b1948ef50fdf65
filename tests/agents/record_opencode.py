"""Records the pinned OpenCode: see recording.py."""

import asyncio
import re

from agent_scripts.agents.opencode.adapter import OpenCodeAdapter
from tests.agents.recording import FAILURES, TURNS, Noise, Scene, record

_NOISE = (
    Noise(
        pattern=re.compile(r"\b(ses|msg|prt)_[0-9a-f]{12}[0-9A-Za-z]{14}\b"),
        replacement=r"\1_{number:026}",
    ),
    Noise(
        pattern=re.compile(r"\b(call|fc|msg)_offline_\w+"), replacement=r"\1_offline_{number:016x}"
    ),
    Noise(pattern=re.compile(r'("(?:timestamp|start|end)"):\d{10,}'), replacement=r"\1:1"),
    Noise(pattern=re.compile(r"timestamp=\S+Z"), replacement="timestamp=2026-11-22T00:00:00.000Z"),
    Noise(pattern=re.compile(r"\b(run=)[0-9a-f]{8}\b"), replacement=r"\g<1>1"),
    Noise(pattern=re.compile(r'("ref":"err_)\w+'), replacement=r"\g<1>1"),
    Noise(pattern=re.compile(r"(request to https://)[^/\s]+"), replacement=r"\1packages.invalid"),
)

_CUT = Scene(name="output-limit", texts=("!long",), options={"max_output_tokens": 200})

if __name__ == "__main__":
    asyncio.run(
        record(OpenCodeAdapter(), "opencode-linux-x64-baseline", (*TURNS, _CUT, *FAILURES), _NOISE)
    )

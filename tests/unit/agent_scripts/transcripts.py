"""Recorded transcripts of agents, replayed through their parsers."""

import json
from collections.abc import Sequence
from pathlib import Path

from agent_scripts.adapter import AgentExit, EventParser
from agent_scripts.events import AgentEvent, TextDelta, TurnFinished

ENDED = AgentExit(exit_code=0, reason="exited")


def recorded(agent: str, name: str) -> tuple[list[str], AgentExit]:
    """The lines of a recording, of whatever version there is, and how its process ended."""
    (path,) = Path("tests/data", agent).glob(f"*-{name}.jsonl")
    *lines, last = path.read_text().splitlines()
    return lines, AgentExit(**json.loads(last))


def read(
    parser: EventParser, lines: Sequence[str], ended: AgentExit = ENDED
) -> tuple[list[AgentEvent], TurnFinished]:
    """All events of the lines, and the outcome."""
    events = [event for line in lines for event in parser.feed(line)]
    return events, parser.finish(ended)


def streamed(events: Sequence[AgentEvent]) -> str:
    """The text as a person saw it come."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))

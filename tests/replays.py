"""What people see of a run of each agent and of each of its endings: recordings of the real agents, replayed, as a page.

python -m tests.replays > docs/replays.md
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent_scripts.adapter import AgentExit
from agent_scripts.registry import agent_names, create_adapter
from app.cli.commands.replay import RecordedLine, Recording, playground_of, show
from app.errors import FROM_AGENT
from app.runs.testing import Outcome, ProgressTracker, RunState
from app.slack.blocks import render_progress
from tests.building import make_request, make_run
from tests.e2e.harness import text_of
from tests.fake_slack_client import open_client

DATA = Path("tests/data")
_RUN_ID = re.compile(r"run_[0-9a-f]{24}")
_WORK_DIR = re.compile(r"(?:/tmp/r)?/work/")
"""Of sandboxes, with and without a root of their own."""
LINE_S = 0.4
"""Between two lines of a recording, which have no times of their own."""
HEAD = """# What people see of a run

Rendered by `make replays` from recordings of the real agents (`tests/data`), which `orion runs replay`'s own code shows in the
playground; a test keeps it as it is. Times are made up.
"""


def recordings() -> Iterator[tuple[str, str]]:
    """Agents and names of their recordings, with the versions."""
    for agent in sorted(agent_names()):
        for path in sorted((DATA / agent).glob("*.jsonl")):
            yield agent, path.stem


def recording_of(agent: str, name: str) -> Recording:
    *lines, last = (DATA / agent / f"{name}.jsonl").read_text().splitlines()
    ended = AgentExit(**json.loads(last))
    parser = create_adapter(agent).parser()
    for line in lines:
        parser.feed(line)
    finished = parser.finish(ended)
    code = FROM_AGENT[finished.error] if finished.error is not None else None
    state = RunState.SUCCEEDED if code is None else RunState.FAILED
    if ended.reason == "stopped":
        state, code = RunState.STOPPED, None
    outcome = Outcome(
        state=state,
        answer=finished.text,
        error_code=code,
        stopped_by="U0YOU" if state is RunState.STOPPED else None,
        duration_s=len(lines) * LINE_S,
    )
    run = replace(
        make_run(make_request(text=f"{agent}: {name}")),
        agent=agent,
        model="a model",
        provider="local",
        attempt=1,
        state=state,
        outcome=outcome,
    )
    said = [RecordedLine(at_s=n * LINE_S, text=line) for n, line in enumerate(lines)]
    return Recording(run=run, lines=said)


def at_work(recording: Recording) -> str:
    """What the thinking message shows when the last line has come."""
    tracker, parser = ProgressTracker(str), create_adapter(recording.run.agent).parser()
    for line in recording.lines:
        for event in parser.feed(line.text):
            tracker.feed(event)
    progress = tracker.current(elapsed_s=recording.run.result.duration_s)
    text = text_of({"blocks": render_progress(recording.run, progress).blocks, "text": ""})
    return _WORK_DIR.sub("", text)


async def seen(recording: Recording) -> str:
    """All that the thread shows at the end."""
    async with (
        playground_of(recording, port=0) as (url, channel, ts, slack),
        open_client(url) as client,
    ):
        await show(recording, slack.replies, channel=channel, root_ts=ts, speed=0)
        messages = await client.replies(ts, channel=channel)
    text = "\n\n".join(text_of(message) for message in messages)
    return _WORK_DIR.sub("", _RUN_ID.sub("run_…", text))


async def section(agent: str, name: str) -> str:
    """The page's part about one recording."""
    recording = recording_of(agent, name)
    quoted = [
        "\n".join(f"    {line}".rstrip() for line in text.splitlines())
        for text in (at_work(recording), await seen(recording))
    ]
    return f"## {agent}: {name}\n\n{quoted[0]}\n\nand then\n\n{quoted[1]}\n"


async def _render() -> str:
    return "\n".join([HEAD, *[await section(*key) for key in recordings()]])


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(_render()))

"""`orion runs replay`: a run that is over, shown once more from its record: by the code that shows a live one, without a model or a sandbox."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import SecretStr

from agent_scripts.registry import agent_names, create_adapter
from app.cli.commands.runs import find_run, open_records
from app.compose.factories import slack_options
from app.playground.slack.types import YOU, FakeSlackConfig
from app.playground.slack.workspace import direct_channel
from app.playground.stack import create_stack
from app.runs.agent_tail import UNREADABLE
from app.runs.model import Delivery, QueuePosition, Run, RunFileKind, RunState
from app.runs.ports import ReplySink
from app.runs.progress import Display, ProgressTracker
from app.runs.request import RunId, Surface, run_id_for
from app.settings.settings import Settings
from app.slack.api import SlackFault
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.web.hosting import serve

SHOWN_CHARS: Final = 300
"""Of the question, in a channel of the operator's choice."""
_LINE: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(\.\d{3})? ([|!]) (.*)")
"""As `app.runs.agent_tail` writes them."""
_DAY_S: Final = 86_400.0
Sleep = Callable[[float], Awaitable[None]]


class ReplayError(Exception):
    """A run cannot be shown once more. One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLine:
    at_s: float
    """Since the first line."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What is left of a run that is over."""

    run: Run
    lines: Sequence[RecordedLine] = ()
    """That its agent printed; the middle of a long log is not kept."""
    patch: str = field(default="", repr=False)


def read_log(log: str) -> Sequence[RecordedLine]:
    """Returns the lines of a kept log that are the agent's output, with their times; what is none of its lines is left out."""
    lines: list[RecordedLine] = []
    first_s: float | None = None
    days = last_s = 0.0
    for line in log.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        hours, minutes, seconds, fraction, stream, text = found.groups()
        clock_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(fraction or 0)
        if clock_s < last_s - _DAY_S / 2:  # it went on past midnight
            days += _DAY_S
        last_s = clock_s
        first_s = clock_s if first_s is None else first_s
        if stream == "|":
            lines.append(RecordedLine(at_s=max(0.0, days + clock_s - first_s), text=text))
    return lines


async def load_recording(settings: Settings, prefix: str) -> Recording:
    """Returns the recording of the one run whose id begins so.

    Raises:
        ReplayError: it is not over yet, or was refused before anybody was told anything.
        UnknownRunError: there is none, or more than one.
    """
    run = await find_run(settings, prefix)
    if not run.state.is_final or run.outcome is None:
        raise ReplayError(f"run {run.id} is not over yet")
    async with open_records(settings) as store:
        log = await store.files.load(run.id, RunFileKind.LOG)
        patch = await store.files.load(run.id, RunFileKind.PATCH)
    return Recording(run=run, lines=read_log(log), patch=patch)


async def show(
    recording: Recording,
    replies: ReplySink,
    *,
    channel: str,
    root_ts: str,
    speed: float,
    sleep: Sleep = asyncio.sleep,
) -> Delivery:
    """Shows a recording in the thread of a message, as its run was shown; returns how its end was told.

    Args:
        recording: of a run that is over.
        replies: of the workspace with that thread.
        channel: its id.
        root_ts: of the message that begins the thread.
        speed: by how much faster than it was; 0 = without any wait.
        sleep: waits for so many seconds.

    Raises:
        ReplayError: Slack takes no message there.
    """
    run = _as_new(recording.run, channel=channel, root_ts=root_ts)
    ts = await replies.place(run, position=QueuePosition(), maybe_posted=False)
    if ts is None:
        raise ReplayError(f"Slack takes no message in {channel}")
    run = replace(run, reply_ts=ts, state=RunState.RUNNING)
    async with replies.live(run) as live:
        await _show_work(recording, Display(live=live, tracker=ProgressTracker(str)), speed, sleep)
    delivery = await replies.finish(run, run.result, resumed=False)
    if recording.patch:
        name = f"changes-{recording.run.id}.patch"
        await replies.attach(run, name=name, content=recording.patch, resumed=False)
    return delivery


async def _show_work(recording: Recording, display: Display, speed: float, sleep: Sleep) -> None:
    """Shows what the agent said while it worked; nothing of an agent that there is no more."""
    if recording.run.agent not in agent_names():
        return
    parser, shown_s = create_adapter(recording.run.agent).parser(), 0.0
    for line in recording.lines:
        if speed and line.at_s > shown_s:
            await sleep((line.at_s - shown_s) / speed)
        shown_s = line.at_s
        with suppress(*UNREADABLE):
            for event in parser.feed(line.text):
                display.tracker.feed(event)
        display.show_soon(shown_s)
    if display.is_behind.is_set():
        display.show(shown_s)


def _as_new(run: Run, *, channel: str, root_ts: str) -> Run:
    """Returns a run as if it had been asked there, under an id of its own: what was shown of the other one stays as it is.

    Files that it shared are Slack's, and are shared once.
    """
    request = run.request
    run_id = run_id_for(team=request.team, channel=channel, message_ts=root_ts, click="replay")
    changes = {
        "run_id": run_id,
        "channel": channel,
        "thread_ts": root_ts,
        "message_ts": root_ts,
        "surface": Surface.DM if channel.startswith("D") else Surface.CHANNEL,
    }
    outcome = replace(run.result, files=())
    return replace(
        run,
        id=RunId(run_id),
        request=request.model_copy(update=changes),
        reply_ts=None,
        part_ts=(),
        delivery="",
        outcome=outcome,
    )


async def replay_in_channel(
    settings: Settings, recording: Recording, *, channel: str, speed: float
) -> str:
    """Shows it in a thread of its own in a channel of the workspace; returns what became of it.

    Raises:
        ReplayError
    """
    try:
        async with open_slack(slack_options(settings)) as slack:
            identity = await slack.identify()
            root_ts = await _post_root(slack, recording, channel=channel)
            delivery = await show(
                recording, slack.replies, channel=channel, root_ts=root_ts, speed=speed
            )
    except SlackFault as exc:
        raise ReplayError(f"Slack: {exc.word}") from exc
    return f"{delivery.text}: {identity.link(channel, root_ts)}"


async def _post_root(slack: SlackConnection, recording: Recording, *, channel: str) -> str:
    said = recording.run.request.text[:SHOWN_CHARS]
    text = f"Replay of {recording.run.id}: {said}"
    return await slack.say(channel, text)


@asynccontextmanager
async def playground_of(
    recording: Recording, *, port: int
) -> AsyncIterator[tuple[str, str, str, SlackConnection]]:
    """Opens a workspace of its own on this machine, in which the question was asked: its address, the channel, the question's ts, and the way to it."""
    config = FakeSlackConfig()
    stack = create_stack(config)
    async with serve(stack, port=port) as url:
        workspace = stack.state.fake_slack.workspace
        is_direct = recording.run.request.surface is Surface.DM
        question = recording.run.request.text or "(files alone)"
        asked = workspace.say(
            user=YOU,
            channel_ref=direct_channel(YOU).id if is_direct else "general",
            typed=question if is_direct else f"@Orion {question}",
        )
        options = SlackOptions(bot_token=SecretStr(config.bot_token), base_url=f"{url}/api/")
        async with open_slack(options) as slack:
            yield url, asked.channel, asked.ts, slack


async def replay_in_playground(
    recording: Recording, *, port: int, speed: float, say: Callable[[str], None]
) -> None:
    """Shows it on a page of this machine, which stays until a signal."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with playground_of(recording, port=port) as (url, channel, ts, slack):
        say(f"{url}/?channel={channel}&thread={ts}")
        delivery = await show(recording, slack.replies, channel=channel, root_ts=ts, speed=speed)
        say(f"{delivery.text}; Ctrl-C ends it")
        await stopping.wait()

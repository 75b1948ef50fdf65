"""The whole service as a test meets it: a world served in the test's loop, and the real `orion serve` as a process beside it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from app.playground.model.server import ModelPace
from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import TEAM_ID, FakeSlackConfig, JsonObject
from app.playground.stack import create_stack, orion_environment
from app.runs.testing import Run, RunId, run_id_for
from app.slack.actions import RETRY_ACTION, STOP_ACTION
from app.slack.messages import own_part
from app.web.hosting import serve
from tests.e2e.orion_process import SERVE, OrionProcess, put_environments, run_cli
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.plain_http import NO_TLS
from tests.ports import free_port
from tests.waiting import pauses

RUN_TIMEOUT_S = 120.0
EXPORTED_WITHIN_S = 60.0
POLL_S = 0.05
AT_ONCE = ModelPace(word_s=0, slow_word_s=0.5)
WITH_POOL = {"ORION_WARM_POOL_SIZE": "1"}
"""What people have who set nothing; without it, tests have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Slack, model and Langfuse on one address, as people, saboteurs and operators reach them."""

    url: str
    config: FakeSlackConfig
    client: FakeSlackClient
    http: httpx.AsyncClient
    fake_slack: FakeSlack

    async def model_requests(self) -> list[JsonObject]:
        """The last 100, oldest first, with their headers."""
        found: list[JsonObject] = (await self.http.get("/model/requests")).json()
        return found

    async def traces(self) -> list[JsonObject]:
        rows: list[JsonObject] = (await self.http.get("/traces/api")).json()["traces"]
        return rows

    async def trace(self, trace_id: str) -> JsonObject | None:
        """Its observations nested, and its scores; None as long as nothing of it has arrived."""
        answer = await self.http.get(f"/traces/api/{trace_id}")
        tree: JsonObject | None = answer.json() if answer.is_success else None
        return tree

    async def whole_trace(self, trace_id: str) -> JsonObject:
        """Once its root, which is exported last, has arrived; of a run that has ended that is a matter of seconds."""
        async with asyncio.timeout(EXPORTED_WITHIN_S):
            while True:
                tree = await self.trace(trace_id)
                if tree is not None and tree["trace"]["is_complete"]:
                    return tree
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def open_world(
    config: FakeSlackConfig | None = None,
    *,
    pace: ModelPace = AT_ONCE,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    host: str = "127.0.0.1",
) -> AsyncIterator[World]:
    """A world; without a config one in which Slack limits no rates. `wrap` may stand before all its addresses.

    `host`: this machine's address at which it is; containers do not reach its loopback.
    """
    config = config or FakeSlackConfig(rate_limits="off")
    app = create_stack(config, pace=pace)
    async with (
        serve(wrap(app), host=host) as url,
        open_client(url) as client,
        httpx.AsyncClient(verify=NO_TLS, base_url=url, trust_env=False, timeout=10) as http,
    ):
        yield World(
            url=url, config=config, client=client, http=http, fake_slack=app.state.fake_slack
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A world and the Orion in it."""

    world: World
    orion: OrionProcess

    @property
    def client(self) -> FakeSlackClient:
        return self.world.client

    def channel_id(self, channel: str) -> str:
        return self.world.fake_slack.workspace.channel(channel).id

    def run_id(self, ts: str, *, channel: str = "general") -> RunId:
        return run_id_for(team=TEAM_ID, channel=self.channel_id(channel), message_ts=ts)

    async def record(self, ts: str, *, channel: str = "general") -> Run:
        """The record of the run that this message began."""
        run = await self.orion.run(self.run_id(ts, channel=channel))
        assert run is not None, f"no run for message {ts}"
        return run

    def sandbox_of(self, ts: str, *, channel: str = "general") -> str:
        """The one sandbox that the run of this message was given."""
        run_id = self.run_id(ts, channel=channel)
        given = [
            line["sandbox_id"]
            for how in ("created", "taken", "attached")
            for line in self.orion.log_lines(f"sandbox.{how}")
            if line.get("run_id") == run_id
        ]
        (sandbox_id,) = given
        return str(sandbox_id)

    async def bot_messages(
        self, ts: str, *, channel: str = "general", thread_ts: str | None = None
    ) -> list[JsonObject]:
        """Orion's messages for the question `ts`, in its thread, oldest first; ephemeral ones included."""
        replies = await self.client.replies(thread_ts or ts, channel=channel)
        run_id = self.run_id(ts, channel=channel)
        return [reply for reply in replies if reply["is_bot"] and run_of(reply) == run_id]

    async def thinking(
        self,
        ts: str,
        *,
        channel: str = "general",
        thread_ts: str | None = None,
        timeout_s: float = 30.0,
    ) -> JsonObject:
        """The run's message, whatever it shows by now."""
        run_id = self.run_id(ts, channel=channel)
        return await self.client.wait_for_reply(
            thread_ts or ts,
            lambda reply: run_of(reply) == run_id,
            channel=channel,
            timeout_s=timeout_s,
        )

    async def answer(
        self,
        ts: str,
        *,
        channel: str = "general",
        thread_ts: str | None = None,
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> JsonObject:
        """The run's message once it is final, and its record is too."""
        run_id = self.run_id(ts, channel=channel)
        message = await self.client.wait_for_reply(
            thread_ts or ts,
            lambda reply: (
                run_of(reply) == run_id
                and (part_of(reply) or 0) >= 0  # no announcement, no card
                and not has_stop_button(reply)
            ),
            channel=channel,
            timeout_s=timeout_s,
        )
        await self.ended(ts, channel=channel)
        return message

    async def ended(
        self, ts: str, *, channel: str = "general", timeout_s: float = RUN_TIMEOUT_S
    ) -> Run:
        """The run's record once it is final, whether or not Slack was told."""
        run_id = self.run_id(ts, channel=channel)
        async with asyncio.timeout(timeout_s):
            for pause_s in pauses():
                if await asyncio.to_thread(self.orion.has_ended, run_id):
                    break
                await asyncio.sleep(pause_s)
        return await self.record(ts, channel=channel)

    async def ask(self, text: str, **place: Any) -> str:
        """What the answer says to a person's message."""
        ts = await self.client.say(text, **place)
        at = {name: place[name] for name in ("channel", "thread_ts") if name in place}
        return text_of(await self.answer(ts, **at))

    async def deliveries(self, ts: str, *, at_least: int = 0) -> list[JsonObject]:
        """Every answered attempt to tell Orion of this message, newest first, once there are so many; within 10 s.

        A mention is two events, and a quick answer may stand before the second has been sent.
        """
        async with asyncio.timeout(10):
            while True:
                found = [e for e in await self.client.deliveries() if e["message_ts"] == ts]
                if len(found) >= at_least:
                    return found
                await asyncio.sleep(POLL_S)

    async def cli(self, *arguments: str, **settings: str) -> tuple[int, str]:
        """Run `orion …` beside the service; exit code and everything it printed."""
        return await run_cli(
            *arguments,
            environment=self.orion.environment | settings,
            directory=self.orion.directory,
        )


@asynccontextmanager
async def open_orion(
    world: World,
    state_dir: Path,
    prepared: Path,
    process: type[OrionProcess] = OrionProcess,
    /,
    *,
    command: Sequence[str] = SERVE,
    toml: str = "",
    **settings: str,
) -> AsyncIterator[Stage]:
    """Orion in this world, with a prepared environment, and an `orion.toml` where one is given. At the end nothing of a sandbox may be left."""
    put_environments(prepared, state_dir)
    orion = process(
        state_dir=state_dir,
        settings={**orion_environment(world.url, world.config), **settings},
        command=command,
    )
    world.fake_slack.events_url = f"{orion.url}/slack/events"
    if toml:
        (orion.directory / "orion.toml").write_text(toml)
    try:
        await orion.start()
        yield Stage(world=world, orion=orion)
    finally:
        await orion.reap()
        left = orion.sandbox_processes()
        shutil.rmtree(state_dir / "environments", ignore_errors=True)
    assert left == [], left
    assert orion.sandbox_directories() == [], orion.sandbox_directories()
    assert orion.tracebacks() == [], orion.tracebacks()


def beside(orion: OrionProcess, name: str, *, command: Sequence[str]) -> OrionProcess:
    """Another process of the same Orion, on the same database and state directory, not started; its log is its own."""
    settings = orion.environment | {"ORION_PORT": str(free_port())}
    process = OrionProcess(state_dir=orion.state_dir, settings=settings, command=command)
    process.log_path = orion.state_dir.with_suffix(f".{name}.log")
    return process


def run_of(message: Mapping[str, Any]) -> str | None:
    """The run that a message was posted for, as Orion itself knows it again."""
    own = own_part(message)
    return own[0] if own else None


def file_names(message: Mapping[str, Any]) -> list[str]:
    """Of the files that a message shares."""
    return [file["name"] for file in message.get("files") or ()]


def part_of(message: Mapping[str, Any]) -> int | None:
    own = own_part(message)
    return own[1] if own else None


def has_stop_button(message: Mapping[str, Any]) -> bool:
    return _has_button(message, STOP_ACTION)


def has_retry_button(message: Mapping[str, Any]) -> bool:
    return _has_button(message, RETRY_ACTION)


def _has_button(message: Mapping[str, Any], action_id: str) -> bool:
    rows = [block["elements"] for block in message.get("blocks", ()) if block["type"] == "actions"]
    return any(button["action_id"] == action_id for row in rows for button in row)


def text_of(message: Mapping[str, Any]) -> str:
    """Everything a person can read in it: its blocks, or its text when it has none."""
    blocks: Sequence[Mapping[str, Any]] = message.get("blocks") or ()
    return "\n".join(_block_text(block) for block in blocks) or str(message["text"])


def blocks_of_type(message: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [block for block in message.get("blocks", ()) if block["type"] == kind]


def _block_text(block: Mapping[str, Any]) -> str:
    match block["type"]:
        case "markdown":
            return str(block["text"])
        case "section":
            return str(block["text"]["text"])
        case "context":
            return " ".join(str(element["text"]) for element in block["elements"])
        case _:
            return ""

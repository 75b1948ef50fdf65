"""What Orion adds to a run: mention to final message in the real local sandbox, against the same script run by hand."""

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from agent_scripts.adapter import AgentPaths, AgentTurn, TurnMessage
from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from app.playground.slack.types import FakeSlackConfig, JsonObject
from app.playground.stack import OFFLINE_MODEL_KEY, orion_environment
from app.runs.testing import FilesFact, NetworkFact, RunFacts, render_prompt
from app.slack.actions import STOP_ACTION
from tests.bench.acks import open_bolt
from tests.bench.processes import BenchError, Server, open_server
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.table import Row
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.ports import free_port

QUESTION = "What is the answer?"
SYSTEM_PROMPT = render_prompt(
    RunFacts(
        files=FilesFact.FRESH,
        network=NetworkFact.CLOSED,
        time_s=600,
        disk_bytes=10 * 1024**3,
        memory_bytes=4 * 1024**3,
    )
)
"""As long as the one that Orion gives."""
FIRST_ANSWER_TIMEOUT_S = 150.0
"""The first run waits for its environment, which installs packages."""
ANSWER_TIMEOUT_S = 30.0
_CHANNELS = itertools.cycle(CHANNELS)
"""Each question has another one than the last: faster than a message a second in one would measure Slack's limit."""
SETTLE_S = 2.0
"""After the last run, for what it leaves to be let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A world, and where an Orion of it shall live."""

    bench: Bench
    world: Server
    port: int
    state_dir: Path

    def settings(self, *, traces: bool) -> dict[str, str]:
        given = orion_environment(self.world.url, FakeSlackConfig())
        kept = {name: value for name, value in given.items() if traces or "LANGFUSE" not in name}
        own = {"ORION_STATE_DIR": str(self.state_dir), "ORION_PORT": str(self.port)}
        return {
            **kept,
            **own,
            "ORION_RUNS_PER_USER_HOUR": "1000",
            "ORION_SANDBOX": "local",
            "ORION_WARM_POOL_SIZE": "0",
        }


async def measure_turns(bench: Bench) -> Sequence[Row]:
    """Medians of alternating pairs, and the memory of the process before and after."""
    async with open_scene(bench) as scene, open_client(scene.world.url) as person:
        async with _orion(scene, traces=True) as orion:
            await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
            script = _Script(scene)
            await script.run()
            orion_s, script_s = [], []
            for _ in range(bench.scale.turn_pairs):
                orion_s.append(await ask(person))
                script_s.append(await script.run())
            await asyncio.sleep(SETTLE_S)
            traced_mib = orion.memory_mib
            before_s = orion.cpu_s
            await asyncio.sleep(bench.scale.idle_seconds)
            idle = 100 * (orion.cpu_s - before_s) / bench.scale.idle_seconds
        async with _orion(scene, traces=False) as orion:
            await ask(person)
            await asyncio.sleep(SETTLE_S)
            untraced_mib = orion.memory_mib
        bolt_mib = await _bolt_memory(scene, person)
    run_s, bare_s = median(orion_s), median(script_s)
    return (
        Row(
            figure="mention to answer, real sandbox and script, instant model",
            unit="s",
            orion=run_s,
            baseline=bare_s,
        ),
        Row(
            figure="of which Orion's own (the rest is the script by hand)",
            unit="s",
            orion=run_s - bare_s,
            target=1.0,
        ),
        _memory("idle memory after runs, with Langfuse", traced_mib, bolt_mib),
        _memory("idle memory after a run, without Langfuse", untraced_mib, bolt_mib),
        Row(figure="processor of an idle service", unit="%", orion=idle, target=2),
    )


def _memory(figure: str, orion_mib: float, bolt_mib: float) -> Row:
    return Row(figure=figure, unit="MiB", orion=orion_mib, baseline=bolt_mib, target=130.0)


@asynccontextmanager
async def open_scene(bench: Bench) -> AsyncIterator[Scene]:
    """The fake Slack and the offline model, which writes at once, in a process of their own."""
    world_port, port = free_port(), free_port()
    events_url = f"http://127.0.0.1:{port}/slack/events"
    async with open_server(
        ("tests.bench.slack_server", str(world_port), "stack", events_url),
        port=world_port,
        directory=bench.directory,
    ) as world:
        yield Scene(
            bench=bench, world=world, port=port, state_dir=bench.directory / f"state-{port}"
        )


@asynccontextmanager
async def _orion(scene: Scene, *, traces: bool) -> AsyncIterator[Server]:
    """`orion serve`, nothing replaced."""
    async with open_server(
        ("app.cli", "serve"),
        port=scene.port,
        directory=scene.bench.directory,
        settings=scene.settings(traces=traces),
    ) as server:
        yield server


async def ask(person: FakeSlackClient, *, timeout_s: float = ANSWER_TIMEOUT_S) -> float:
    """Seconds from the message to its answer, by the fake Slack's clock."""
    return (await ask_in(person, channel=next(_CHANNELS), timeout_s=timeout_s))[1]


async def ask_in(
    person: FakeSlackClient,
    text: str = QUESTION,
    *,
    channel: str = "general",
    thread_ts: str | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> tuple[str, float]:
    """The message, in a thread that is there or a new one, and the same seconds."""
    root = await person.say(f"@Orion {text}", channel=channel, thread_ts=thread_ts)
    try:
        answer = await person.wait_for_reply(
            thread_ts or root,
            lambda reply: _is_final(reply) and float(reply["ts"]) > float(root),
            channel=channel,
            timeout_s=timeout_s,
        )
    except TimeoutError as exc:
        raise BenchError(f"no answer within {timeout_s:.0f} s") from exc
    if "offline model" not in answer["text"]:
        raise BenchError(f"the run failed: {answer['text']}")
    versions = await person.versions(answer)
    return root, datetime.fromisoformat(versions[-1]["at"]).timestamp() - float(root)


def _is_final(message: JsonObject) -> bool:
    """A message of Orion's without its Stop button."""
    blocks = message.get("blocks") or []
    return bool(message["is_bot"]) and STOP_ACTION not in json.dumps(blocks)


class _Script:
    """The agent's script as a person would start it: the same files, the environment's Python, the same model."""

    def __init__(self, scene: Scene) -> None:
        found = sorted(scene.state_dir.glob("environments/*/venv/bin/python"))
        if not found:
            raise BenchError(f"no prepared environment below {scene.state_dir}")
        folder = scene.bench.directory / "by-hand"
        for name in ("work", "home", "run"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._work = folder / "work"
        self._command = AnthropicAdapter().command(
            AgentTurn(
                messages=[TurnMessage(role="user", text=QUESTION)],
                system_prompt=SYSTEM_PROMPT,
                model=AnthropicAdapter.spec.default_model,
                max_output_tokens=8192,
                max_turns=40,
                run_token=OFFLINE_MODEL_KEY,
                paths=AgentPaths(
                    work=str(self._work),
                    home=str(folder / "home"),
                    run=str(folder / "run"),
                    environment=str(found[0].parents[2]),
                ),
            )
        )
        for file in self._command.files:
            Path(file.path).parent.mkdir(parents=True, exist_ok=True)
            Path(file.path).write_bytes(file.data)
        self._environment = self._direct(scene.world)

    async def run(self) -> float:
        """Seconds from the start of the process to its end."""
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *self._command.argv,
            env=self._environment,
            cwd=self._work,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        took_s = time.perf_counter() - started
        kinds = [json.loads(line)["type"] for line in output.splitlines()]
        if kinds[-1:] != ["final"]:
            raise BenchError(f"the script by hand ended with {kinds[-1:]}")
        return took_s

    def _direct(self, world: Server) -> Mapping[str, str]:
        """Straight to the model, without relay and broker."""
        relayed = "{relay}/broker/anthropic"
        path = {"PATH": f"{Path(shutil.which('sh') or '/bin/sh').parent}:/usr/bin:/bin"}
        given = {
            name: value.replace(relayed, f"{world.url}/model")
            for name, value in self._command.env.items()
        }
        return {**path, **given}


async def _bolt_memory(scene: Scene, person: FakeSlackClient) -> float:
    async with open_bolt(
        scene.bench, api_url=f"{scene.world.url}/api/", port=scene.port, replies=True
    ) as bolt:
        root = await person.say("@Orion hello")
        await person.wait_for_reply(root)
        await asyncio.sleep(SETTLE_S)
        return bolt.memory_mib

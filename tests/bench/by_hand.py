"""An agent's command line by hand: its command in a Docker sandbox that is there, without supervisor and service."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentExit,
    AgentPaths,
    AgentSession,
    AgentTurn,
    TurnMessage,
)
from agent_scripts.registry import create_adapter
from agent_scripts.supervision import inside_files
from app.brokers import open_broker
from app.config import Settings
from app.playground.world import OFFLINE_GEMINI_KEY, OFFLINE_MODEL_KEY, OFFLINE_OPENAI_KEY
from app.runs.broker_ports import ModelGrant
from app.runs.model import RunId
from app.runs.prompt import DEFAULT_SYSTEM_PROMPT
from app.runs.session import SessionId
from sandbox_runtime import BrokeredNetwork, ExecOutput, Sandbox, SandboxSpec, open_sandbox
from sandbox_runtime.providers.docker import DockerProvider, DockerSettings
from sandbox_runtime.types import SnapshotId
from tests.bench.processes import BenchError
from tests.bench.turns import QUESTION, Scene
from tests.e2e.docker_world import namespace_of

EXEC_TIMEOUT_S = 30.0
SESSION = SessionId("ses_0123456789abcdef")
_RELAY = """
import sys, time
sys.path.insert(0, sys.argv[1])
from agent_scripts.inside.relay import start_relay
print(start_relay(sys.argv[2]), flush=True)
time.sleep(3600)
"""


class ByHand(Protocol):
    async def __call__(self, *, is_fresh: bool) -> float:
        """Seconds of one turn; `is_fresh`: with nothing of the CLI in its home, else in the session of the turn before."""
        ...


@asynccontextmanager
async def open_by_hand(
    scene: Scene, image: str, prepared: str, *, agent: str
) -> AsyncIterator["ByHand"]:
    """The same command in such a sandbox that is there, with a way to the model; neither supervisor nor service."""
    state_dir = scene.bench.directory / f"{agent}-by-hand"
    state_dir.mkdir(mode=0o755)
    settings = Settings(
        _env_file=None,
        orion_state_dir=state_dir,
        anthropic_base_url=f"{scene.world.url}/model",
        anthropic_api_key=OFFLINE_MODEL_KEY,
        openai_base_url=f"{scene.world.url}/model",
        openai_api_key=OFFLINE_OPENAI_KEY,
        gemini_base_url=f"{scene.world.url}/model",
        gemini_api_key=OFFLINE_GEMINI_KEY,
    )
    adapter = create_adapter(agent)
    grant = ModelGrant(
        run_id=RunId("run_by_hand"),
        models=(adapter.default_model,),
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        session_id=SESSION,
    )
    docker = DockerSettings(name=namespace_of(scene.state_dir), image=image)
    snapshot_id = SnapshotId(prepared.rpartition(":")[2])
    async with (
        open_broker(settings, state_dir / "broker") as broker,
        DockerProvider(docker) as provider,
        open_sandbox(
            provider,
            SandboxSpec(
                snapshot_id=snapshot_id,
                network=BrokeredNetwork(endpoint=broker.endpoint_for(SESSION).address),
            ),
        ) as sandbox,
        broker.open_grant(grant, lambda _call: None) as token,
    ):
        yield await _prepare(adapter, sandbox, container_name(provider, sandbox), token)


@dataclass(slots=True, kw_only=True)
class _Hand:
    """Implements ByHand."""

    adapter: AgentAdapter
    sandbox: Sandbox
    container: str
    turn: AgentTurn
    relay: str
    session_id: str = ""

    async def __call__(self, *, is_fresh: bool) -> float:
        if is_fresh:
            for path in (self.sandbox.paths.home, "/tmp"):  # noqa: S108 - the container's
                find = ("find", path, "-mindepth", "1", "-delete")
                await run_program("docker", "exec", self.container, *find)
        session = None if is_fresh else AgentSession(id=self.session_id, resume=True)
        command = _relayed(self.adapter.command(replace(self.turn, session=session)), self.relay)
        files = {file.path: file.data for file in command.files}
        await self.sandbox.write_files(files)
        given = [
            word for name, value in command.env.items() for word in ("--env", f"{name}={value}")
        ]
        argv = ("exec", "--interactive", "--workdir", self.sandbox.paths.work, *given)
        started = time.perf_counter()
        output = await run_program(
            *("docker", *argv, self.container, *command.argv),
            stdin=files[command.stdin_path or ""],
        )
        took_s = time.perf_counter() - started
        parser = self.adapter.parser()
        for line in output.decode().splitlines():
            parser.feed(line)
        finished = parser.finish(AgentExit(reason="exited", exit_code=0, stderr_tail=""))
        if finished.error is not None:
            raise BenchError(f"{self.adapter.name} by hand: {output[-500:]!r}")
        self.session_id = finished.agent_session_id or self.session_id
        return took_s


async def _prepare(adapter: AgentAdapter, sandbox: Sandbox, container: str, token: str) -> ByHand:
    paths = AgentPaths(
        work=sandbox.paths.work,
        home=sandbox.paths.home,
        run=f"{sandbox.paths.run}/by-hand",
        environment=sandbox.paths.environment,
    )
    turn = AgentTurn(
        messages=[TurnMessage(role="user", text=QUESTION)],
        system_prompt=DEFAULT_SYSTEM_PROMPT,
        model=adapter.default_model,
        max_output_tokens=8192,
        max_turns=40,
        run_token=token,
        model_url=f"{{relay}}/broker/{adapter.protocol}",
        paths=paths,
    )
    files = inside_files(paths, ("relay.py",))
    await sandbox.write_files({file.path: file.data for file in files})
    argv = ("python3", "-I", "-c", _RELAY, paths.run, sandbox.paths.broker)
    process = await sandbox.spawn(argv)
    relay = ""
    async with asyncio.timeout(EXEC_TIMEOUT_S):
        async for event in process.events():
            if isinstance(event, ExecOutput):
                relay = event.data.decode().strip()
                break
    return _Hand(adapter=adapter, sandbox=sandbox, container=container, turn=turn, relay=relay)


def _relayed(command: AgentCommand, url: str) -> AgentCommand:
    """As the supervisor would have it."""
    return replace(
        command,
        env={name: value.replace("{relay}", url) for name, value in command.env.items()},
        files=[
            replace(file, data=file.data.replace(b"{relay}", url.encode()))
            if file.names_relay
            else file
            for file in command.files
        ],
    )


async def run_program(*argv: str, stdin: bytes = b"") -> bytes:
    """What it prints.

    Raises:
        BenchError: it failed.
        TimeoutError: it took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(EXEC_TIMEOUT_S):
            output, _ = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BenchError(f"{argv[:3]} ended with {process.returncode}: {output[-500:]!r}")
    return output


def container_name(provider: DockerProvider, sandbox: Sandbox) -> str:
    return f"orion-{provider.namespace}-{sandbox.id}"

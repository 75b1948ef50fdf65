"""Claude Code by hand: its command in a Docker sandbox that is there, without supervisor and service."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from agent_scripts.adapter import AgentPaths, AgentTurn, TurnMessage
from agent_scripts.adapters.claude_code import ClaudeCodeAdapter
from agent_scripts.supervision import inside_files
from app.brokers import open_broker
from app.config import Settings
from app.playground.world import OFFLINE_MODEL_KEY
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
        """Seconds of one turn; `is_fresh`: with nothing of the CLI in its home."""
        ...


@asynccontextmanager
async def open_by_hand(scene: Scene, image: str, prepared: str) -> AsyncIterator["ByHand"]:
    """The same command in such a sandbox that is there, with a way to the model; neither supervisor nor service."""
    state_dir = scene.bench.directory / "claude-by-hand"
    state_dir.mkdir(mode=0o755)
    settings = Settings(
        _env_file=None,
        orion_state_dir=state_dir,
        anthropic_base_url=f"{scene.world.url}/model",
        anthropic_api_key=OFFLINE_MODEL_KEY,
    )
    adapter = ClaudeCodeAdapter()
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
        hand = await _prepare(adapter, sandbox, token)
        yield hand.bound_to(container_name(provider, sandbox))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hand:
    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes

    def bound_to(self, container: str) -> "ByHand":
        given = [word for name, value in self.env.items() for word in ("--env", f"{name}={value}")]

        async def run(*, is_fresh: bool) -> float:
            if is_fresh:
                rm = ("rm", "-rf", "/home/agent/.claude", "/home/agent/.claude.json")
                await run_program("docker", "exec", container, *rm)
            started = time.perf_counter()
            argv = ("exec", "--interactive", "--workdir", "/work", *given, container, *self.argv)
            output = await run_program("docker", *argv, stdin=self.stdin)
            if b'"subtype":"success"' not in output:
                raise BenchError(f"claude by hand: {output[-500:]!r}")
            return time.perf_counter() - started

        return run


async def _prepare(adapter: ClaudeCodeAdapter, sandbox: Sandbox, token: str) -> _Hand:
    paths = AgentPaths(
        work=sandbox.paths.work,
        home=sandbox.paths.home,
        run=f"{sandbox.paths.run}/by-hand",
        environment=sandbox.paths.environment,
    )
    command = adapter.command(
        AgentTurn(
            messages=[TurnMessage(role="user", text=QUESTION)],
            system_prompt=DEFAULT_SYSTEM_PROMPT,
            model=adapter.default_model,
            max_output_tokens=8192,
            max_turns=40,
            run_token=token,
            paths=paths,
        )
    )
    files = (*command.files, *inside_files(paths, ("relay.py",)))
    await sandbox.write_files({file.path: file.data for file in files})
    argv = ("python3", "-I", "-c", _RELAY, paths.run, sandbox.paths.broker)
    relay = await sandbox.spawn(argv)
    url = ""
    async with asyncio.timeout(EXEC_TIMEOUT_S):
        async for event in relay.events():
            if isinstance(event, ExecOutput):
                url = event.data.decode().strip()
                break
    return _Hand(
        argv=command.argv,
        env={name: value.replace("{relay}", url) for name, value in command.env.items()},
        stdin=next(file.data for file in command.files if file.path == command.stdin_path),
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

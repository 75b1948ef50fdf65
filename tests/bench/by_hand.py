"""An agent's command line by hand: its command in a sandbox that is there, without supervisor and service."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
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
from agent_scripts.supervision import script_files
from app.compose.brokers import open_broker
from app.playground.stack import OFFLINE_GEMINI_KEY, OFFLINE_MODEL_KEY, OFFLINE_OPENAI_KEY
from app.runs.testing import GrantHooks, ModelGrant, RunId, SessionId
from app.settings.settings import load_settings
from sandbox_runtime import BrokeredNetwork, ExecOutput, Sandbox, SandboxSpec, open_sandbox
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.types import SandboxLimits, SnapshotId
from tests.bench.processes import BenchError
from tests.bench.turns import QUESTION, SYSTEM_PROMPT, Scene

EXEC_TIMEOUT_S = 30.0
SESSION = SessionId("ses_0123456789abcdef")
_RELAY = """
import sys, time
sys.path.insert(0, sys.argv[1])
from agent_scripts.inside.relay import start_relay
print(start_relay(sys.argv[2]), flush=True)
time.sleep(3600)
"""
_TIMED = """
import json, os, subprocess, sys, time
from pathlib import Path
given = json.load(open(sys.argv[1]))
sys.path.insert(0, given["run"])
from agent_scripts.inside.relay import start_relay
relay = start_relay(given["broker"])
for name in given["naming_relay"]:
    Path(name).write_text(Path(name).read_text().replace("{relay}", relay))
env = {name: value.replace("{relay}", relay) for name, value in given["env"].items()}
with open(given["stdin_path"], "rb") as stdin:
    started = time.perf_counter()
    done = subprocess.run(given["argv"], env={**os.environ, **env}, stdin=stdin, stdout=subprocess.PIPE)
    took_s = time.perf_counter() - started
sys.stdout.buffer.write(done.stdout + b"\\n")
print(took_s)
sys.exit(done.returncode)
"""


class ByHand(Protocol):
    async def __call__(self, *, is_fresh: bool) -> float:
        """Seconds of one turn; `is_fresh`: with nothing of the CLI in its home, else in the session of the turn before."""
        ...


@asynccontextmanager
async def open_by_hand(
    scene: Scene, provider: SandboxProvider, snapshot_id: SnapshotId, *, agent: str
) -> AsyncIterator["ByHand"]:
    """The same command in such a sandbox that is there, with a way to the model; neither supervisor nor service."""
    state_dir = scene.bench.directory / f"by-hand-{scene.port}"
    state_dir.mkdir(mode=0o755)
    settings = load_settings(
        env_file=None,
        given={
            "orion_state_dir": state_dir,
            "anthropic_base_url": f"{scene.world.url}/model",
            "anthropic_api_key": OFFLINE_MODEL_KEY,
            "openai_base_url": f"{scene.world.url}/model",
            "openai_api_key": OFFLINE_OPENAI_KEY,
            "gemini_base_url": f"{scene.world.url}/model",
            "gemini_api_key": OFFLINE_GEMINI_KEY,
        },
    )
    adapter = create_adapter(agent)
    grant = ModelGrant(
        run_id=RunId("run_by_hand"),
        models=(adapter.spec.default_model,),
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        session_id=SESSION,
    )
    async with (
        open_broker(settings, state_dir / "broker") as broker,
        open_sandbox(
            provider,
            SandboxSpec(
                snapshot_id=snapshot_id,
                limits=SandboxLimits(reserved_bytes=adapter.spec.reserved_bytes),
                network=BrokeredNetwork(endpoint=broker.endpoint_for(SESSION).address),
            ),
        ) as sandbox,
        broker.open_grant(grant, GrantHooks(on_call=lambda _call: None)) as token,
    ):
        paths = AgentPaths(
            work=sandbox.paths.work,
            home=sandbox.paths.home,
            run=f"{sandbox.paths.run}/by-hand",
            environment=sandbox.paths.environment,
        )
        files = script_files(paths, ("inside/relay.py",))
        await sandbox.write_files({file.path: file.data for file in files})
        run: _Run = partial(_run, sandbox, paths.run)
        if isinstance(provider, DockerProvider):
            relay = await _start_relay(sandbox, paths.run)
            run = partial(_run_in_container, container_name(provider, sandbox), sandbox, relay)
        turn = AgentTurn(
            messages=[TurnMessage(role="user", text=QUESTION)],
            system_prompt=SYSTEM_PROMPT,
            model=adapter.spec.default_model,
            max_output_tokens=8192,
            max_turns=40,
            run_token=token,
            model_url=f"{{relay}}/broker/{adapter.spec.protocol}",
            paths=paths,
        )
        yield _Hand(adapter=adapter, sandbox=sandbox, run=run, turn=turn)


class _Run(Protocol):
    async def __call__(self, command: AgentCommand) -> tuple[float, bytes]:
        """Seconds, and what it printed. Raises: BenchError."""
        ...


async def _run(sandbox: Sandbox, run_dir: str, command: AgentCommand) -> tuple[float, bytes]:
    """With the relay beside it: a local sandbox's processes share no network. The time is taken inside."""
    given = {
        "run": run_dir,
        "broker": sandbox.paths.broker,
        "argv": list(command.argv),
        "env": dict(command.env),
        "naming_relay": [file.path for file in command.files if file.names_relay],
        "stdin_path": command.stdin_path,
    }
    path = f"{run_dir}/given.json"
    files = {file.path: file.data for file in command.files}
    await sandbox.write_files({**files, path: json.dumps(given).encode()})
    done = await sandbox.exec(("python3", "-I", "-c", _TIMED, path), timeout_s=EXEC_TIMEOUT_S)
    if done.exit_code:
        told = (done.stdout + done.stderr)[-900:]
        raise BenchError(f"{command.argv[:3]} ended with {done.exit_code}: {told!r}")
    output, _, took_s = done.stdout.rstrip().rpartition(b"\n")
    return float(took_s), output


async def _run_in_container(
    container: str, sandbox: Sandbox, relay: str, command: AgentCommand
) -> tuple[float, bytes]:
    """By `docker exec`, whose time counts."""
    command = _relayed(command, relay)
    files = {file.path: file.data for file in command.files}
    await sandbox.write_files(files)
    given = [word for name, value in command.env.items() for word in ("--env", f"{name}={value}")]
    options = ("--interactive", "--workdir", sandbox.paths.work, *given)
    started = time.perf_counter()
    output = await run_program(
        *("docker", "exec", *options, container, *command.argv),
        stdin=files[command.stdin_path or ""],
    )
    return time.perf_counter() - started, output


async def _start_relay(sandbox: Sandbox, run_dir: str) -> str:
    argv = ("python3", "-I", "-c", _RELAY, run_dir, sandbox.paths.broker)
    process = await sandbox.spawn(argv)
    async with asyncio.timeout(EXEC_TIMEOUT_S):
        async for event in process.events():
            if isinstance(event, ExecOutput):
                return event.data.decode().strip()
    raise BenchError("the relay did not start")


@dataclass(slots=True, kw_only=True)
class _Hand:
    """Implements ByHand."""

    adapter: AgentAdapter
    sandbox: Sandbox
    run: _Run
    turn: AgentTurn
    session_id: str = ""

    async def __call__(self, *, is_fresh: bool) -> float:
        if is_fresh:
            find = ("find", self.sandbox.paths.home, "/tmp", "-mindepth", "1", "-delete")  # noqa: S108 - the sandbox's
            await self.sandbox.exec(find, timeout_s=EXEC_TIMEOUT_S)
        session = None if is_fresh else AgentSession(id=self.session_id, resume=True)
        took_s, output = await self.run(self.adapter.command(replace(self.turn, session=session)))
        parser = self.adapter.parser()
        for line in output.decode().splitlines():
            parser.feed(line)
        finished = parser.finish(AgentExit(reason="exited", exit_code=0, stderr_tail=""))
        if finished.error is not None:
            raise BenchError(f"{self.adapter.name} by hand: {output[-500:]!r}")
        self.session_id = finished.agent_session_id or self.session_id
        return took_s


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

"""A real command line of an agent in a real local sandbox, through relay and broker, before the offline model."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent_scripts.adapter import AgentAdapter, AgentExit, AgentPaths, AgentTurn, TurnMessage
from agent_scripts.events import AgentEvent, TurnFinished
from agent_scripts.supervision import (
    AgentExited,
    AgentLine,
    SupervisionLimits,
    parse_record,
    stop_path,
    supervise,
)
from app.brokerage.endpoints import SocketBroker
from app.compose.brokers import open_broker
from app.compose.providers import create_local
from app.playground.model.server import ModelPace, create_model_app
from app.runs.testing import (
    Additions,
    AgentEnvironment,
    GrantHooks,
    ModelCall,
    ModelGrant,
    RunId,
    SessionId,
)
from app.settings.settings import load_settings
from app.web.hosting import serve
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import (
    BrokeredNetwork,
    ExecOutput,
    OutputStream,
    SandboxLimits,
    SandboxPaths,
    SandboxSpec,
    SnapshotId,
)
from tests.e2e.orion_process import put_environments
from tests.e2e.prepared import prepared_state_dir

SESSION = SessionId("ses_0123456789abcdef")
LIMITS = SupervisionLimits(
    timeout_s=200,
    idle_timeout_s=150,
    max_output_bytes=10_000_000,
    max_line_bytes=1_000_000,
    max_disk_bytes=2**30,
    max_processes=512,
)


@dataclass(kw_only=True)
class RigTurn:
    """What one turn gave."""

    lines: list[str] = field(default_factory=list)
    """Of its stdout."""
    events: list[AgentEvent] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    ended: AgentExit = field(default_factory=lambda: AgentExit(exit_code=None, reason="lost"))
    finished: TurnFinished = field(default_factory=lambda: TurnFinished(text=""))
    duration_s: float = 0.0


class AgentRig:
    """Runs turns of one agent in sandboxes of one provider."""

    def __init__(
        self,
        *,
        adapter: AgentAdapter,
        provider: SandboxProvider,
        broker: SocketBroker,
        snapshot_id: SnapshotId,
    ) -> None:
        self.adapter = adapter
        self.provider = provider
        self.environment = snapshot_id
        self._broker = broker
        self._number = 0

    def spec(self, snapshot_id: SnapshotId | None = None) -> SandboxSpec:
        return SandboxSpec(
            snapshot_id=snapshot_id or self.environment,
            network=BrokeredNetwork(endpoint=self._broker.endpoint_for(SESSION).address),
            limits=SandboxLimits(reserved_bytes=self.adapter.spec.reserved_bytes),
        )

    async def ask(
        self,
        sandbox: Sandbox,
        *texts: str,
        stop_at: str | None = None,
        has_grant: bool = True,
        granted_model: str | None = None,
        own_key: str = "",
        **changes: Any,
    ) -> RigTurn:
        """One turn; it is stopped at the first line that holds `stop_at`."""
        self._number += 1
        paths = replace(agent_paths(sandbox.paths), run=f"{sandbox.paths.run}/{self._number}")
        turn = RigTurn()
        fields: dict[str, Any] = {
            "model": self.adapter.spec.default_model,
            "model_url": f"{{relay}}/broker/{self.adapter.spec.protocol}",
            "max_turns": 10,
            "max_output_tokens": 8192,
            **changes,
        }
        grant = ModelGrant(
            run_id=RunId(f"run_{self._number}"),
            models=(granted_model or fields["model"], *self.adapter.spec.helper_models),
            expires_at=datetime.now(UTC) + timedelta(minutes=2),
            session_id=SESSION,
            own_key=own_key,
            own_key_protocol=(own_key and self.adapter.spec.protocol) or "",
        )
        async with AsyncExitStack() as stack:
            token = await stack.enter_async_context(
                self._broker.open_grant(grant, GrantHooks(on_call=turn.calls.append))
            )
            if not has_grant:
                ended = replace(grant, run_id=RunId("run_of_another"))
                await stack.aclose()
                await stack.enter_async_context(
                    self._broker.open_grant(ended, GrantHooks(on_call=turn.calls.append))
                )
            command = supervise(
                self.adapter.command(
                    AgentTurn(
                        messages=_messages(texts),
                        system_prompt="Be brief.",
                        run_token=token,
                        paths=paths,
                        **fields,
                    )
                ),
                paths=paths,
                broker=sandbox.paths.broker,
                limits=LIMITS,
            )
            await sandbox.write_files({file.path: file.data for file in command.files})
            started = time.monotonic()
            await self._follow(sandbox, command.argv, turn, stop_at=stop_at, paths=paths)
            turn.duration_s = time.monotonic() - started
        return turn

    async def _follow(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        turn: RigTurn,
        *,
        stop_at: str | None,
        paths: AgentPaths,
    ) -> None:
        parser = self.adapter.parser()
        carry, stderr = b"", ""
        process = await sandbox.spawn(argv)
        async for event in process.events():
            if not isinstance(event, ExecOutput) or event.stream is not OutputStream.STDOUT:
                continue
            *lines, carry = (carry + event.data).split(b"\n")
            for line in lines:
                match parse_record(line.decode()):
                    case AgentLine(stream="stdout", text=text):
                        turn.lines.append(text)
                        turn.events += parser.feed(text)
                        if stop_at is not None and stop_at in text:
                            await sandbox.write_file(stop_path(paths), b"")
                            stop_at = None
                    case AgentLine(text=text):
                        stderr += text + "\n"
                    case AgentExited(exit_code=code, reason=reason):
                        turn.ended = AgentExit(exit_code=code, reason=reason, stderr_tail=stderr)
                    case _:
                        pass
        turn.finished = parser.finish(turn.ended)


def agent_paths(paths: SandboxPaths) -> AgentPaths:
    return AgentPaths(
        work=paths.work, home=paths.home, run=paths.run, environment=paths.environment
    )


@asynccontextmanager
async def open_rig(state_dir: Path, adapter: AgentAdapter) -> AsyncIterator[AgentRig]:
    """Everything but the sandboxes, with the agent's prepared environment."""
    prepared = await asyncio.to_thread(prepared_state_dir, adapter.name)
    await asyncio.to_thread(put_environments, prepared, state_dir)
    async with serve(create_model_app(pace=ModelPace(word_s=0, slow_word_s=0.1))) as model_url:
        settings = load_settings(
            env_file=None,
            given={
                "orion_state_dir": state_dir,
                "anthropic_base_url": model_url,
                "anthropic_api_key": "offline-model-key",
                "openai_base_url": model_url,
                "openai_api_key": "sk-offline-model-key-of-openai",
                "gemini_base_url": model_url,
                "gemini_api_key": "offline-model-key-of-gemini",
            },
        )
        async with (
            create_local(settings) as provider,
            open_broker(settings, state_dir / "rig") as broker,
        ):
            environment = AgentEnvironment(provider, adapter, Additions())
            snapshot = await environment.prepare()
            yield AgentRig(
                adapter=adapter, provider=provider, broker=broker, snapshot_id=snapshot.id
            )


def _messages(texts: Sequence[str]) -> list[TurnMessage]:
    return [
        TurnMessage(role="assistant" if index % 2 else "user", text=text)
        for index, text in enumerate(texts)
    ]

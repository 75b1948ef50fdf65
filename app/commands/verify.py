"""One real run in the chosen sandbox, without Slack: what works here, and how long each step takes."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from agent_scripts.registry import create_adapter
from app.agents import describe_agent
from app.brokers import create_direct_broker, open_broker
from app.commands.report import Print, ReportedTrace, SilentReply
from app.config import Settings
from app.errors import OrionError
from app.log import configure_logging
from app.model_access import asks_by_itself, missing_for_agent, needs_own_key
from app.parts import create_runner, run_policy
from app.providers import choose_provider, create_named, create_provider
from app.redaction import Masker
from app.runs.attempt import Attempt
from app.runs.clock import SystemClock
from app.runs.history import Conversation
from app.runs.model import Run, RunRequest, Surface, run_id_for
from app.runs.progress import ProgressTracker
from app.runs.stops import StopRequest
from app.runs.visits import Visits
from app.runs.workspaces import Workspaces
from app.store.memory import MemorySessionStore
from app.web.hosting import serve
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.types import Capability, SnapshotId

PROMPT = (
    "Run `echo orion-verify` in your shell and tell me what it printed.\nrun: echo orion-verify"
)
EXPECTED = "orion-verify"
OFFLINE_KEYS = {
    "anthropic": "offline-model-key",
    "openai": "sk-offline-model-key",
    "gemini": "AIza-offline-model-key",
}


async def verify(settings: Settings, *, write: Print) -> bool:
    """Run it and print each step; True when the agent answered with the tool's output."""
    masker = Masker((*settings.secrets, *settings.mcp_servers.secrets))
    configure_logging(fmt=settings.orion_log_format, level="ERROR", masker=masker)
    agent = settings.orion_agent
    if asks_by_itself(agent) and (missing := missing_for_agent(settings, agent)):
        write(f"FAIL {missing}")
        return False
    try:
        async with open_model(settings, write) as answering:
            return await _run(answering, masker, write, has_key=_has_key(settings))
    except (OrionError, SandboxError) as exc:
        write(f"FAIL {exc.code}: {masker.mask(str(exc))}")
        return False


@asynccontextmanager
async def open_model(settings: Settings, write: Print) -> AsyncIterator[Settings]:
    """The settings with a model that answers: the real one where there is a key, else the offline one; says which."""
    if _has_key(settings):
        write("model: the real one, with your key (this costs a little)")
        yield settings
        return
    from app.playground.model import create_model_app  # noqa: PLC0415 - only without a key

    write("model: no key is set, so the offline model answers")
    async with serve(create_model_app()) as base_url:
        yield Settings.model_validate(
            settings.model_dump()
            | {f"{name}_base_url": base_url for name in OFFLINE_KEYS}
            | {f"{name}_api_key": key for name, key in OFFLINE_KEYS.items()}
        )


@asynccontextmanager
async def _removed(directory: Path) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def _has_key(settings: Settings) -> bool:
    agent = settings.orion_agent
    return not missing_for_agent(settings, agent) and not needs_own_key(settings, agent)


async def _run(settings: Settings, masker: Masker, write: Print, *, has_key: bool) -> bool:
    now = datetime.now(UTC)
    request = RunRequest(
        run_id=run_id_for(team="verify", channel="verify", message_ts=f"{now.timestamp():.6f}"),
        team="verify",
        channel="verify",
        thread_ts=f"{now.timestamp():.6f}",
        message_ts=f"{now.timestamp():.6f}",
        user="verify",
        text=PROMPT,
        surface=Surface.DM,
        received_at=now,
    )
    # Doors of its own, so that it works beside a running `orion serve`; environments are shared.
    doors = settings.orion_state_dir / f"verify-{os.getpid()}"
    choice = await choose_provider(settings)
    async with (
        create_provider(settings, choice) as provider,
        _removed(doors),
        open_broker(settings, doors) as broker,
    ):
        write(f"agent: {describe_agent(settings.orion_agent)}")
        write(f"provider: {provider.name} ({choice.reason}); {await provider.probe()}")
        if Capability.REMOTE in provider.capabilities and not has_key:
            write(
                "FAIL model: a sandbox in a cloud cannot reach the offline model on this machine; set a key for the model"
            )
            return False
        if settings.mount is not None:
            write(f"! {settings.mount.sentence}")
        sessions = MemorySessionStore()
        workspaces = Workspaces(
            provider=provider,
            store=sessions,
            policy=replace(run_policy(settings), session_keep_s=0),
            clock=SystemClock(),
            mask=masker.mask,
            visits=Visits(settings.visits_dir),
            mount=settings.mount,
            elsewhere=partial(create_named, settings),
            on_gone=broker.close,
        )
        runner = create_runner(
            settings,
            provider=provider,
            # At the public address only `orion serve` answers.
            broker=create_direct_broker(settings, create_adapter(settings.orion_agent).protocol)
            if Capability.REMOTE in provider.capabilities
            else broker,
            workspaces=workspaces,
        )
        attempt = Attempt(
            run=Run(id=request.run_id, request=request, created_at=now),
            conversation=Conversation(request=request),
            deadline_at=now + timedelta(seconds=settings.orion_run_timeout_s),
            trace=ReportedTrace(write),
            live=SilentReply(),
            stop=StopRequest(),
            tracker=ProgressTracker(masker.mask),
            clock=SystemClock(),
            started_at=now,
        )
        finished = await runner.execute(attempt)
        for session in await sessions.all():
            await provider.delete_snapshot(SnapshotId(session.snapshot_slug))
    if finished.error is not None:
        write(f"FAIL {finished.error}: {masker.mask(finished.detail)[-500:]}")
        return False
    if attempt.difference is not None:
        write(f"changes:\n{masker.mask(attempt.difference.patch)}")
    write(f"answer: {masker.mask(finished.text)[:200]!r}")
    is_right = EXPECTED in finished.text and attempt.tracker.steps > 0
    write(
        "ok   the agent used its shell and answered"
        if is_right
        else "FAIL the answer lacks the tool's output"
    )
    return is_right

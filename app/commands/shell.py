"""A person works in a thread's sandbox: in the one that runs, or in one made from what was saved; changes are saved back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.commands import person
from app.commands.desk import Desk, SandboxCommandError, open_desk
from app.config import Settings, host_environment
from app.log import configure_logging
from app.parts import create_environment, session_spec
from app.redaction import Masker
from app.runs.copying import copy_into
from app.runs.session import Session
from app.runs.workspace import SAVE_TIMEOUT_S
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import Capability, SandboxId, SandboxSpec

EXTENSION_S = 600.0
SHELL = ("sh", "-c", "command -v bash > /dev/null && exec bash; exec sh")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """Where a person works."""

    sandbox: Sandbox
    is_of_thread: bool
    """It was there, and stays: runs of the thread use it too."""


async def open_shell(settings: Settings, text: str, *, say: Say) -> int:
    """Until the person leaves it; the shell's exit code. Without a terminal, stdin is the script.

    Raises:
        SandboxCommandError
        SandboxError: there is no sandbox to work in.
    """
    quieten(settings)
    async with open_desk(settings) as desk:
        session = await desk.find(text)
        if await desk.going(session) is not None:
            say(f"{session.name}: a run is going in its thread")
        with desk.visits.visiting(session.id) as is_alone:
            async with _open_visited(desk, session, say=say) as visited:
                async with _extended(visited.sandbox, say=say):
                    if person.is_at_terminal():
                        term = host_environment().get("TERM", "xterm")
                        code = await person.run_on_terminal(visited.sandbox, SHELL, term=term)
                    else:
                        code = await person.run_script(visited.sandbox)
                say(f"{session.name}: {await save(desk, session, visited, is_alone=is_alone)}")
    return code


@asynccontextmanager
async def _extended(sandbox: Sandbox, *, say: Say) -> AsyncIterator[None]:
    """It does not end by itself while someone works in it, as far as its provider allows."""

    async def extend() -> None:
        try:
            while True:
                await sandbox.extend(EXTENSION_S)
                await asyncio.sleep(EXTENSION_S / 2)
        except SandboxError as exc:
            say(f"it will end by itself: {exc}")

    async with open_task_group() as group:
        extending = group.create_task(extend(), name="extend")
        yield
        extending.cancel()


def quieten(settings: Settings) -> None:
    """What a person sees at the terminal is theirs: of the log, errors only."""
    masker = Masker((*settings.secrets, *settings.mcp_servers.secrets))
    configure_logging(fmt=settings.orion_log_format, level="ERROR", masker=masker)


@asynccontextmanager
async def _open_visited(desk: Desk, session: Session, *, say: Say) -> AsyncIterator[Visited]:
    provider = await desk.provider(session.provider)
    running = await attach_running(provider, session)
    if running is not None:
        say(f"{session.name}: in its sandbox, {running.container_name or running.id}")
        yield Visited(sandbox=running, is_of_thread=True)
        return
    spec = await spec_of(desk.settings, session, provider, say=say)
    try:
        async with open_sandbox(provider, spec) as sandbox:
            origin = "from what was saved" if spec.workspace_id else "anew: nothing is saved"
            mount = desk.settings.mount
            if mount is not None and mount.is_overlay and not spec.workspace_id:
                await copy_into(sandbox, mount.directory)
            say(f"{session.name}: in a sandbox of your own, {origin}")
            yield Visited(sandbox=sandbox, is_of_thread=False)
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.NOT_FOUND:
            raise SandboxCommandError(f"{session.name}: what was saved is gone: {exc}") from exc
        raise


async def attach_running(provider: SandboxProvider, session: Session) -> Sandbox | None:
    """The session's sandbox, if it runs and can be attached to; it goes on when the provider is closed."""
    if not session.sandbox_id or Capability.ATTACH not in provider.capabilities:
        return None
    try:
        sandbox = await provider.attach(SandboxId(session.sandbox_id))
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.NOT_FOUND:
            return None
        raise
    provider.release(sandbox.id)
    return sandbox


async def spec_of(
    settings: Settings, session: Session, provider: SandboxProvider, *, say: Say
) -> SandboxSpec:
    """What a sandbox is made from in which the session's agent would work; its environment is made, if need be."""
    environment = create_environment(settings, provider, agent=session.agent)
    if await provider.find_snapshot(environment.name) is None:
        say(f"{session.name}: setting up the environment of {session.agent} (first use)")
    return session_spec(settings, session, environment=await environment.prepare())


async def save(
    desk: Desk, session: Session, visited: Visited, *, is_alone: Callable[[], bool]
) -> str:
    """Save what was changed, unless that could harm what a run or another person does; says what became of it."""
    if visited.is_of_thread and not is_alone():
        return "not saved: someone else is working in it"
    try:
        with desk.visits.saving(session.id):
            reason = await _obstacle(desk, session, visited)
            if reason:
                return f"not saved: {reason}"
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                ref = await visited.sandbox.snapshot(name=f"session-{session.id}")
            await desk.store.sessions.update(session.id, snapshot_slug=ref.id)
            return "saved"
    except BlockingIOError:
        return "not saved: someone else is saving"
    except (SandboxError, OSError, TimeoutError) as exc:
        return f"not saved: {str(exc) or 'it took too long'}"


async def _obstacle(desk: Desk, session: Session, visited: Visited) -> str:
    """Why the thread's files must not be replaced by these; empty when they may."""
    now = await desk.store.sessions.get(session.id)
    if now is None or now.provider != session.provider:
        return "its thread has left it"
    if await desk.going(session) is not None:
        return "a run is going in its thread"
    if not visited.is_of_thread and now.snapshot_slug != session.snapshot_slug:
        return "its thread's files have changed meanwhile"
    return ""

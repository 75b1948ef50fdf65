"""A shell of a person in a thread's sandbox, or the sandbox left running for one; works beside a running service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from app.aio import open_task_group
from app.cli.commands import terminal
from app.cli.commands.sandboxes import SandboxAdmin, SandboxCommandError, open_admin
from app.cli.commands.terminal import Print
from app.compose.brokers import network_for
from app.compose.factories import create_environment, session_spec, start_logging
from app.runs.sandboxes import copy_into
from app.runs.session import Session, SessionStatus
from app.runs.workspace import SAVE_TIMEOUT_S
from app.settings.settings import Settings, host_environment
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import create_sandbox, destroy_sandbox, open_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability, SandboxId, SandboxSpec

EXTENSION_S = 600.0
SHELL = ("sh", "-c", "command -v bash > /dev/null && exec bash; exec sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSandbox:
    sandbox: Sandbox
    is_of_thread: bool
    """It was there, and stays: runs of the thread use it too."""


async def open_shell(settings: Settings, text: str, *, say: Print) -> int:
    """Runs a shell until the person leaves it; returns the shell's exit code. Without a terminal, stdin is the script.

    Raises:
        SandboxCommandError
        SandboxError: there is no sandbox to work in.
    """
    quieten(settings)
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        if await admin.find_going(session) is not None:
            say(f"{session.name}: a run is going in its thread")
        with admin.locks.use(session.id) as is_alone:
            async with _open_sandbox(admin, session, say=say) as opened:
                async with _extended(opened.sandbox, say=say):
                    if terminal.is_at_terminal():
                        term = host_environment().get("TERM", "xterm")
                        code = await terminal.run_on_terminal(opened.sandbox, SHELL, term=term)
                    else:
                        code = await terminal.run_script(opened.sandbox)
                say(f"{session.name}: {await save(admin, session, opened, is_alone=is_alone)}")
    return code


@asynccontextmanager
async def _extended(sandbox: Sandbox, *, say: Print) -> AsyncIterator[None]:
    """Keeps it from ending by itself while someone works in it, as far as its provider allows."""

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
    """Logs errors only: what a person sees at the terminal is theirs."""
    start_logging(settings, level="ERROR")


@asynccontextmanager
async def _open_sandbox(
    admin: SandboxAdmin, session: Session, *, say: Print
) -> AsyncIterator[ShellSandbox]:
    provider = await admin.provider(session.provider)
    running = await attach_running(provider, session)
    if running is not None:
        say(f"{session.name}: in its sandbox, {running.container_name or running.id}")
        yield ShellSandbox(sandbox=running, is_of_thread=True)
        return
    spec = await spec_of(admin.settings, session, provider, say=say)
    try:
        async with open_sandbox(provider, spec) as sandbox:
            origin = "from what was saved" if spec.workspace_id else "anew: nothing is saved"
            mount = admin.settings.mount
            if mount is not None and mount.is_overlay and not spec.workspace_id:
                await copy_into(sandbox, mount.directory)
            say(f"{session.name}: in a sandbox of your own, {origin}")
            yield ShellSandbox(sandbox=sandbox, is_of_thread=False)
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.NOT_FOUND:
            raise SandboxCommandError(f"{session.name}: what was saved is gone: {exc}") from exc
        raise


async def attach_running(provider: SandboxProvider, session: Session) -> Sandbox | None:
    """Returns the session's sandbox, if it runs and can be attached to; it goes on when the provider is closed."""
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
    settings: Settings, session: Session, provider: SandboxProvider, *, say: Print
) -> SandboxSpec:
    """Returns what a sandbox is made from in which the session's agent would work; its environment is made, if need be."""
    environment = create_environment(settings, provider, agent=session.agent)
    if await provider.find_snapshot(environment.name) is None:
        say(f"{session.name}: setting up the environment of {session.agent} (first use)")
    return session_spec(settings, session, environment=await environment.prepare())


async def save(
    admin: SandboxAdmin, session: Session, opened: ShellSandbox, *, is_alone: Callable[[], bool]
) -> str:
    """Saves what was changed, unless that could harm what a run or another person does; says what became of it."""
    if opened.is_of_thread and not is_alone():
        return "not saved: someone else is working in it"
    try:
        with admin.locks.lock_for_saving(session.id):
            reason = await _obstacle(admin, session, opened)
            if reason:
                return f"not saved: {reason}"
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                ref = await opened.sandbox.snapshot(name=f"session-{session.id}")
            await admin.store.sessions.update(session.id, snapshot_slug=ref.id)
            return "saved"
    except BlockingIOError:
        return "not saved: someone else is saving"
    except (SandboxError, OSError, TimeoutError) as exc:
        return f"not saved: {str(exc) or 'it took too long'}"


async def _obstacle(admin: SandboxAdmin, session: Session, opened: ShellSandbox) -> str:
    """Returns why the thread's files must not be replaced by these; empty when they may."""
    now = await admin.store.sessions.get(session.id)
    if now is None or now.provider != session.provider:
        return "its thread has left it"
    if await admin.find_going(session) is not None:
        return "a run is going in its thread"
    if not opened.is_of_thread and now.snapshot_slug != session.snapshot_slug:
        return "its thread's files have changed meanwhile"
    return ""


async def leave_running(settings: Settings, text: str, *, say: Print) -> str:
    """Makes it from what was saved; says where it is.

    Raises:
        SandboxCommandError: a run waits or goes in the thread, or its provider's sandboxes end with their process.
        SandboxError: none could be made.
    """
    quieten(settings)
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        provider = await admin.provider(session.provider)
        if Capability.ATTACH not in provider.capabilities:
            raise SandboxCommandError(
                f"{session.name}: a sandbox of the provider {provider.name!r} ends with the command that made it; "
                f"`orion sandboxes shell {session.name}` works in one"
            )
        try:
            with admin.locks.lock_for_saving(session.id):
                await admin.require_idle(session)
                running = await attach_running(provider, session)
                if running is not None:
                    return f"{session.name}: is running already, in {running.container_name}"
                spec = replace(
                    await spec_of(settings, session, provider, say=say),
                    network=network_for(settings, session, provider),
                )
                admin.locks.mark_detached(session.id)
                sandbox = await create_sandbox(provider, spec)
                try:
                    await admin.store.sessions.update(
                        session.id,
                        status=SessionStatus.RUNNING,
                        exit_code=None,
                        sandbox_id=sandbox.id,
                        container_name=sandbox.container_name,
                        detached=str(spec.snapshot_id),
                    )
                except BaseException as exc:
                    admin.locks.clear_detached(session.id)
                    await destroy_sandbox(sandbox, first_error=exc)
                    raise
                provider.release(sandbox.id)
        except BlockingIOError as exc:
            raise SandboxCommandError(f"{session.name}: someone else is saving it") from exc
        return f"{session.name}: running in {sandbox.container_name}"

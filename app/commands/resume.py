"""A sandbox of a thread that is left running: people can work in it, and the thread's next run takes it."""

from dataclasses import replace

from app.brokers import network_for
from app.commands.desk import SandboxCommandError, open_desk
from app.commands.shell import Say, attach_running, quieten, spec_of
from app.config import Settings
from app.runs.session import SessionStatus
from sandbox_runtime.lifecycle import create_sandbox, destroy_sandbox
from sandbox_runtime.types import Capability


async def leave_running(settings: Settings, text: str, *, say: Say) -> str:
    """Make it from what was saved; says where it is.

    Raises:
        SandboxCommandError: a run waits or goes in the thread, or its provider's sandboxes end with their process.
        SandboxError: none could be made.
    """
    quieten(settings)
    async with open_desk(settings) as desk:
        session = await desk.find(text)
        provider = await desk.provider(session.provider)
        if Capability.ATTACH not in provider.capabilities:
            raise SandboxCommandError(
                f"{session.name}: a sandbox of the provider {provider.name!r} ends with the command that made it; "
                f"`orion sandboxes shell {session.name}` works in one"
            )
        try:
            with desk.visits.saving(session.id):
                await desk.require_idle(session)
                running = await attach_running(provider, session)
                if running is not None:
                    return f"{session.name}: is running already, in {running.container_name}"
                spec = replace(
                    await spec_of(settings, session, provider, say=say),
                    network=network_for(settings, session, provider),
                )
                desk.visits.leave(session.id)
                sandbox = await create_sandbox(provider, spec)
                try:
                    await desk.store.sessions.update(
                        session.id,
                        status=SessionStatus.RUNNING,
                        exit_code=None,
                        sandbox_id=sandbox.id,
                        container_name=sandbox.container_name,
                        extra=session.with_detached(str(spec.snapshot_id)),
                    )
                except BaseException as exc:
                    desk.visits.take_left(session.id)
                    await destroy_sandbox(sandbox, first_error=exc)
                    raise
                provider.release(sandbox.id)
        except BlockingIOError as exc:
            raise SandboxCommandError(f"{session.name}: someone else is saving it") from exc
        return f"{session.name}: running in {sandbox.container_name}"

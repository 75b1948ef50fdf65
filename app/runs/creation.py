"""How a run comes by a new sandbox: tried again where that helps, with room made for it, and without files that are lost."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.policy import RunPolicy
from app.runs.ports import TraceStep
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import AttemptRecord, create_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import SandboxSpec

_log = get_logger(__name__)


async def create(
    provider: SandboxProvider,
    attempt: Attempt,
    spec: SandboxSpec,
    *,
    policy: RunPolicy,
    make_room: Callable[[], Awaitable[bool]],
) -> tuple[Sandbox, bool]:
    """The sandbox, and whether its workspace is empty. `make_room` gives up another one, or says that there is none.

    Raises:
        SandboxError: none could be made.
    """
    attempt.enter("Starting a sandbox")
    with attempt.trace.step("sandbox-create") as step:
        started_s = time.monotonic()
        sandbox = None
        while sandbox is None:
            try:
                sandbox = await _create(provider, attempt, spec, policy=policy, step=step)
            except SandboxError as exc:
                if exc.code is SandboxErrorCode.NOT_FOUND and await _is_lost(provider, spec):
                    # The thread's files are lost, not the question.
                    _log.warning("sandbox.workspace_lost", snapshot=spec.workspace_id)
                    spec = replace(spec, workspace_id=None)
                elif exc.code is not SandboxErrorCode.LIMIT_REACHED or not await make_room():
                    raise
        step.set(
            sandbox_id=sandbox.id,
            provider=provider.name,
            workspace="restored" if spec.workspace_id else "new",
        )
        duration_s = round(time.monotonic() - started_s, 3)
        _log.info("sandbox.created", sandbox_id=sandbox.id, duration_s=duration_s)
        return sandbox, spec.workspace_id is None


async def _is_lost(provider: SandboxProvider, spec: SandboxSpec) -> bool:
    """Whether it is the workspace that is not there, and not the environment.

    A provider may list one that it has let expire; asked for by its name it says so.
    """
    if not spec.workspace_id:
        return False
    refs = {ref.id: ref for ref in await provider.list_snapshots()}
    ref = refs.get(spec.workspace_id)
    if ref is None or ref.name is None:
        return ref is None
    found = await provider.find_snapshot(ref.name)
    return found is None or found.id != ref.id


async def _create(
    provider: SandboxProvider,
    attempt: Attempt,
    spec: SandboxSpec,
    *,
    policy: RunPolicy,
    step: TraceStep,
) -> Sandbox:
    def note(record: AttemptRecord) -> None:
        now = attempt.clock.now()
        error = record.error
        step.attempt(
            number=record.number,
            started_at=now - timedelta(seconds=record.duration_s),
            ended_at=now,
            error="" if error is None else f"{error.code}: {error}",
        )
        if error is not None:
            is_last = not error.retryable or record.number >= policy.create_attempts
            event = "sandbox.creation_failed" if is_last else "sandbox.retry"
            _log.warning(event, attempt=record.number, code=error.code, reason=str(error))

    return await create_sandbox(provider, spec, attempts=policy.create_attempts, on_attempt=note)

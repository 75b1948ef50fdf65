"""How a run comes by a new sandbox: tried again where that helps, with room made for it, without files that are lost, and with a copy of a mounted directory."""

import asyncio
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from agent_scripts.adapter import AgentPaths
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.policy import RunPolicy
from app.runs.ports import TraceStep
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import AttemptRecord, create_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import SandboxPaths, SandboxSpec

_log = get_logger(__name__)

POOL_LABEL = "orion.pool"
"""Of sandboxes that were made to wait for a run; it stays when one is taken."""


def agent_paths(paths: SandboxPaths) -> AgentPaths:
    """Returns paths for an agent whose start has no directory of its own yet."""
    return AgentPaths(
        work=paths.work, home=paths.home, run=paths.run, environment=paths.environment
    )


MAX_COPY_BYTES = 256 * 1024 * 1024
COPY_TIMEOUT_S = 120.0


async def copy_into(sandbox: Sandbox, directory: Path) -> None:
    """Puts what is in the directory into the sandbox's work directory, except other file systems mounted in it.

    Raises:
        SandboxError: FILE_TOO_LARGE, EXEC_TIMEOUT, UNAVAILABLE.
    """
    archive = await _archive(directory)
    result = await sandbox.exec(
        ["tar", "--extract", "--no-same-owner", "--file", "-"],
        timeout_s=COPY_TIMEOUT_S,
        stdin=archive,
    )
    if result.exit_code != 0:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"cannot copy {directory} into a sandbox: {result.error_text.strip()[-500:]}",
        )


async def _archive(directory: Path) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("tar", "--create", "--one-file-system", "--file", "-", "--directory", str(directory)),
        ".",
        stdout=PIPE,
    )
    if process.stdout is None:
        raise AssertionError("it has a pipe")
    try:
        async with asyncio.timeout(COPY_TIMEOUT_S):
            parts: list[bytes] = []
            size = 0
            while part := await process.stdout.read(1024 * 1024):
                parts.append(part)
                size += len(part)
                if size > MAX_COPY_BYTES:
                    raise SandboxError(
                        SandboxErrorCode.FILE_TOO_LARGE,
                        f"{directory} holds more than {MAX_COPY_BYTES} bytes: too much to copy",
                    )
            code = await process.wait()
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.EXEC_TIMEOUT, f"copying {directory} took over {COPY_TIMEOUT_S:g} s"
        ) from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"cannot read all of {directory}")
    return b"".join(parts)


async def create(
    provider: SandboxProvider,
    attempt: Attempt,
    spec: SandboxSpec,
    *,
    policy: RunPolicy,
    make_space: Callable[[], Awaitable[bool]],
) -> tuple[Sandbox, bool]:
    """Returns the sandbox, and whether its workspace is empty. `make_space` gives up another one, or says that there is none.

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
                elif exc.code is not SandboxErrorCode.LIMIT_REACHED or not await make_space():
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
        now = attempt.time.now
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

"""Does isolation really work on this engine? Asked by running something in a sandbox."""

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.probing import FILE_BYTES, check_isolation
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker.engine import EngineInfo
from sandbox_runtime.providers.docker.opened import Opened
from sandbox_runtime.providers.docker.settings import DockerSettings
from sandbox_runtime.types import SandboxLimits, SandboxSpec

INFO_TIMEOUT_S = 8.0
_LIMITS = SandboxLimits(max_processes=24, max_file_bytes=FILE_BYTES, memory_bytes=512 * 1024 * 1024)
_FACTS = r"""
echo "privileges $(sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status)"
touch /planted 2>/dev/null && echo "root writable" || echo "root read-only"
"""
_EXPECTED = {"privileges": "1", "root": "read-only"}


async def probe(
    provider: SandboxProvider, opened: Opened, settings: DockerSettings
) -> tuple[str, bool]:
    """One line on what was found, and whether a sandbox proved it: without a base image none can.

    Raises:
        SandboxError: UNAVAILABLE, ISOLATION_UNAVAILABLE, with what is wrong or does not hold.
    """
    info = await opened.engine.info(timeout_s=INFO_TIMEOUT_S)
    runtime = settings.runtime
    if runtime is not None and runtime not in info.runtimes:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"the engine has no runtime {runtime!r}: add it to the engine's configuration",
        )
    if await opened.base.find() is None:
        if settings.image is not None:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"the engine has no image {settings.image}: pull it"
            )
        return f"Docker Engine {info.version} answers; the base image is built on first use", False
    sandbox = await provider.create(SandboxSpec(limits=_LIMITS))
    try:
        await check_isolation(
            sandbox,
            what="the container",
            forks=40,
            max_processes_seen=12,
            facts=_FACTS,
            expected=_EXPECTED,
        )
    finally:
        await sandbox.destroy()
    return _describe(info, runtime=runtime), True


def _describe(info: EngineInfo, *, runtime: str | None) -> str:
    kind = f" with runtime {runtime}" if runtime else ""
    missing = "" if "seccomp" in info.security else "; the engine has no seccomp profile"
    return (
        f"Docker Engine {info.version}{kind}: user 10001, no capabilities, read-only root, no network, "
        f"limits on memory, processors, processes, file size and open files enforced{missing}"
    )

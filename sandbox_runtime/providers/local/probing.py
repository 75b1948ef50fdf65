"""Does isolation really work on this machine? Asked by running something in a sandbox."""

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.probing import EXEC_TIMEOUT_S, FILE_BYTES, check_isolation
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SandboxLimits, SandboxSpec

_LIMITS = SandboxLimits(max_processes=16, max_file_bytes=FILE_BYTES)
_USER_NAMESPACES = (
    "user namespaces may be forbidden here: see the sysctls user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns"
)


async def probe(provider: SandboxProvider, *, kind: str, is_root: bool) -> str:
    """One line on what was found.

    Raises:
        SandboxError: ISOLATION_UNAVAILABLE, with the reason.
    """
    try:
        sandbox = await provider.create(SandboxSpec(limits=_LIMITS))
        try:
            if kind == "none":
                await sandbox.exec(["python3", "-c", "pass"], timeout_s=EXEC_TIMEOUT_S)
                return "no isolation: commands run as plain processes with resource limits"
            await check_isolation(sandbox, what="bubblewrap", forks=24, max_processes_seen=8)
        finally:
            await sandbox.destroy()
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.ISOLATION_UNAVAILABLE:
            raise
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE, f"{exc}; {_USER_NAMESPACES}"
        ) from exc
    user = "a host user per sandbox" if is_root else "the service's own user"
    return (
        f"bubblewrap as {user}: user, pid, ipc, uts, mount and network namespaces hold, "
        "no capabilities, limits on memory, processes, file size and open files enforced"
    )

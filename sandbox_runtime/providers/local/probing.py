"""Does isolation really work on this machine? Asked by running something in a sandbox."""

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import ExecResult, SandboxLimits, SandboxSpec

PROBE_TIMEOUT_S = 10.0
_EXEC_TIMEOUT_S = 8.0
_MIB = 1024 * 1024
_LIMITS = SandboxLimits(max_processes=16, max_file_bytes=_MIB)

# Each line: a fact's name and what was found.
_FACTS = r"""
echo "uid $(id -u)"
echo "capabilities $(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)"
echo "processes $(ls -d /proc/[0-9]* | wc -l)"
echo "interfaces $(tail -n +3 /proc/net/dev | wc -l)"
(unshare -U true) 2>/dev/null && echo "nested yes" || echo "nested no"
head -c 2097152 /dev/zero > large 2>/dev/null
echo "file $(stat -c %s large)"
python3 -c 'print("python", 3)'
(i=0; while [ $i -lt 24 ]; do sleep 3 & i=$((i+1)); done) 2>/dev/null && echo "forks unlimited" || echo "forks limited"
"""
_EXPECTED = {
    "uid": "10001",
    "capabilities": "0000000000000000",
    "interfaces": "1",
    "nested": "no",
    "file": str(_MIB),
    "python": "3",
    "forks": "limited",
}
_MAX_PROCESSES_SEEN = 8

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
                await sandbox.exec(["python3", "-c", "pass"], timeout_s=_EXEC_TIMEOUT_S)
                return "no isolation: commands run as plain processes with resource limits"
            result = await sandbox.exec(["sh", "-c", _FACTS], timeout_s=_EXEC_TIMEOUT_S)
        finally:
            await sandbox.destroy()
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.ISOLATION_UNAVAILABLE:
            raise
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE, f"{exc}; {_USER_NAMESPACES}"
        ) from exc
    _check(result)
    user = "a host user per sandbox" if is_root else "the service's own user"
    return (
        f"bubblewrap as {user}: user, pid, ipc, uts, mount and network namespaces hold, "
        "no capabilities, limits on memory, processes, file size and open files enforced"
    )


def _check(result: ExecResult) -> None:
    found = dict(line.split(" ", 1) for line in result.text.splitlines() if " " in line)
    wrong = [
        f"{fact} is {found.get(fact)!r}, not {expected!r}"
        for fact, expected in _EXPECTED.items()
        if found.get(fact) != expected
    ]
    if int(found.get("processes", "0")) not in range(1, _MAX_PROCESSES_SEEN):
        wrong.append(f"{found.get('processes')} processes are visible")
    if wrong:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"bubblewrap starts but does not isolate: {'; '.join(wrong)}",
        )

"""Does isolation really work on this engine? Asked by running something in a sandbox."""

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker.engine import EngineInfo
from sandbox_runtime.providers.docker.opened import Opened
from sandbox_runtime.providers.docker.settings import DockerSettings
from sandbox_runtime.types import ExecResult, SandboxLimits, SandboxSpec

PROBE_TIMEOUT_S = 10.0
INFO_TIMEOUT_S = 8.0
_EXEC_TIMEOUT_S = 8.0
_MIB = 1024 * 1024
_LIMITS = SandboxLimits(max_processes=24, max_file_bytes=_MIB, memory_bytes=512 * _MIB)

# Each line: a fact's name and what was found.
_FACTS = r"""
echo "uid $(id -u)"
echo "capabilities $(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)"
echo "privileges $(sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status)"
echo "processes $(ls -d /proc/[0-9]* | wc -l)"
echo "interfaces $(tail -n +3 /proc/net/dev | wc -l)"
touch /planted 2>/dev/null && echo "root writable" || echo "root read-only"
(unshare -U true) 2>/dev/null && echo "nested yes" || echo "nested no"
head -c 2097152 /dev/zero > large 2>/dev/null
echo "file $(stat -c %s large)"
python3 -c 'print("python", 3)'
(i=0; while [ $i -lt 40 ]; do sleep 3 & i=$((i+1)); done) 2>/dev/null && echo "forks unlimited" || echo "forks limited"
"""
_EXPECTED = {
    "uid": "10001",
    "capabilities": "0000000000000000",
    "privileges": "1",
    "interfaces": "1",
    "root": "read-only",
    "nested": "no",
    "file": str(_MIB),
    "python": "3",
    "forks": "limited",
}
_MAX_PROCESSES_SEEN = 12


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
        result = await sandbox.exec(["sh", "-c", _FACTS], timeout_s=_EXEC_TIMEOUT_S)
    finally:
        await sandbox.destroy()
    _check(result)
    return _describe(info, runtime=runtime), True


def _describe(info: EngineInfo, *, runtime: str | None) -> str:
    kind = f" with runtime {runtime}" if runtime else ""
    missing = "" if "seccomp" in info.security else "; the engine has no seccomp profile"
    return (
        f"Docker Engine {info.version}{kind}: user 10001, no capabilities, read-only root, no network, "
        f"limits on memory, processors, processes, file size and open files enforced{missing}"
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
            f"the container starts but does not isolate: {'; '.join(wrong)}",
        )

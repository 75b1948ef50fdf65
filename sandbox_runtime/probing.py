"""What providers share about trying a sandbox for real: how long that may take, and whether isolation holds."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import UID
from sandbox_runtime.provider import Sandbox

PROBE_TIMEOUT_S = 10.0
EXEC_TIMEOUT_S = 8.0
FILE_BYTES = 1024 * 1024
"""`SandboxLimits.max_file_bytes` of the sandbox that is asked."""

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
(i=0; while [ $i -lt $1 ]; do sleep 3 & i=$((i+1)); done) 2>/dev/null && echo "forks unlimited" || echo "forks limited"
"""
_EXPECTED = {
    "uid": str(UID),
    "capabilities": "0000000000000000",
    "interfaces": "1",
    "nested": "no",
    "file": str(FILE_BYTES),
    "python": "3",
    "forks": "limited",
}


@asynccontextmanager
async def probing(
    asked: str, *, otherwise: SandboxErrorCode = SandboxErrorCode.UNAVAILABLE
) -> AsyncIterator[None]:
    """Bounds a probe by `PROBE_TIMEOUT_S`. Raises: SandboxError: `otherwise` when there was no answer by then."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            yield
    except TimeoutError as exc:
        raise SandboxError(
            otherwise,
            f"no answer from {asked} within {PROBE_TIMEOUT_S:g} s",
            retryable=otherwise is SandboxErrorCode.UNAVAILABLE,
        ) from exc


async def check_isolation(
    sandbox: Sandbox,
    *,
    what: str,
    forks: int,
    max_processes_seen: int,
    facts: str = "",
    expected: Mapping[str, str] | None = None,
) -> None:
    """Asks a sandbox what holds in it. `forks` is more than its limit of processes; `facts` are more lines of a shell script.

    Raises:
        SandboxError: ISOLATION_UNAVAILABLE with what does not hold.
    """
    result = await sandbox.exec(
        ["sh", "-c", facts + _FACTS, "sh", str(forks)], timeout_s=EXEC_TIMEOUT_S
    )
    found = dict(line.split(" ", 1) for line in result.text.splitlines() if " " in line)
    wrong = [
        f"{fact} is {found.get(fact)!r}, not {value!r}"
        for fact, value in {**_EXPECTED, **(expected or {})}.items()
        if found.get(fact) != value
    ]
    if int(found.get("processes", "0")) not in range(1, max_processes_seen):
        wrong.append(f"{found.get('processes')} processes are visible")
    if wrong:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"{what} starts but does not isolate: {'; '.join(wrong)}",
        )

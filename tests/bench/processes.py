"""The servers under measurement: processes of their own, started, awaited, weighed and ended by pid."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.settings.settings import host_environment
from tests.plain_http import NO_TLS

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 4_000
ROOT = Path(__file__).parents[2]
OWN_PREFIXES = ("SLACK_", "ORION_", "LANGFUSE_", "ANTHROPIC_", "AI_GATEWAY_", "DBOS_")
"""Variables of the caller that must not change what is measured."""


class BenchError(Exception):
    """A part of the bench could not be measured; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    pid: int

    @property
    def memory_mib(self) -> float:
        """Resident set: counts pages shared with other processes in full, so it is the pessimistic figure.

        Source: Linux, proc_pid_status(5), VmRSS in kB.
        """
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    @property
    def cpu_s(self) -> float:
        """Processor time so far, of all threads. Source: Linux, proc_pid_stat(5), utime and stime in clock ticks."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def child_environment(settings: Mapping[str, str], *, directory: Path) -> dict[str, str]:
    """The caller's environment without Orion's own variables, with `settings`; temporary files go to `directory`."""
    inherited = {
        name: value
        for name, value in host_environment().items()
        if not name.startswith(OWN_PREFIXES)
    }
    return {**inherited, "TMPDIR": str(directory), "PYTHONPATH": str(ROOT), **settings}


@asynccontextmanager
async def open_server(
    argv: Sequence[str],
    *,
    port: int,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> AsyncIterator[Server]:
    """`python -m argv…`, which answers `/healthz` on `port`, while the block runs; what it writes goes to a log file.

    At the end it is asked to stop, and killed after `stop_timeout_s`.

    Raises:
        BenchError: it did not come up; the message ends with the tail of its log.
    """
    log_path = directory / f"{argv[0]}-{port}.log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *argv,
            env=child_environment(settings or {}, directory=directory),
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await _wait_until_ready(f"{url}/healthz", process, log_path)
        yield Server(url=url, pid=process.pid)
    finally:
        await end(process, timeout_s=stop_timeout_s)


async def run_to_end(
    argv: Sequence[str],
    *,
    directory: Path,
    timeout_s: float,
    settings: Mapping[str, str] | None = None,
) -> bytes:
    """`python -m argv…` to its end; what it printed.

    Raises:
        BenchError: it failed or took longer than `timeout_s`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *argv,
        env=child_environment(settings or {}, directory=directory),
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            stdout, _ = await process.communicate()
    except TimeoutError as exc:
        raise BenchError(f"{argv[0]} took longer than {timeout_s:.0f} s") from exc
    finally:
        await end(process, timeout_s=STOP_TIMEOUT_S)
    if process.returncode:
        raise BenchError(
            f"{argv[0]} ended with {process.returncode}: {stdout[-LOG_TAIL_BYTES:].decode(errors='replace')}"
        )
    return stdout


async def _wait_until_ready(url: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(READY_TIMEOUT_S),
            httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
        ):
            while process.returncode is None:
                with suppress(httpx.HTTPError):
                    if (await http.get(url)).is_success:
                        return
                await asyncio.sleep(0.05)
    raise BenchError(f"{log_path.stem} did not come up; its log ends:\n{_tail(log_path)}")


def _tail(path: Path) -> str:
    return path.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


async def end(process: asyncio.subprocess.Process, *, timeout_s: float) -> None:
    """Asked first, so that sandboxes go too; then killed."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()

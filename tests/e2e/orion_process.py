"""`orion serve` as a process of its own, and `orion …` beside it: started, watched, killed, reaped by pid."""

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import httpx
import sqlalchemy as sa

from app.playground.slack.types import JsonObject
from app.runs.testing import Run, RunId, RunState
from app.settings.settings import host_environment
from app.store.engine import open_engine
from app.store.runs import open_store
from tests.forking import REPOSITORY, ForkedProcess, forker
from tests.plain_http import NO_TLS
from tests.ports import free_port

ROOT = Path("/")
SCRUBBED = ("SLACK_", "ORION_", "LANGFUSE_", "ANTHROPIC_", "AI_GATEWAY_")
READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
"""As `compose.yaml` gives a worker: 10 s of grace, 2 to hand over, 20 to clean up, twice 10 for a database that is away."""
FILLED_WITHIN_S = 90.0
AT_REST_WITHIN_S = 60.0
"""For the pool to be full again as well."""
CLI_TIMEOUT_S = 180.0
POLL_S = 0.05
SLICE_S = host_environment().get("TEST_SLICE_S", "0")
"""With TEST_SLICE_S=2 all that these tests prove is proven of work in slices."""
SERVE = ("app.cli", "serve")
"""Module and arguments."""


class OrionProcess:
    """`orion serve` on a state directory of its own; may be killed and started again on the same one."""

    def __init__(
        self, *, state_dir: Path, settings: Mapping[str, str], command: Sequence[str] = SERVE
    ) -> None:
        self.state_dir = state_dir
        self.log_path = state_dir.with_suffix(".log")
        self.port = int(settings.get("ORION_PORT", 0)) or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.directory = state_dir.parent
        """In which it is started: without a `.env` or an `orion.toml`, unless a test puts them there."""
        self.environment = scrubbed_environment() | {
            "ORION_LOG_FORMAT": "json",
            "ORION_RUNS_PER_USER_HOUR": "100000",
            "ORION_SESSION_KEEP_S": "0",  # so that what is left of a run is a leak
            "ORION_WARM_POOL_SIZE": "0",  # an agent that waits has loaded its SDK for nobody
            "ORION_SLICE_S": SLICE_S,
            **settings,
            "ORION_STATE_DIR": str(state_dir),
            "ORION_HOST": "127.0.0.1",
            "ORION_PORT": str(self.port),
        }
        self.program: Sequence[str] = ("-m", *command)
        """What Python runs at the next start."""
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None

    @property
    def database(self) -> Path | str:
        """Where its records are: a file, or a URL."""
        return self.environment.get("ORION_DATABASE_URL") or self.state_dir / "orion.db"

    @property
    def pid(self) -> int:
        return self._living.pid

    @property
    def exit_code(self) -> int | None:
        return self._living.returncode

    @property
    def log(self) -> str:
        """Of all starts so far."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def log_lines(self, event: str) -> list[JsonObject]:
        """The log's lines of that event, of all starts so far."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    async def until_logged(self, event: str, times: int, *, timeout_s: float) -> None:
        """So many lines of that event are there, of all starts so far."""
        async with asyncio.timeout(timeout_s):
            while len(self.log_lines(event)) < times:
                await asyncio.sleep(POLL_S)

    def tracebacks(self) -> list[str]:
        """The log's lines that hold one: each is a bug."""
        return [line for line in self.log.splitlines() if "Traceback" in line]

    async def start(self) -> None:
        """Returns when it answers over HTTP.

        Raises:
            AssertionError: it ended, or does not answer in time; with its log.
        """
        await self.launch()
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            with suppress(TimeoutError):
                async with asyncio.timeout(READY_TIMEOUT_S):
                    while self.exit_code is None:
                        with suppress(httpx.HTTPError):
                            if (await http.get(f"{self.url}/healthz")).is_success:
                                return
                        await asyncio.sleep(POLL_S)
        raise AssertionError(f"orion serve is not ready (exit code {self.exit_code}):\n{self.log}")

    async def launch(self) -> None:
        """Begin to start; returns at once."""
        with self.log_path.open("ab") as log:
            if _can_be_forked(self.program, self.environment):
                self._process = forker().fork(
                    self.program[1],
                    self.program[2:],
                    environment=self.environment,
                    directory=self.directory,
                    output=log.fileno(),
                )
            else:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, *self.program),
                    env=self.environment,
                    cwd=self.directory,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    @property
    def is_up(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def is_frozen(self) -> bool:
        """Source: Linux, proc_pid_stat(5): the state of a process that a signal stopped is T."""
        return self.is_up and process_state(self.pid) == "T"

    def freeze(self) -> None:
        """The process alone, as a paused virtual machine would be; its children go on."""
        self._living.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._living.send_signal(signal.SIGCONT)

    def kill_group(self) -> None:
        """SIGKILL to the whole process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def died(self, *, timeout_s: float) -> bool:
        """Whether it ended within that time, by itself or by others."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._living.wait()
        return self.exit_code is not None

    async def kill9(self) -> None:
        """The process alone, as the kernel's out-of-memory killer would: its children must end by themselves."""
        self._living.kill()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await self._living.wait()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.exit_code is None:
            self._living.terminate()

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.ask_to_end()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await self._living.wait()

    async def reap(self) -> None:
        """Nothing of its process group is left when this returns."""
        if self._process is None:
            return
        if self.is_frozen:
            self.thaw()
        try:
            await self.terminate()
        except TimeoutError:
            with suppress(ProcessLookupError):  # it ended just now
                await self.kill9()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def run(self, run_id: RunId) -> Run | None:
        """The run's record."""
        async with open_store(self.database) as store:
            return await store.get(run_id)

    def has_ended(self, run_id: RunId) -> bool:
        """Whether its record is final."""
        state = self._look("SELECT state FROM orion_runs WHERE id = :id", id=run_id)
        return state is not None and RunState(str(state)).is_final

    def has_heard(self) -> bool:
        """Whether it is noted that somebody heard: without, the next start is a first one, which has missed nothing."""
        return self._look("SELECT place FROM orion_heard LIMIT 1") is not None

    def _look(self, query: str, **values: str) -> object:
        """The first value; a look that costs little."""
        if isinstance(self.database, str):
            with open_engine(self.database) as engine, engine.connect() as connection:
                return connection.scalar(sa.text(query), values)
        path = self.database
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
            row = database.execute(query, values).fetchone()
        return row[0] if row else None

    async def unfinished(self) -> Sequence[Run]:
        async with open_store(self.database) as store:
            return await store.unfinished()

    def sandbox_directories(self) -> list[str]:
        # Without a provider of sandboxes there is no such directory.
        return [path.name for path in (self.state_dir / "sandboxes").glob("*")]

    async def waiting_sandboxes(self) -> int:
        """How many its warm pools hold, by its own metrics; 0 when it has ended."""
        if self.exit_code is not None:
            return 0
        key = {"Authorization": f"Bearer {self.environment.get('ORION_OPS_TOKEN')}"}
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, headers=key) as http:
            metrics = (await http.get(f"{self.url}/metrics")).raise_for_status().text
        return sum(map(int, re.findall(r"^orion_pool_waiting\{.*\} (\d+)", metrics, re.MULTILINE)))

    async def until_waiting(self) -> None:
        """A sandbox waits in the pool."""
        async with asyncio.timeout(FILLED_WITHIN_S):
            while await self.waiting_sandboxes() == 0:
                await asyncio.sleep(POLL_S)

    async def left_sandboxes(self, *, beside: int = 0) -> list[str]:
        """What there is of sandboxes, none when all of them wait in the pool: directories and processes. `beside`: how many wait in other processes' pools."""
        waiting = await self.waiting_sandboxes() + beside
        directories = self.sandbox_directories()
        if len(directories) == waiting and self.living_sandboxes() <= set(directories):
            return []
        return [
            f"{waiting} sandboxes wait in the pool",
            *(f"sandbox directory left: {name}" for name in directories),
            *(f"sandbox process left: {process}" for process in self.sandbox_processes()),
        ]

    async def until_at_rest(self, *, timeout_s: float = AT_REST_WITHIN_S) -> None:
        """Raises: AssertionError: of sandboxes there is more than those in the pool."""
        left: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while left := await self.left_sandboxes():
                    await asyncio.sleep(POLL_S)
        assert left == []

    def sandbox_processes(self, sandbox_id: str = "") -> list[str]:
        """Living processes that see a directory of this state directory's sandboxes, or of one of them, as theirs."""
        needle = f"{self.state_dir.name}/sandboxes/{sandbox_id}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if needle in (entry / "mountinfo").read_bytes():
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        found.append(f"{entry.name}: {command}")
        return found

    def living_sandboxes(self) -> set[str]:
        """Those in which a process lives."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    mounts = (entry / "mountinfo").read_text()
                    found |= set(re.findall(rf"{self.state_dir.name}/sandboxes/(\w+)", mounts))
        return found

    @property
    def _living(self) -> asyncio.subprocess.Process | ForkedProcess:
        assert self._process is not None, "not started"
        return self._process


def process_state(pid: int | str) -> str | None:
    """One letter; None when there is no such process. Source: Linux, proc_pid_stat(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(") ")[2].split()[0]


def owns_connection(pid: int, port: int) -> bool:
    """Whether the process has a TCP connection from that port of this machine. Source: Linux, proc_pid_net(5), proc_pid_fd(5)."""
    table = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in table if int(row[1].partition(":")[2], 16) == port}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if str(descriptor.readlink()) in sockets:
                return True
    return False


def new_state_dir(parent: Path) -> Path:
    """A path that no other process on this machine has in its mounts."""
    return parent / f"state-{secrets.token_hex(4)}"


async def run_cli(
    *arguments: str,
    environment: Mapping[str, str],
    directory: Path = ROOT,
    timeout_s: float = CLI_TIMEOUT_S,
) -> tuple[int, str]:
    """Run `orion …` to its end; exit code and everything it printed."""
    return await run_python(
        *("-m", "app.cli", *arguments),
        environment=environment,
        directory=directory,
        timeout_s=timeout_s,
    )


async def run_python(
    *arguments: str,
    environment: Mapping[str, str],
    directory: Path = ROOT,
    timeout_s: float = CLI_TIMEOUT_S,
) -> tuple[int, str]:
    """Run this Python to its end; exit code and everything it printed."""
    with tempfile.TemporaryFile() as output:
        if _can_be_forked(arguments, environment):
            process: asyncio.subprocess.Process | ForkedProcess = forker().fork(
                arguments[1],
                arguments[2:],
                environment=environment,
                directory=directory,
                output=output.fileno(),
            )
        else:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *arguments),
                env=environment,
                cwd=directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        output.seek(0)
        return code, output.read().decode()


def _can_be_forked(program: Sequence[str], environment: Mapping[str, str]) -> bool:
    """A module of this checkout, not of another version."""
    return program[0] == "-m" and environment.get("PYTHONPATH") == str(REPOSITORY)


def put_environments(prepared: Path, state_dir: Path) -> None:
    """Links to the prepared environments, which are never written to, and copies of what names them; what is there stays."""
    state_dir.mkdir(mode=0o700, exist_ok=True)
    for name in ("snapshots", "names"):
        shutil.copytree(prepared / name, state_dir / name, symlinks=True, dirs_exist_ok=True)
    (state_dir / "environments").mkdir(exist_ok=True)
    for environment in (prepared / "environments").iterdir():
        (state_dir / "environments" / environment.name).symlink_to(environment.resolve())


def scrubbed_environment() -> dict[str, str]:
    """The host's environment without anything that configures Orion, and with this checkout's code."""
    kept = {
        name: value for name, value in host_environment().items() if not name.startswith(SCRUBBED)
    }
    return kept | {"PYTHONPATH": str(REPOSITORY), "ORION_SANDBOX": "local"}

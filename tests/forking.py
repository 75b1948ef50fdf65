"""`orion …` without its imports: a process that has done them forks for each start. They take two seconds of processor time.

What is forked is a process like any other: a session, an environment, a directory and standard streams of its own, and it ends as
Python ends. Its parent is the forking process, which tells the test how it ended. Linux only, as the sandboxes are.
"""

import asyncio
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from app.settings.settings import host_environment

REPOSITORY = Path(__file__).parents[1]
_MOST_BYTES = 200_000
_IMPORTED = (
    *("app.main", "app.cli", "langfuse", "uvicorn", "uvloop", "slack_bolt", "slack_sdk"),
    *(
        "psycopg",
        "aiodocker",
        "requests",
        "h11",
        "uvicorn.protocols.http.auto",
        "uvicorn.lifespan.on",
    ),
    *("app.cli.commands.serve", "app.dispatch.durable", "app.tracing.langfuse"),
    *("sandbox_runtime.providers.local.provider", "sandbox_runtime.providers.docker.provider"),
    *(f"agent_scripts.agents.{name}.adapter" for name in ("anthropic", "claude", "codex")),
    *(f"agent_scripts.agents.{name}.adapter" for name in ("copilot", "gemini", "opencode")),
)
"""What a service imports, some of it late; what is not there is left out."""
POLL_S = 0.005


class ForkedProcess:
    """As much of `asyncio.subprocess.Process` as tests use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        connection.settimeout(0)
        self._connection = connection.detach()
        self._code: int | None = None

    def __del__(self) -> None:
        if self._code is None:
            os.close(self._connection)

    @property
    def returncode(self) -> int | None:
        if self._code is None:
            try:
                told = os.read(self._connection, 100)
            except BlockingIOError:
                return None
            # Nothing is told when the forking process itself has been killed.
            self._code = int(told or -signal.SIGKILL)
            os.close(self._connection)
        return self._code

    async def wait(self) -> int:
        while (code := self.returncode) is None:
            await asyncio.sleep(POLL_S)
        return code

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Raises: ProcessLookupError: it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)


class Forker:
    """The forking process, as its only user sees it."""

    def __init__(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            kept = ("PATH", "HOME", "LANG")
            environment = {n: value for n, value in host_environment().items() if n in kept}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env=environment | {"PYTHONPATH": str(REPOSITORY)},
                start_new_session=True,
            )
        self._socket = mine
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        output: int,
        error: int | None = None,
    ) -> ForkedProcess:
        """Python runs the module; its streams go to these descriptors, both to the first unless there are two. It reads nothing."""
        wanted = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": str(directory),
        }
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, self._lock:
            streams = [output, output if error is None else error]
            socket.send_fds(self._socket, [json.dumps(wanted).encode()], [*streams, its.fileno()])
        return ForkedProcess(mine, int(mine.recv(100)))


_forker: Forker | None = None


def forker() -> Forker:
    """The one of this process, started when it is first needed; it ends when this process does."""
    global _forker  # noqa: PLW0603 - one for all tests
    if _forker is None or not _forker.is_alive:
        _forker = Forker()
    return _forker


def run_forked(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    directory: Path,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` runs it. Raises: TimeoutError: it has not ended in time, and is killed."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as error:
        process = forker().fork(
            module,
            arguments,
            environment=environment,
            directory=directory,
            output=output.fileno(),
            error=error.fileno(),
        )
        until_s = time.monotonic() + timeout_s
        while (code := process.returncode) is None:
            if time.monotonic() > until_s:
                process.kill()
                raise TimeoutError(f"{module} {' '.join(arguments)}: {timeout_s} s")
            time.sleep(POLL_S)
        output.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess((module, *arguments), code, output.read(), error.read())


def _serve(control: socket.socket) -> Callable[[], None] | None:
    """Forks until the test process is gone. Returns in each child what it is to run."""
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                waiting.unregister(key.fileobj)
                _tell_the_end(key.fd, *key.data)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 3)
            if not message:
                _end_all(waiting)
                return None
            *streams, its = descriptors
            connection = socket.socket(fileno=its)
            pid = os.fork()
            if pid == 0:
                connection.close()
                _close(waiting)
                return _child(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            connection.send(str(pid).encode())
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _end_all(waiting: selectors.BaseSelector) -> None:
    """What a test process that was killed has left."""
    for key in waiting.get_map().values():
        if key.data is not None:
            with suppress(ProcessLookupError):
                os.killpg(key.data[0], signal.SIGKILL)


def _close(waiting: selectors.BaseSelector) -> None:
    """What only the forking process needs."""
    for key in list(waiting.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
            key.data[1].close()
    waiting.close()


def _tell_the_end(pidfd: int, pid: int, connection: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    with connection, suppress(OSError):  # nobody waits for it any more
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _child(wanted: Mapping[str, Any], streams: Sequence[int]) -> Callable[[], None]:
    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(wanted["directory"])
    os.environ.clear()  # noqa: TID251 - it is to have that of its start
    os.environ.update(wanted["environment"])  # noqa: TID251
    time.tzset()
    random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:] = wanted["arguments"]

    def run() -> None:
        runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)

    return run


def main() -> None:
    for name in _IMPORTED:
        with suppress(ImportError):
            import_module(name)
    assert threading.active_count() == 1, "threads do not survive a fork"
    gc.freeze()
    run = _serve(socket.socket(fileno=int(sys.argv[1])))
    if run is not None:
        run()


if __name__ == "__main__":
    main()

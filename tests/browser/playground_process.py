"""An `orion playground` as a process of its own, as people start it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.bench.processes import child_environment
from tests.e2e.orion_process import put_environments
from tests.e2e.prepared import prepared_state_dir
from tests.ports import free_port

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0


@contextmanager
def run_playground(directory: Path, **settings: str) -> Iterator[str]:
    """Yields its address, once Orion behind it has said that it is open. With the directory as the current one."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    put_environments(prepared_state_dir(), directory / "state")
    argv = ["playground", "--port", str(port), "--state-dir", str(directory / "state")]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.cli", *argv],
            env=child_environment(settings, directory=directory),
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_open(url, process, directory / "log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_open(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        if b"The playground is open" in log.read_bytes():
            httpx.get(url, trust_env=False).raise_for_status()
            return
        time.sleep(0.1)
    raise AssertionError(f"the playground did not open: {log.read_text()[-2000:]}")

"""Runs one agent inside the sandbox: limits, stop, and a numbered log of everything it prints.

Usage: `python3 -I supervisor.py CONFIG.json [PLAN.json]`; with a plan it is started ahead of its configuration and waits
for it (`waiting.py`). Standard library only, and nothing newer than Python 3.9: this runs on
whatever `python3` the sandbox has. One thread and one poll loop decide everything; the relay has threads of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside import process_tree
from agent_scripts.inside.records import LineSplitter, Recorder
from agent_scripts.inside.relay import broker_url
from agent_scripts.inside.standby import Standby
from agent_scripts.inside.usage import Usage
from agent_scripts.inside.waiting import EndedError, wait_for_config

_POLL_S = 0.1
_CLOSED_POLL_S = 0.02
"""With both pipes closed nothing wakes the loop, and the exit is near."""
_GRACE_S = 0.5
_KILL_S = 1.0
_DRAIN_S = 0.3
"""Pipes held open by something unkillable delay the exit record by no more than this."""
_FLUSH_S = 10.0
"""A host that does not read its stdout is waited for this long at the end; events.jsonl has everything anyway."""
_STDOUT = 1
_READ_BYTES = 64 * 1024
_ARGUMENTS = 2
"""The script and its configuration."""


class Supervision:
    """One agent process from its start to its exit record."""

    def __init__(
        self, config: dict[str, Any], recorder: Recorder, standby: Standby | None = None
    ) -> None:
        self._config = config
        self._standby = standby
        self._recorder = recorder
        self._usage = Usage(config)
        self._signalled = False
        self._exit_code: int | None = None
        self._output_bytes = 0
        self._pid = 0
        self._streams: dict[int, tuple[str, LineSplitter]] = {}
        self._started = self._last_line = time.monotonic()
        self._selector = selectors.PollSelector()  # epoll refuses a stdout that is a regular file

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A handler, not SIG_IGN, which the agent would inherit: losing the terminal must not end the run.
        signal.signal(signal.SIGHUP, lambda *_: None)
        process_tree.become_subreaper()
        self._usage.start()
        if not self._start():
            return
        while not (reason := self._verdict()):
            self._poll(_POLL_S if self._streams else _CLOSED_POLL_S)
        if reason != "exited":
            self._ask_to_end()
        survivors = process_tree.kill_until_gone(self._tree, timeout_s=_KILL_S, between=self._reap)
        self._drain()
        code = self._exit_code if self._exit_code is not None else 128 + signal.SIGKILL
        self._recorder.write("exit", code=code, reason=reason, survivors=survivors)

    def flush(self) -> None:
        """Let the host read what is left, for a bounded time."""
        deadline = time.monotonic() + _FLUSH_S
        while self._recorder.pending and time.monotonic() < deadline:
            self._poll(_POLL_S)

    def _on_signal(self, *_: object) -> None:
        self._signalled = True

    def _start(self) -> bool:
        config = self._config
        try:
            process = self._open_process()
        except OSError as exc:
            text = f"cannot start {config['argv'][0]}: {exc}"
            self._recorder.write("line", stream="stderr", text=text, truncated=False)
            code = 126 if isinstance(exc, PermissionError) else 127
            self._recorder.write("exit", code=code, reason="exited", survivors=0)
            return False
        self._pid = process.pid
        process_tree.give_way(process.pid)
        process.returncode = (
            0  # `_reap` is the only one that waits; Popen must not warn or wait at the end
        )
        self._process = process
        self._recorder.write("started", pid=process.pid)
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe is not None:
                self._streams[pipe.fileno()] = (name, LineSplitter(config["max_line_bytes"]))
                self._selector.register(pipe.fileno(), selectors.EVENT_READ)
        return True

    def _open_process(self) -> subprocess.Popen[bytes]:
        config = self._config
        relay = broker_url(config["broker"]) if config["broker"] else ""
        for name in config["naming_relay"]:
            path = Path(name)
            path.write_text(path.read_text("utf-8").replace("{relay}", relay), "utf-8")
        environment = self._environment(relay)
        how = {"cwd": config["cwd"], "stdin_path": config["stdin_path"]}
        if self._standby is not None and self._standby.begin(
            config["argv"], env=environment, **how
        ):
            return self._standby.process
        with Path(config["stdin_path"] or os.devnull).open("rb") as stdin:
            return subprocess.Popen(
                config["argv"],
                env=environment,
                cwd=config["cwd"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def _environment(self, relay: str) -> dict[str, str]:
        env = self._config["env"]
        added = {name: value.replace("{relay}", relay) for name, value in env.items()}
        search = os.pathsep.join((self._config["bin_path"], os.environ.get("PATH", os.defpath)))
        return {**os.environ, "PATH": search, **added}

    def _verdict(self) -> str | None:
        """Why the run is over, or None while it is not."""
        now = time.monotonic()
        config = self._config
        if self._signalled or Path(config["stop_path"]).exists():
            return "stopped"
        if self._output_bytes > config["max_output_bytes"]:
            return "output_limit"
        self._reap()
        if self._exit_code is not None:
            return "exited"
        if self._usage.excess:
            return self._usage.excess
        if now - self._started > config["timeout_s"]:
            return "timeout"
        return "idle" if now - self._last_line > config["idle_timeout_s"] else None

    def _poll(self, timeout_s: float) -> None:
        stdout = _STDOUT
        waiting = bool(self._recorder.pending)
        if waiting:
            self._selector.register(stdout, selectors.EVENT_WRITE)
        ready = self._selector.select(timeout_s)
        if waiting:
            self._selector.unregister(stdout)
        for key, _ in ready:
            if key.fd == stdout:
                self._recorder.pump()
            else:
                self._read(key.fd)

    def _read(self, fd: int) -> None:
        name, splitter = self._streams[fd]
        data = os.read(fd, _READ_BYTES)
        if not data:
            self._selector.unregister(fd)
            del self._streams[fd]
        self._output_bytes += len(data)
        for text, truncated in splitter.feed(data) if data else splitter.end():
            if self._output_bytes > self._config["max_output_bytes"]:
                return  # the log ends here; the pipe is still emptied so that the agent can end
            self._last_line = time.monotonic()
            written = self._recorder.write("line", stream=name, text=text, truncated=truncated)
            # What its record adds: for a line of a newline alone, a hundred times its size.
            self._output_bytes += written - len(text)

    def _ask_to_end(self) -> None:
        process_tree.send(self._tree(), signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while self._tree() and time.monotonic() < deadline:
            self._poll(_CLOSED_POLL_S)
            self._reap()

    def _drain(self) -> None:
        """Read what the pipes still hold, not waiting for whatever keeps them open, and collect the exit code.

        A process counts as a zombie while its threads still end, and can be waited for only after that.
        """
        deadline = time.monotonic() + _DRAIN_S
        while (self._streams or self._exit_code is None) and time.monotonic() < deadline:
            self._poll(_CLOSED_POLL_S)
            self._reap()
        for name, splitter in self._streams.values():
            for text, truncated in splitter.end():
                self._recorder.write("line", stream=name, text=text, truncated=truncated)

    def _tree(self) -> set[int]:
        return process_tree.descendants(os.getpid())

    def _reap(self) -> None:
        """Collect the agent and every orphan that came to us as their subreaper."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._exit_code = code if code >= 0 else 128 - code


def main() -> None:
    """Supervise what the configuration says, to its end."""
    path = Path(sys.argv[1])
    standby = None
    if len(sys.argv) > _ARGUMENTS:
        plan = json.loads(Path(sys.argv[2]).read_text("utf-8"))
        try:
            config, standby = wait_for_config(path, plan)
        except EndedError as exc:
            sys.exit(str(exc))
    else:
        config = json.loads(path.read_text("utf-8"))
    # It holds the run token; gone before the agent starts, so that no snapshot of the sandbox can keep it.
    path.unlink()
    supervision = Supervision(config, Recorder(config["events_path"]), standby)
    supervision.run()
    supervision.flush()
    # A stop belongs to this run only; another run in the same folder must not find it.
    Path(config["stop_path"]).unlink(missing_ok=True)


if __name__ == "__main__":
    main()

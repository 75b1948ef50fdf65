"""Runs one agent inside the sandbox: limits, stop, and a numbered log of everything it prints.

Usage: `python3 -I supervisor.py CONFIG.json [PLAN.json]`; with a plan it is started ahead of its configuration and waits
for it (`preload.py`). Standard library only, and nothing newer than Python 3.9: this runs on
whatever `python3` the sandbox has. One thread and one poll loop decide everything; the relay, and what watches files and
processes, have threads of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside import process_tree
from agent_scripts.inside.preload import EndedError, PreloadedAgent, wait_for_config
from agent_scripts.inside.relay import broker_url, start_egress

_STDOUT = 1
_WRITE_BYTES = 4096
_CUT_MARK = " …[cut]"


class Recorder:
    """Writes each record to events.jsonl at once, and to stdout as fast as the host reads it.

    Neither a full disk nor a closed or stuck stdout ever stops the supervisor. What waits for stdout is bounded by
    `max_output_bytes`.
    """

    def __init__(self, events_path: str) -> None:
        self._seq = 0
        path = Path(events_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log: Any = path.open("wb", buffering=0)
        self._is_torn = False
        """The last record in the log is a piece of one: the disk was full."""
        self.pending = bytearray()
        self._stdout_open = True

    def write(self, kind: str, **fields: object) -> int:
        """Writes a record, and returns its size in bytes."""
        self._seq += 1
        record = {"seq": self._seq, "t": round(time.time(), 3), "kind": kind, **fields}
        data = json.dumps(record).encode() + b"\n"
        self._log_record(data)
        if self._stdout_open:
            self.pending += data
        return len(data)

    def _log_record(self, data: bytes) -> None:
        line = b"\n" + data if self._is_torn else data
        with contextlib.suppress(OSError):
            written = self._log.write(line)
            self._is_torn = written < len(line)

    def pump(self) -> None:
        """Hands stdout what it takes without blocking. Call it when poll says writable.

        Source: pipe(7), poll reports writable when PIPE_BUF (4096) bytes fit.
        """
        try:
            written = os.write(_STDOUT, self.pending[:_WRITE_BYTES])
            del self.pending[:written]
        except OSError:
            self._stdout_open = False
            self.pending.clear()


class LineSplitter:
    """Cuts one stream into lines of at most `max_line_bytes`; the rest of a longer line is dropped."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._carry = bytearray()
        self._truncated = False

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        *complete, rest = data.split(b"\n")
        lines = []
        for piece in complete:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[tuple[str, bool]]:
        """Returns a last line without a newline, if there is one."""
        return [self._take()] if self._carry else []

    def _add(self, piece: bytes) -> None:
        room = self._max - len(self._carry)
        self._carry += piece[:room]
        self._truncated = self._truncated or len(piece) > room

    def _take(self) -> tuple[str, bool]:
        text = self._carry.decode("utf-8", "replace") + (_CUT_MARK if self._truncated else "")
        line = (text, self._truncated)
        self._carry.clear()
        self._truncated = False
        return line


_PAUSE_S = 1.0
_PAUSE_FACTOR = 10
"""A tree that takes long to measure is measured for a tenth of the time at most."""
_CROWDED = 0.95
"""Of the allowed processes; the kernel refuses the last one, and counts some that are not seen here."""
_CROWDED_LOOKS = 3
"""In a row: a burst that passes is no reason to end an agent."""
_BLOCK_BYTES = 512
"""Source: stat(2), st_blocks."""


class Usage:
    """Looks about once a second, on a thread of its own, which is started before the agent can use up what it needs."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._roots = [*config["disk_paths"], tempfile.gettempdir()]
        self._max_disk_bytes: int = config["max_disk_bytes"]
        self._max_processes: int = config["max_processes"]
        self._crowded_looks = 0
        self.excess = ""
        """`disk_limit` or `process_limit` once the agent has gone beyond."""

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.excess:
            started = time.monotonic()
            with contextlib.suppress(OSError):  # no descriptor is left for the moment: look again
                self._look()
            took = time.monotonic() - started
            time.sleep(max(_PAUSE_S, _PAUSE_FACTOR * took))

    def _look(self) -> None:
        tasks = count_tasks(process_tree.descendants(os.getpid()))
        is_crowded = tasks > _CROWDED * self._max_processes
        self._crowded_looks = self._crowded_looks + 1 if is_crowded else 0
        if self._crowded_looks >= _CROWDED_LOOKS:
            self.excess = "process_limit"
        elif disk_bytes(self._roots, stop_at=self._max_disk_bytes) > self._max_disk_bytes:
            self.excess = "disk_limit"


def disk_bytes(roots: list[str], *, stop_at: int) -> int:
    """Returns what the files below `roots` take, those with several names once; counts no further than past `stop_at`."""
    total = 0
    seen = set()
    todo = list(roots)
    while todo and total <= stop_at:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if (found.st_dev, found.st_ino) in seen:
                            continue
                        seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    return total


def count_tasks(pids: set[int]) -> int:
    """Returns the number of threads of these processes, which the kernel's limits count one by one.

    Source: proc(5); a directory has two links and one more for each directory in it, of which `task` has one a thread.
    """
    tasks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            tasks += Path(f"/proc/{pid}/task").stat().st_nlink - 2
    return tasks


_POLL_S = 0.1
_CLOSED_POLL_S = 0.02
"""With both pipes closed nothing wakes the loop, and the exit is near."""
_GRACE_S = 0.5
_KILL_S = 1.0
_DRAIN_S = 0.3
"""Pipes held open by something unkillable delay the exit record by no more than this."""
_FLUSH_S = 10.0
"""A host that does not read its stdout is waited for this long at the end; events.jsonl has everything anyway."""
_READ_BYTES = 64 * 1024
_ARGUMENTS = 2
"""The script and its configuration."""


class Supervision:
    """One agent process from its start to its exit record."""

    def __init__(
        self, config: dict[str, Any], recorder: Recorder, preloaded: PreloadedAgent | None = None
    ) -> None:
        self._config = config
        self._preloaded = preloaded
        self._recorder = recorder
        self._usage = Usage(config)
        self._signalled = False
        self._exit_code: int | None = None
        self._output_bytes = 0
        self._pid = 0
        self._streams: dict[int, tuple[str, LineSplitter]] = {}
        self._started = time.monotonic()
        self._last_line: float | None = None
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
        """Lets the host read what is left, for a bounded time."""
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
        process_tree.lower_priority(process.pid)
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
        if config["broker"]:
            start_egress(config["broker"])
        for name in config["naming_relay"]:
            path = Path(name)
            path.write_text(path.read_text("utf-8").replace("{relay}", relay), "utf-8")
        environment = self._environment(relay)
        how = {"cwd": config["cwd"], "stdin_path": config["stdin_path"]}
        if self._preloaded is not None and self._preloaded.begin(
            config["argv"], env=environment, **how
        ):
            return self._preloaded.process
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
        """Returns why the run is over, or None while it is not."""
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
        # Until its first line it starts, which on a busy machine takes long: `timeout_s` alone bounds that.
        is_idle = self._last_line is not None and now - self._last_line > config["idle_timeout_s"]
        return "idle" if is_idle else None

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
        """Reads what the pipes still hold, not waiting for whatever keeps them open, and collects the exit code.

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
        """Collects the agent and every orphan that came to us as their subreaper."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._exit_code = code if code >= 0 else 128 - code


def main() -> None:
    """Supervises what the configuration says, to its end."""
    path = Path(sys.argv[1])
    preloaded = None
    if len(sys.argv) > _ARGUMENTS:
        plan = json.loads(Path(sys.argv[2]).read_text("utf-8"))
        try:
            config, preloaded = wait_for_config(path, plan)
        except EndedError as exc:
            sys.exit(str(exc))
    else:
        config = json.loads(path.read_text("utf-8"))
    # It holds the run token; gone before the agent starts, so that no snapshot of the sandbox can keep it.
    path.unlink()
    supervision = Supervision(config, Recorder(config["events_path"]), preloaded)
    supervision.run()
    supervision.flush()
    # A stop belongs to this run only; another run in the same folder must not find it.
    Path(config["stop_path"]).unlink(missing_ok=True)


if __name__ == "__main__":
    main()

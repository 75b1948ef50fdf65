"""Files by way of exec: a small sh script runs inside the sandbox, so every path and symlink resolves there.

Works over any sandbox that has `sh` and the coreutils, whatever its provider.
"""

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.processes import KILLED
from sandbox_runtime.types import ExecResult

FILE_TIMEOUT_S = 120.0
DEFAULT_MAX_FILE_BYTES = 100 * 1024 * 1024

_MISSING, _DIRECTORY, _FORBIDDEN, _NOT_A_DIRECTORY = 80, 81, 82, 83
"""Exit codes of the scripts below; free of any meaning of their own in sh and the coreutils."""

_EXPLAIN = f"""
explain() {{
    [ -d "$1" ] && exit {_DIRECTORY}
    [ -e "$1" ] && exit {_FORBIDDEN}
    p=$1
    while [ ! -e "$p" ] && [ "$p" != / ]; do p=$(dirname -- "$p"); done
    [ -d "$p" ] || exit {_NOT_A_DIRECTORY}
    [ -x "$p" ] || exit {_FORBIDDEN}
}}
"""

# Only regular files: a FIFO planted at the path would block the reader.
_READ = f"""{_EXPLAIN}
if [ -f "$1" ] && [ -r "$1" ]; then exec head -c "$2" -- "$1"; fi
explain "$1"
exit {_MISSING}
"""

# Written beside the target, then renamed: readers see the old file or the new one, never half of it.
_WRITE = f"""{_EXPLAIN}
[ -d "$1" ] && exit {_DIRECTORY}
d=$(dirname -- "$1"; echo .); d=${{d%?.}}
mkdir -p -- "$d" 2>/dev/null || {{ explain "$d/."; exit {_FORBIDDEN}; }}
t=$(mktemp -- "$d/.tmp.XXXXXXXX" 2>/dev/null) || exit {_FORBIDDEN}
cat > "$t" && chmod -- "$2" "$t" && mv -fT -- "$t" "$1" || {{ code=$?; rm -f -- "$t"; exit "$code"; }}
"""

# One process for all files: a start of an agent writes eight, and an exec is a dozen processes. Without json, whose import
# takes longer than the rest.
_WRITE_ALL = """
import os, sys
source = sys.stdin.buffer
fields = source.read(int(source.readline())).split(b"\\0")
for path, size in zip(fields[::2], fields[1::2]):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = b"%s.tmp.%d" % (path, os.getpid())
        with open(temporary, "wb") as file:
            file.write(source.read(int(size)))
        os.replace(temporary, path)
    except OSError as exc:
        sys.stdout.buffer.write(b"%d\\0%s" % (exc.errno, path))
        sys.exit(1)
"""


class Exec(Protocol):
    """The part of `Sandbox.exec` that is needed here."""

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_output_bytes: int
    ) -> ExecResult: ...


async def write_file(run: Exec, path: str, data: bytes, *, work: str, executable: bool) -> None:
    """`Sandbox.write_file` over `run`."""
    target = _absolute(path, work)
    if target.endswith("/"):
        raise IsADirectoryError(path)
    argv = ["/bin/sh", "-c", _WRITE, "write", target, "755" if executable else "644"]
    result = await run(argv, timeout_s=FILE_TIMEOUT_S, stdin=data, max_output_bytes=4096)
    _check(result, path)


async def write_files(run: Exec, files: Mapping[str, bytes], *, work: str) -> None:
    """`Sandbox.write_files` over `run`. Raises: ValueError: NUL in a path."""
    if nul := next((path for path in files if "\0" in path), None):
        raise ValueError(f"NUL in a path: {nul!r}")
    fields = (
        (os.fsencode(_absolute(path, work)), b"%d" % len(data)) for path, data in files.items()
    )
    header = b"\0".join(part for pair in fields for part in pair)
    result = await run(
        ["python3", "-I", "-S", "-c", _WRITE_ALL],
        timeout_s=FILE_TIMEOUT_S,
        stdin=b"".join([b"%d\n" % len(header), header, *files.values()]),
        max_output_bytes=4096,
    )
    if result.exit_code != 0 and result.stdout:
        number, _, written = result.stdout.partition(b"\0")
        raise OSError(int(number), os.strerror(int(number)), os.fsdecode(written))
    _check(result, next(iter(files), ""))


async def read_file(run: Exec, path: str, *, work: str, max_bytes: int) -> bytes:
    """`Sandbox.read_file` over `run`."""
    argv = ["/bin/sh", "-c", _READ, "read", _absolute(path, work), str(max_bytes + 1)]
    result = await run(argv, timeout_s=FILE_TIMEOUT_S, max_output_bytes=max_bytes + 1)
    _check(result, path)
    if len(result.stdout) > max_bytes:
        raise SandboxError(
            SandboxErrorCode.FILE_TOO_LARGE, f"{path} is larger than {max_bytes} bytes"
        )
    return result.stdout


def _absolute(path: str, work: str) -> str:
    return posixpath.join(work, path)


_ERRORS: dict[int, Callable[[str], OSError]] = {
    _MISSING: FileNotFoundError,
    _DIRECTORY: IsADirectoryError,
    _FORBIDDEN: PermissionError,
    _NOT_A_DIRECTORY: NotADirectoryError,
}


def _check(result: ExecResult, path: str) -> None:
    if result.exit_code == 0:
        return
    if result.exit_code in _ERRORS:
        raise _ERRORS[result.exit_code](path)
    if result.exit_code == KILLED:
        # By the kernel for want of memory, by the operator, or by what else runs inside.
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE, f"{path}: killed while it was read or written"
        )
    reason = result.error_text.strip()[-500:] or f"exit code {result.exit_code}"
    raise OSError(f"{path}: {reason}")

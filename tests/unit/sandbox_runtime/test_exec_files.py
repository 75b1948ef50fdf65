"""What becomes of a file when the command that handles it fails."""

from collections.abc import Sequence

import pytest

from sandbox_runtime import ExecResult, SandboxError, SandboxErrorCode
from sandbox_runtime.command import read_file, write_file, write_files


async def _killed(
    argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_output_bytes: int
) -> ExecResult:
    del argv, timeout_s, stdin, max_output_bytes
    return ExecResult(exit_code=137, stdout=b"", stderr=b"")


async def test_a_killed_command_is_the_sandboxes_failure() -> None:
    """Not an error of the file system, which callers take for what is wrong with the path."""
    for work in (
        write_file(_killed, "a", b"", work="/work", executable=False),
        write_files(_killed, {"a": b""}, work="/work"),
        read_file(_killed, "a", work="/work", max_bytes=10),
    ):
        with pytest.raises(SandboxError) as caught:
            await work
        assert caught.value.code is SandboxErrorCode.UNAVAILABLE

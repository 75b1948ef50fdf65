"""A copy of a developer's directory in a sandbox."""

import asyncio
from asyncio.subprocess import PIPE
from pathlib import Path

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox

MAX_COPY_BYTES = 256 * 1024 * 1024
COPY_TIMEOUT_S = 120.0


async def copy_into(sandbox: Sandbox, directory: Path) -> None:
    """Put what is in the directory into the sandbox's work directory, except other file systems mounted in it.

    Raises:
        SandboxError: FILE_TOO_LARGE, EXEC_TIMEOUT, UNAVAILABLE.
    """
    archive = await _archive(directory)
    result = await sandbox.exec(
        ["tar", "--extract", "--no-same-owner", "--file", "-"],
        timeout_s=COPY_TIMEOUT_S,
        stdin=archive,
    )
    if result.exit_code != 0:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            f"cannot copy {directory} into a sandbox: {result.error_text.strip()[-500:]}",
        )


async def _archive(directory: Path) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("tar", "--create", "--one-file-system", "--file", "-", "--directory", str(directory)),
        ".",
        stdout=PIPE,
    )
    if process.stdout is None:
        raise AssertionError("it has a pipe")
    try:
        async with asyncio.timeout(COPY_TIMEOUT_S):
            parts: list[bytes] = []
            size = 0
            while part := await process.stdout.read(1024 * 1024):
                parts.append(part)
                size += len(part)
                if size > MAX_COPY_BYTES:
                    raise SandboxError(
                        SandboxErrorCode.FILE_TOO_LARGE,
                        f"{directory} holds more than {MAX_COPY_BYTES} bytes: too much to copy",
                    )
            code = await process.wait()
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.EXEC_TIMEOUT, f"copying {directory} took over {COPY_TIMEOUT_S:g} s"
        ) from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"cannot read all of {directory}")
    return b"".join(parts)

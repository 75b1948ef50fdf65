"""Conformance: a directory of the host as the work directory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.testing.expectations import (
    expect,
    expect_code,
    expect_equal,
    fact,
    fresh,
    sh,
)
from sandbox_runtime.types import Capability, SandboxSpec

OWNER = 54_321
"""Of the directory, where the checks run as root: anyone but root."""


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="work-dir-") as name:
        directory = Path(name)
        (directory / "theirs").write_text("of the host\n")
        if os.geteuid() == 0:
            for path in (directory, directory / "theirs"):
                os.chown(path, OWNER, OWNER)
        yield directory


async def check_work_dir_is_worked_in(provider: SandboxProvider) -> None:
    """Its files are there, what is done to them is done, and it outlives the sandbox."""
    with _directory() as directory:
        async with fresh(provider, SandboxSpec(work_dir=str(directory))) as sandbox:
            expect_equal((await sh(sandbox, "cat theirs")).text, "of the host\n")
            result = await sh(sandbox, "echo changed >> theirs && echo new > ours")
            expect_equal(result.exit_code, 0)
            await sandbox.write_file("written", b"too")
        expect_equal({path.name for path in directory.iterdir()}, {"theirs", "ours", "written"})
        expect_equal((directory / "theirs").read_text(), "of the host\nchanged\n")


async def check_work_dir_is_not_saved(provider: SandboxProvider) -> None:
    """A snapshot holds the home, not what is in the directory."""
    with _directory() as directory:
        async with fresh(provider, SandboxSpec(work_dir=str(directory))) as sandbox:
            await sandbox.write_file(f"{sandbox.paths.home}/memory", b"kept")
            ref = await sandbox.snapshot()
        try:
            async with fresh(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
                expect_equal(await sandbox.read_file(f"{sandbox.paths.home}/memory"), b"kept")
                expect_equal((await sh(sandbox, "ls")).text, "")
            expect_equal((directory / "theirs").read_text(), "of the host\n")
        finally:
            await provider.delete_snapshot(ref.id)


async def check_missing_work_dir(provider: SandboxProvider) -> None:
    """One that is not there is NOT_FOUND, and is not made."""
    with _directory() as directory:
        missing = directory / "missing"
        with expect_code(SandboxErrorCode.NOT_FOUND):
            async with fresh(provider, SandboxSpec(work_dir=str(missing))):
                pass
        expect(not missing.exists(), missing)


MOUNT_FACTS = (
    fact(check_work_dir_is_worked_in, needs=Capability.MOUNT),
    fact(check_work_dir_is_not_saved, needs=Capability.MOUNT),
    fact(check_missing_work_dir, needs=Capability.MOUNT),
)

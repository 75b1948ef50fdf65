"""Conformance: files go in and come out unchanged, and paths resolve inside."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.expectations import (
    expect,
    expect_code,
    expect_equal,
    expect_raises,
    fact,
    fresh,
    sandbox_fact,
    sh,
)
from sandbox_runtime.types import Capability, SandboxSpec

_MIB = 1024 * 1024


async def check_file_round_trip(sandbox: Sandbox) -> None:
    """All bytes, in a relative path, an absolute one and one with dots."""
    data = bytes(range(256))
    for path in ("plain", f"{sandbox.paths.home}/absolute", "./sub/../dotted"):
        await sandbox.write_file(path, data)
        expect_equal(await sandbox.read_file(path), data)


async def check_relative_files_are_in_work(sandbox: Sandbox) -> None:
    """A relative path starts at the work directory."""
    await sandbox.write_file("here", b"1")
    expect_equal(await sandbox.read_file(f"{sandbox.paths.work}/here"), b"1")


async def check_run_directory_is_writable(sandbox: Sandbox) -> None:
    """The run directory takes files and does not show in the work tree."""
    await sandbox.write_file(f"{sandbox.paths.run}/request.json", b"{}")
    expect_equal((await sh(sandbox, "ls -A")).text, "")
    expect_equal(await sandbox.read_file(f"{sandbox.paths.run}/request.json"), b"{}")


async def check_odd_file_names(sandbox: Sandbox) -> None:
    """Names may hold anything but NUL, up to 255 bytes."""
    for name in ("a b", "-rf", "'\"$x`", "new\nline\n", "ü漢🎉", "*", "~", "x" * 255, "d /-e\n/f"):
        await sandbox.write_file(name, name.encode())
        expect_equal(await sandbox.read_file(name), name.encode())


async def check_several_files_at_once(sandbox: Sandbox) -> None:
    """Any number of files, with parents, odd names and all bytes; the one that cannot be written is named."""
    files = {
        "one": bytes(range(256)),
        "deep/er/two": b"",
        f"{sandbox.paths.home}/three": b"\n\n",
        "ü \n'": b"4" * _MIB,
    }
    await sandbox.write_files(files)
    for path, data in files.items():
        expect_equal(await sandbox.read_file(path), data)
    await sandbox.write_files({})
    with expect_raises(IsADirectoryError):
        await sandbox.write_files({"before": b"1", "deep": b"2", "after": b"3"})
    expect_equal(await sandbox.read_file("before"), b"1")
    with expect_raises(FileNotFoundError):
        await sandbox.read_file("after")


async def check_zero_length_file(sandbox: Sandbox) -> None:
    """An empty file is written and read as such."""
    await sandbox.write_file("empty", b"")
    expect_equal(await sandbox.read_file("empty"), b"")


async def check_large_file(sandbox: Sandbox) -> None:
    """5 MiB pass both ways unchanged."""
    data = bytes(range(256)) * (5 * _MIB // 256)
    await sandbox.write_file("large", data)
    expect(await sandbox.read_file("large") == data, "other bytes")


async def check_parents_are_made(sandbox: Sandbox) -> None:
    """Missing parent directories are made."""
    await sandbox.write_file("a/b/c/file", b"deep")
    expect_equal((await sh(sandbox, "cat a/b/c/file")).text, "deep")


async def check_overwrite(sandbox: Sandbox) -> None:
    """Writing replaces the file, the longer one too."""
    await sandbox.write_file("file", b"a long first version")
    await sandbox.write_file("file", b"second")
    expect_equal(await sandbox.read_file("file"), b"second")


async def check_concurrent_writes(sandbox: Sandbox) -> None:
    """Many at once into one directory, and onto one file, leave whole files and no litter."""
    async with open_task_group() as group:
        for number in range(6):
            group.create_task(sandbox.write_file(f"f{number}", b"%d" % number))
            group.create_task(sandbox.write_file("same", b"%d" % number * 5000))
    expect_equal((await sh(sandbox, "ls -A")).text.split(), [*(f"f{n}" for n in range(6)), "same"])
    same = await sandbox.read_file("same")
    expect_equal(same, same[:1] * 5000)


async def check_executable_file(sandbox: Sandbox) -> None:
    """A file written as executable can be run."""
    await sandbox.write_file("tool", b"#!/bin/sh\necho ran\n", executable=True)
    expect_equal((await sh(sandbox, "./tool")).text, "ran\n")


async def check_files_belong_to_the_user(sandbox: Sandbox) -> None:
    """Commands may change and remove what was written for them."""
    await sandbox.write_file("new/file", b"1")
    expect_equal((await sh(sandbox, "echo 2 >> new/file; cat new/file; rm -r new")).exit_code, 0)


async def check_missing_file(sandbox: Sandbox) -> None:
    """A file that is not there raises FileNotFoundError."""
    for path in ("missing", "missing/deeper", "/no/such/file"):
        with expect_raises(FileNotFoundError):
            await sandbox.read_file(path)


async def check_directory_is_not_a_file(sandbox: Sandbox) -> None:
    """A directory, or a link to one, raises IsADirectoryError."""
    await sh(sandbox, "mkdir directory; ln -s directory link")
    for path in ("directory", "link", "."):
        with expect_raises(IsADirectoryError):
            await sandbox.read_file(path)
        with expect_raises(IsADirectoryError):
            await sandbox.write_file(path, b"")


async def check_file_is_not_a_directory(sandbox: Sandbox) -> None:
    """A path below a file raises NotADirectoryError."""
    await sandbox.write_file("file", b"")
    with expect_raises(NotADirectoryError):
        await sandbox.read_file("file/below")
    with expect_raises(NotADirectoryError):
        await sandbox.write_file("file/below", b"")


async def check_file_errors_explain_themselves(sandbox: Sandbox) -> None:
    """An error says what was tried, with which path as it was given, and what is in the way."""
    await sh(sandbox, "mkdir directory; touch file")

    async def several(path: str) -> None:
        await sandbox.write_files({"one": b"1", path: b""})

    for doing, call, path, number, reason in (
        ("read", sandbox.read_file, "missing", errno.ENOENT, "there is no such file"),
        ("read", sandbox.read_file, "directory", errno.EISDIR, "a directory is there"),
        ("write", partial(sandbox.write_file, data=b""), "directory", errno.EISDIR, "a directory"),
        ("write", partial(sandbox.write_file, data=b""), "new/", errno.EISDIR, "a directory"),
        ("write", several, "directory", errno.EISDIR, "a directory is there"),
        ("read", sandbox.read_file, "file/below", errno.ENOTDIR, "a file stands where a directory"),
        ("write", several, "file/below", errno.ENOTDIR, "a file stands where a directory"),
    ):
        try:
            await call(path)
        except OSError as exc:
            expect_equal((exc.errno, exc.filename), (number, path))
            expect(f"cannot {doing} a file in the sandbox: {reason}" in str(exc), str(exc))
        else:
            raise AssertionError(f"{path} was no error")


async def check_read_limit(sandbox: Sandbox) -> None:
    """A file of the bound is read; one byte more raises FILE_TOO_LARGE."""
    await sandbox.write_file("file", b"0123456789")
    expect_equal(await sandbox.read_file("file", max_bytes=10), b"0123456789")
    with expect_code(SandboxErrorCode.FILE_TOO_LARGE):
        await sandbox.read_file("file", max_bytes=9)


async def check_read_limit_on_endless_files(sandbox: Sandbox) -> None:
    """A device or FIFO planted at the path neither blocks the reader nor fills its memory."""
    await sh(sandbox, "ln -s /dev/zero endless; mkfifo fifo")
    for path in ("endless", "fifo"):
        with expect_raises(PermissionError):
            await sandbox.read_file(path)


async def check_symlinks_inside(sandbox: Sandbox) -> None:
    """A link is followed when read and replaced when written."""
    await sh(sandbox, "echo kept > target; ln -s target link; ln -s nowhere dangling")
    expect_equal(await sandbox.read_file("link"), b"kept\n")
    with expect_raises(FileNotFoundError):
        await sandbox.read_file("dangling")
    await sandbox.write_file("link", b"new")
    expect_equal(await sandbox.read_file("target"), b"kept\n")
    expect_equal(await sandbox.read_file("link"), b"new")


FILE_FACTS = tuple(
    map(
        sandbox_fact,
        (
            check_file_round_trip,
            check_relative_files_are_in_work,
            check_run_directory_is_writable,
            check_odd_file_names,
            check_several_files_at_once,
            check_zero_length_file,
            check_large_file,
            check_parents_are_made,
            check_overwrite,
            check_concurrent_writes,
            check_executable_file,
            check_files_belong_to_the_user,
            check_missing_file,
            check_directory_is_not_a_file,
            check_file_is_not_a_directory,
            check_file_errors_explain_themselves,
            check_read_limit,
            check_read_limit_on_endless_files,
            check_symlinks_inside,
        ),
    )
)


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

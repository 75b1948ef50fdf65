"""File systems of a test's own: small, full, read-only."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK_BYTES = 4096


@contextmanager
def small_disk(path: Path, *, mib: int) -> Iterator[Path]:
    """A file system of that size while inside; needs root."""
    path.mkdir(mode=0o700, parents=True)
    _mount("-t", "tmpfs", "-o", f"size={mib}m,mode=700", "orion-test", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=10)  # noqa: S607 - the system's


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Not a block is free while inside."""
    ballast = disk / "ballast"
    try:
        for size in (256 * BLOCK_BYTES, BLOCK_BYTES):
            with pytest.raises(OSError, match="No space"):
                _append_for_ever(ballast, size)
        yield
    finally:
        ballast.unlink()


def _append_for_ever(path: Path, size: int) -> None:
    with path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(size))


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    _mount("-o", "remount,ro", str(disk))
    try:
        yield
    finally:
        _mount("-o", "remount,rw", str(disk))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=10)  # noqa: S607 - the system's

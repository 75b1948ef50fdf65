"""Makes directories what others are, and writes only what differs; runs as root in a container that is made for it.

Usage: `python3 -I -S -c SOURCE FROM TO [FROM TO ...]`. Standard library only, and nothing newer than Python 3.9. Exit code 0, or 1
with a traceback: then the directories are of no use.

The contents of files are compared, not their times alone: package managers give all files of all versions the same one. Both trees are
somebody else's, so no link in them is followed: each name is opened from its directory's descriptor.
"""

from __future__ import annotations

import os
import stat
import sys

_PIECE = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_DIRECTORY = _READ | os.O_DIRECTORY
_DEEPEST = 100_000


def main() -> None:
    """Makes each second directory what the one before it is."""
    sys.setrecursionlimit(_DEEPEST)
    links = _Links()
    for number in range(1, len(sys.argv), 2):
        source, target = sys.argv[number : number + 2]
        _mirror(os.open(source, _DIRECTORY), os.open(target, _DIRECTORY), target, links)


class _Links:
    """Files with several names."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, int], str] = {}
        """Where such a file of the source is in the target, by its inode in the source."""
        self.taken: set[tuple[int, int]] = set()
        """Inodes in the target that stand for one of those: they are no other one's."""


def _mirror(source: int, target: int, path: str, links: _Links) -> None:
    """Takes over both descriptors. `path`: the target's."""
    names = os.listdir(source)
    for name in set(os.listdir(target)).difference(names):
        _remove(target, name)
    for name in names:
        wanted, found = os.lstat(name, dir_fd=source), _lstat(target, name)
        if stat.S_ISDIR(wanted.st_mode):
            if found is None or not stat.S_ISDIR(found.st_mode):
                _remove(target, name)
                os.mkdir(name, 0o700, dir_fd=target)
            below = [os.open(name, _DIRECTORY, dir_fd=one) for one in (source, target)]
            _mirror(below[0], below[1], f"{path}/{name}", links)
        elif wanted.st_nlink > 1:
            _mirror_linked(source, target, f"{path}/{name}", links)
        elif found is None or not _is_same(source, target, name, wanted, found):
            _remove(target, name)
            _copy(source, target, name, wanted)
    _set_attributes(target, os.fstat(source))
    os.close(source)
    os.close(target)


def _mirror_linked(source: int, target: int, path: str, links: _Links) -> None:
    name = path.rpartition("/")[2]
    wanted, found = os.lstat(name, dir_fd=source), _lstat(target, name)
    first = links.made.setdefault(_inode(wanted), path)
    if first != path:
        if found is None or _inode(found) != _inode(os.lstat(first)):
            _remove(target, name)
            os.link(first, name, dst_dir_fd=target, follow_symlinks=False)
        return
    is_free = found is not None and _inode(found) not in links.taken
    if found is None or not is_free or not _is_same(source, target, name, wanted, found):
        _remove(target, name)
        _copy(source, target, name, wanted)
    if (made := _lstat(target, name)) is not None:  # of a socket there is none
        links.taken.add(_inode(made))


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_same(
    source: int, target: int, name: str, wanted: os.stat_result, found: os.stat_result
) -> bool:
    is_linked = (wanted.st_nlink > 1, found.st_nlink > 1)
    if _attributes(wanted) != _attributes(found) or is_linked[0] != is_linked[1]:
        return False
    if stat.S_ISLNK(wanted.st_mode):
        return os.readlink(name, dir_fd=source) == os.readlink(name, dir_fd=target)
    if not stat.S_ISREG(wanted.st_mode):
        return True
    return wanted.st_size == found.st_size and _has_same_content(source, target, name)


def _has_same_content(source: int, target: int, name: str) -> bool:
    ours, theirs = os.open(name, _READ, dir_fd=source), os.open(name, _READ, dir_fd=target)
    try:
        while (piece := os.read(ours, _PIECE)) == os.read(theirs, _PIECE):
            if not piece:
                return True
        return False
    finally:
        os.close(ours)
        os.close(theirs)


def _attributes(found: os.stat_result) -> tuple[int, ...]:
    """Images hold times in whole seconds."""
    return found.st_mode, found.st_uid, found.st_gid, int(found.st_mtime)


def _copy(source: int, target: int, name: str, wanted: os.stat_result) -> None:
    if stat.S_ISLNK(wanted.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        os.chown(name, wanted.st_uid, wanted.st_gid, dir_fd=target, follow_symlinks=False)
        os.utime(name, ns=(0, wanted.st_mtime_ns), dir_fd=target, follow_symlinks=False)
    elif stat.S_ISFIFO(wanted.st_mode):
        os.mkfifo(name, 0o600, dir_fd=target)
        made = os.open(name, _READ, dir_fd=target)
        _set_attributes(made, wanted)
        os.close(made)
    elif stat.S_ISREG(wanted.st_mode):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        read, made = os.open(name, _READ, dir_fd=source), os.open(name, flags, 0o600, dir_fd=target)
        while os.sendfile(made, read, None, _PIECE):
            pass
        _set_attributes(made, wanted)
        os.close(read)
        os.close(made)


def _set_attributes(made: int, wanted: os.stat_result) -> None:
    found = os.fstat(made)
    if _attributes(found) == _attributes(wanted):
        return
    os.fchown(made, wanted.st_uid, wanted.st_gid)
    os.fchmod(made, stat.S_IMODE(wanted.st_mode))
    os.utime(made, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))


def _remove(directory: int, name: str) -> None:
    found = _lstat(directory, name)
    if found is None:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    inside = os.open(name, _DIRECTORY, dir_fd=directory)
    for one in os.listdir(inside):  # noqa: PTH208 - of a descriptor
        _remove(inside, one)
    os.close(inside)
    os.rmdir(name, dir_fd=directory)


def _lstat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main()

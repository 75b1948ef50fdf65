"""One directory becomes what another one is, whatever lies in either."""

import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandbox_runtime.providers.inside_scripts import script_source

SOURCE = script_source("sandbox_runtime.providers.docker.inside.mirror")
CONTENTS = (b"", b"1", b"2", b"x" * 70_000, b"x" * 69_999 + b"y")
LEAVES = ("/etc", "a", "../..", "nowhere")


def mirror(source: Path, target: Path) -> None:
    argv = [sys.executable, "-I", "-S", "-c", SOURCE, str(source), str(target)]
    subprocess.run(argv, check=True, timeout=60)


def grow(root: Path, chance: random.Random) -> None:
    """Makes, changes and removes; times and sizes are often the same."""
    root.mkdir(exist_ok=True)
    for _ in range(chance.randint(0, 60)):
        every = sorted(root.rglob("*"))
        folders = [one for one in (root, *every) if one.is_dir() and not one.is_symlink()]
        path = chance.choice(folders) / chance.choice("abcdefgh")
        if path.is_symlink() or path.is_file() or path.is_fifo():
            path.unlink()
        elif path.is_dir() and chance.random() < 0.5:
            shutil.rmtree(path)
        if os.path.lexists(path):
            continue
        match chance.randint(0, 9):
            case 0 | 1 | 2:
                path.mkdir()
            case 3:
                path.symlink_to(chance.choice(LEAVES))
            case 4:
                os.mkfifo(path)
            case 5 if files := [one for one in every if one.is_file() and one.exists()]:
                path.hardlink_to(chance.choice(files).resolve())
            case _:
                path.write_bytes(chance.choice(CONTENTS))
                path.chmod(chance.choice((0o644, 0o755, 0o4755)))
                os.utime(path, (1, chance.choice((1, 2))))


def state_of(root: Path) -> tuple[Mapping[str, object], object]:
    """What is there by its path, and which paths are one file."""
    found, files = {}, dict[int, list[str]]()
    for path in sorted([root, *root.rglob("*")]):
        about, name = path.lstat(), str(path.relative_to(root))
        content: object = None
        if stat.S_ISLNK(about.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(about.st_mode):
            content = path.read_bytes()
            files.setdefault(about.st_ino, []).append(name)
        mode_and_owner = about.st_mode, about.st_uid, about.st_gid
        found[name] = (*mode_and_owner, int(about.st_mtime), content)
    return found, sorted(files.values())


@pytest.mark.parametrize("seed", range(40))
def test_it_becomes_the_same(tmp_path: Path, seed: int) -> None:
    """Content, links of both kinds, modes and times; a second time nothing is written."""
    chance = random.Random(seed)  # noqa: S311 - of trees
    source, target = tmp_path / "source", tmp_path / "target"
    grow(source, chance)
    if seed % 3:
        subprocess.run(["/bin/cp", "-a", source, target], check=True)
        grow(source, chance)
    else:
        grow(target, chance)
    mirror(source, target)
    assert state_of(target) == state_of(source)
    written = {path: path.lstat().st_ctime_ns for path in target.rglob("*")}
    mirror(source, target)
    assert {path: path.lstat().st_ctime_ns for path in target.rglob("*")} == written


def test_a_content_of_the_same_size_and_time_is_taken(tmp_path: Path) -> None:
    """Package managers give all files of all versions the same time."""
    for name, content in (("source", b"1.0.1"), ("target", b"1.0.0")):
        path = tmp_path / name / "package.json"
        path.parent.mkdir()
        path.write_bytes(content)
        os.utime(path, (1, 1))
    mirror(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "package.json").read_bytes() == b"1.0.1"


def test_no_link_leads_out(tmp_path: Path) -> None:
    """A link to a directory is replaced by the directory, and what it led to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"1")
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a").mkdir(parents=True)
    (source / "a" / "new").write_bytes(b"2")
    target.mkdir()
    (target / "a").symlink_to(outside)
    mirror(source, target)
    assert [one.name for one in outside.iterdir()] == ["kept"]
    assert (target / "a" / "new").read_bytes() == b"2"

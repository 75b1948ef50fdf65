"""Commits what is on the disk through a git directory of Orion's own, and tells the repository of it afterwards.

What people understand by "the changes": not what a sparse checkout leaves out of the disk, not a clone inside the clone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from agent_scripts.inside.git import Git

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_GITLINK = "160000 "
_MERGE_FILES = ("MERGE_HEAD", "MERGE_MODE", "MERGE_MSG")


class Commit:
    """What came of it."""

    def __init__(self, commit: str, left_out: list[str]) -> None:
        self.commit = commit
        """The one before when nothing differs; empty when there is nothing at all."""
        self.left_out = left_out
        """Paths of repositories inside the repository that are no submodules of it."""


def commit_all(config: dict[str, Any], git: Git, env: dict[str, str], *, head: str) -> Commit:
    """`env`: Orion's git directory, the repository's objects and work tree."""
    work = Path(env["GIT_WORK_TREE"])
    repository = work / ".git"
    merged = _merged(git, repository, env) if head else []
    if head:
        git.run("read-tree", head, env=env)
    absent = _absent(git, repository, env) if head else ""
    _skip(git, absent, env)
    unborn = _add(git, work, env)
    left_out = _told(unborn | _leave_out_nested(git, work, env, head))
    tree = git.run("write-tree", env=env).strip()
    before = git.run("rev-parse", f"{head}^{{tree}}", env=env).strip() if head else ""
    is_bare = not head and not git.run("ls-files", env=env)
    if is_bare or (tree == before and not merged):
        return Commit(head, left_out)
    who = {f"GIT_{role}_NAME": config["name"] for role in ("AUTHOR", "COMMITTER")}
    who.update({f"GIT_{role}_EMAIL": config["email"] for role in ("AUTHOR", "COMMITTER")})
    parents = [part for one in ([head] if head else []) + merged for part in ("-p", one)]
    message = ["-m", config["message"]]
    commit = git.run("commit-tree", tree, *parents, *message, env={**env, **who}).strip()
    there = {"GIT_DIR": str(repository), "GIT_WORK_TREE": str(work)}
    git.run("-c", "core.bare=false", "update-ref", "HEAD", commit, head or "0" * 40, env=there)
    git.run("-c", "core.bare=false", "read-tree", commit, env=there)
    _skip(git, absent, there)
    for name in _MERGE_FILES if merged else ():
        (repository / name).unlink(missing_ok=True)
    return Commit(commit, left_out)


def _merged(git: Git, repository: Path, env: dict[str, str]) -> list[str]:
    """What a merge that is resolved but not committed brings in; the conflicts of another are committed as they are."""
    if not (repository / "MERGE_HEAD").is_file() or not (repository / "index").is_file():
        return []
    if git.run("ls-files", "-u", env=_with_index(repository, env)):
        return []
    words = (repository / "MERGE_HEAD").read_text("ascii", "replace").split()
    return [word for word in words if _ID.fullmatch(word)]


def _absent(git: Git, repository: Path, env: dict[str, str]) -> str:
    """Files that the repository's sparse checkout leaves out of the disk, each with a NUL behind it."""
    if not (repository / "index").is_file():
        return ""
    listed = git.run("ls-files", "-t", "-z", env=_with_index(repository, env)).split("\0")
    skipped = [line[2:] for line in listed if line.startswith("S ")]
    if not skipped:
        return ""
    known = set(git.run("ls-files", "-z", env=env).split("\0"))
    paths = (path for path in skipped if path in known)
    return "".join(f"{path}\0" for path in paths if not os.path.lexists(repository.parent / path))


def _with_index(repository: Path, env: dict[str, str]) -> dict[str, str]:
    return {**env, "GIT_INDEX_FILE": str(repository / "index")}


def _skip(git: Git, paths: str, env: dict[str, str]) -> None:
    """Otherwise they would count as deleted."""
    if paths:
        mark = ["update-index", "-z", "--skip-worktree", "--stdin"]
        git.run("-c", "core.bare=false", *mark, env=env, stdin=paths)


def _add(git: Git, work: Path, env: dict[str, str]) -> set[str]:
    """What is on the disk; without repositories that have no commit, of which one makes git add nothing: those it returns."""
    ignored = work / ".git/info/exclude"
    if ignored.is_fifo():
        ignored.unlink()  # each git waits for it, also the one that tells the repository afterwards
    options = ["-c", "core.bare=false", "-c", f"core.excludesFile={ignored}"]
    others = git.run(*options, "ls-files", "-o", "-z", "--exclude-standard", env=env).split("\0")
    nested = (path.rstrip("/") for path in others if path.endswith("/"))
    unborn = {path for path in nested if not _has_commit(git, f"{work}/{path}/.git")}
    left = (f":(exclude,literal){path}" for path in unborn)
    add = [*options, "add", "-A", "--", ".", *left]
    if git.try_to(*add, env=env)[0] != 0:
        _take_encodings_off(git, env)
        git.run(*add, env=env)
    return unborn


def _take_encodings_off(git: Git, env: dict[str, str]) -> None:
    """One file that is not in the encoding its attributes say makes git add nothing; unchanged files keep theirs."""
    git.try_to("-c", "core.bare=false", "update-index", "-q", "--refresh", env=env)
    attributes = Path(env["GIT_DIR"]) / "info/attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("* !working-tree-encoding\n")


def _has_commit(git: Git, repository: str) -> bool:
    return git.try_to("rev-parse", "--verify", "-q", "HEAD", env={"GIT_DIR": repository})[0] == 0


def _leave_out_nested(git: Git, work: Path, env: dict[str, str], head: str) -> set[str]:
    """Their commits are nowhere but in this sandbox."""
    nested = _gitlinks(git.run("ls-files", "-s", "-z", env=env))
    if nested and head:
        nested -= _gitlinks(git.run("ls-tree", "-r", "-z", head, env=env))
    if nested:
        asked = [
            "--file",
            str(work / ".gitmodules"),
            "-z",
            "--get-regexp",
            r"^submodule\..*\.path$",
        ]
        entries = git.try_to("config", *asked, env=env)[1].split("\0")
        nested -= {entry.partition("\n")[2] for entry in entries}
    if nested:
        paths = "".join(f"{path}\0" for path in nested)
        git.run("update-index", "-z", "--force-remove", "--stdin", env=env, stdin=paths)
    return nested


def _told(paths: set[str]) -> list[str]:
    return sorted(
        path.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for path in paths
    )


def _gitlinks(listing: str) -> set[str]:
    entries = (entry.partition("\t") for entry in listing.split("\0"))
    return {path for about, _, path in entries if about.startswith(_GITLINK)}

"""What Orion itself does with git inside the sandbox: clones the thread's repository, and publishes what was changed in it.

A clone may have been prepared before its thread began: `seal` marks one, and `clone` brings a marked one up to date.

Usage: `python3 -I repository.py CONFIG.json`; prints one JSON object. The repository's own configuration, hooks and filters
are another's: what Orion commits and pushes goes through a git directory of its own, which has none. It commits what people
understand by "the changes": not what a sparse checkout leaves out of the disk, not a clone inside the clone. Standard
library only, and nothing newer than Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside.git import Git, ProblemError, RemoteBranches

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_GITLINK = "160000 "
_MERGE_FILES = ("MERGE_HEAD", "MERGE_MODE", "MERGE_MSG")


class Commit:
    """The commit of all that a turn has changed, and the paths that it does not hold."""

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
    """Returns what a merge that is resolved but not committed brings in; conflicts of another are committed as they are."""
    if not (repository / "MERGE_HEAD").is_file() or not (repository / "index").is_file():
        return []
    if git.run("ls-files", "-u", env=_with_index(repository, env)):
        return []
    words = (repository / "MERGE_HEAD").read_text("ascii", "replace").split()
    return [word for word in words if _ID.fullmatch(word)]


def _absent(git: Git, repository: Path, env: dict[str, str]) -> str:
    """Returns the files that the repository's sparse checkout leaves out of the disk, each with a NUL behind it."""
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
    """Keeps files that are not on the disk from counting as deleted."""
    if paths:
        mark = ["update-index", "-z", "--skip-worktree", "--stdin"]
        git.run("-c", "core.bare=false", *mark, env=env, stdin=paths)


def _add(git: Git, work: Path, env: dict[str, str]) -> set[str]:
    """Adds what is on the disk, and returns the repositories without a commit, of which one makes git add nothing."""
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
    """Unsets the encodings of changed files: one that is not in the encoding its attributes say makes git add nothing."""
    git.try_to("-c", "core.bare=false", "update-index", "-q", "--refresh", env=env)
    attributes = Path(env["GIT_DIR"]) / "info/attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("* !working-tree-encoding\n")


def _has_commit(git: Git, repository: str) -> bool:
    return git.try_to("rev-parse", "--verify", "-q", "HEAD", env={"GIT_DIR": repository})[0] == 0


def _leave_out_nested(git: Git, work: Path, env: dict[str, str], head: str) -> set[str]:
    """Leaves out repositories inside the repository, whose commits are nowhere but in this sandbox."""
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


_BASE, _PUBLISHED = "refs/orion/base", "refs/orion/published"
"""In the clone: what the thread began from, and what it had published last."""
_PREPARED = "refs/orion/prepared"
"""In a clone that is no thread's yet: on what the operator's set-up was run."""
_LOCKS = (
    *("uv.lock", "poetry.lock", "pdm.lock", "requirements*.txt", "pylock*.toml", "pyproject.toml"),
    *(
        "package.json",
        "package-lock.json",
        "npm-shrinkwrap.json",
        "pnpm-lock.yaml",
        "yarn.lock",
        "bun.lock",
    ),
    *("Cargo.lock", "go.sum", "Gemfile.lock", "composer.lock", "pom.xml", "gradle.lockfile"),
    *("*.gradle", "*.gradle.kts", ".tool-versions", "mise.toml", ".nvmrc", ".python-version"),
)
"""Names of files, wherever they are, that say what is to be installed."""


def clone(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Brings the repository to its directory, on the thread's branch; one that is there is left as it is, but for a prepared one."""
    target, url, names = Path(config["directory"]), config["url"], config["own_branches"]
    is_known, is_there = len(names) == 1, os.path.lexists(target)
    if is_there and not _is_own(git, target, "" if is_known else url):
        raise ProblemError("in_the_way")
    prepared = _commit_of(git, {"GIT_DIR": f"{target}/.git"}, _PREPARED) if is_there else ""
    if is_there and is_known and not prepared:
        return {"is_new": False, "own_branch": names[0]}
    branches = _branches(git, url)
    own = names[0] if is_known else branches.free(names)
    if is_there and not prepared:
        return {"is_new": False, "own_branch": own}
    base = branches.base(config["branch"], own)
    start = own if own in branches.tips else base
    begun = {"is_new": True, "is_empty": not start, "base": base, "own_branch": own}
    if prepared:
        try:
            return {**begun, **_take_prepared(config, git, start=start, own=own, prepared=prepared)}
        except ProblemError:  # what its set-up made of it is no clone to work in
            aside = target.parent / f".orion-damaged-{target.name}"
            target.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    temporary = target.parent / f".orion-clone-{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    if not start:
        git.run("init", "-q", "--template=", str(temporary))
        git.run("-C", str(temporary), "remote", "add", "origin", url)
        git.run("-C", str(temporary), "symbolic-ref", "HEAD", f"refs/heads/{own}")
    else:
        options = ["--template=", "--depth=50", "--single-branch", "--no-tags"]
        options += ["--no-recurse-submodules", "--quiet", f"--branch={start}"]
        git.run("clone", *options, "--", url, str(temporary), watched=temporary)
        git.run("-C", str(temporary), "checkout", "-q", "-B", own)
        known = _PUBLISHED if start == own else _BASE
        git.run("-C", str(temporary), "update-ref", known, "HEAD")
    _name_committer(config, git, temporary)
    temporary.rename(target)
    return {**begun, "git_config": (target / ".git/config").read_text("utf-8")}


def _name_committer(config: dict[str, Any], git: Git, directory: Path) -> None:
    for key, value in (("user.name", config["name"]), ("user.email", config["email"])):
        git.run("-C", str(directory), "config", key, value)


def seal(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Marks a clone as prepared. What its set-up left beside the repository's files is ignored, and what it made of these is taken back: it is no thread's change. So is, before any git runs, what it made of the clone's configuration, hooks and attributes, by which git would run programs in each thread."""
    target = Path(config["directory"])
    here, repository = ["-C", str(target)], target / ".git"
    if target.is_symlink() or repository.is_symlink() or not repository.is_dir():
        raise ProblemError("damaged", "fatal: there is no .git directory any more")
    for name in ("config", "commondir", "hooks", "info/attributes"):
        _remove(repository / name)
    (repository / "config").write_text(config["git_config"], "utf-8")
    git.run(*here, "read-tree", "HEAD")  # an index that knows nothing of the files: each is read
    git.try_to(*here, "update-index", "-q", "--refresh")
    git.run(*here, "checkout", "-q", "-f")
    ignore(config, git)
    git.run(*here, "update-ref", _PREPARED, "HEAD")
    return {}


def ignore(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Has git ignore the files that are there beside the repository's own: they are no change of the agent that comes."""
    target = Path(config["directory"])
    others = ["ls-files", "-o", "-z", "--exclude-standard", "--directory"]
    listed = git.run("-C", str(target), *others)
    ignored = target / ".git/info/exclude"
    if ignored.parent.is_symlink() or not ignored.is_file():
        _remove(ignored.parent)
        ignored.parent.mkdir()
    with ignored.open("a", encoding="utf-8", errors="surrogateescape") as file:
        for path in listed.split("\0"):
            if path and "\n" not in path:
                file.write("/" + re.sub(r"([\\*?\[\]#! ])", r"\\\1", path) + "\n")
    return {}


def _remove(path: Path) -> None:
    """Whatever it is, if it is there; a link is not followed."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        path.unlink()


_OF_A_COPY = ("-c", "core.checkStat=minimal", "-c", "core.trustctime=false")
"""A copy's files have other inodes than its index says; without this, git writes each of them anew. `seal` has seen that they are as committed."""


def _take_prepared(
    config: dict[str, Any], git: Git, *, start: str, own: str, prepared: str
) -> dict[str, Any]:
    """Makes a prepared clone the thread's: the files of the newest commit, and what was installed beside them."""
    target, url = Path(config["directory"]), config["url"]
    here = ["-C", str(target)]
    if not start:
        raise ProblemError("failed")
    options = ["--depth=50", "--no-tags", "--no-recurse-submodules", "--quiet", "--update-shallow"]
    tip = f"refs/remotes/origin/{start}"
    git.run(
        *here, "fetch", *options, "--", url, f"+refs/heads/{start}:{tip}", watched=target / ".git"
    )
    git.run(*here, *_OF_A_COPY, "checkout", "-q", "-f", "-B", own, tip)
    git.run(*here, "update-ref", _PUBLISHED if start == own else _BASE, "HEAD")
    git.run(*here, "update-ref", "-d", _PREPARED)
    git.run(
        *here, "config", "remote.origin.url", url
    )  # the agent's git is led by it, in this spelling
    _name_committer(config, git, target)
    locks = [f":(glob)**/{name}" for name in _LOCKS]
    changed = git.run(*here, "diff", "--no-ext-diff", "--name-only", prepared, "HEAD", "--", *locks)
    return {"is_prepared": True, "is_outdated": bool(changed)}


def _is_own(git: Git, target: Path, url: str) -> bool:
    """Whether it is the thread's clone. Empty `url`: the thread had one, and its agent may have led it elsewhere since."""
    if target.is_symlink():
        return False
    if not url:
        return True
    config = str(target / ".git/config")
    origin = git.try_to("config", "--file", config, "--get", "remote.origin.url")[1].strip()
    return origin.casefold() == url.casefold()  # as hosts of code, and the broker, read it


def _branches(git: Git, url: str) -> RemoteBranches:
    return RemoteBranches(git.run("ls-remote", "--symref", "--", url, "HEAD", "refs/heads/*"))


def publish(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Commits what is left uncommitted, and pushes what is checked out to the thread's branch."""
    work, url, own = Path(config["directory"]), config["url"], config["own_branches"][0]
    repository = work / ".git"
    if work.is_symlink() or repository.is_symlink() or not (repository / "objects").is_dir():
        raise ProblemError("damaged")
    directory = Path(config["scratch"]) / "publish.git"
    shutil.rmtree(directory, ignore_errors=True)
    git.run("init", "-q", "--bare", "--template=", str(directory))
    if (repository / "shallow").is_file():
        shutil.copyfile(repository / "shallow", directory / "shallow")
    aside = {"GIT_DIR": str(directory), "GIT_OBJECT_DIRECTORY": str(repository / "objects")}
    there = {"GIT_DIR": str(repository)}
    done = commit_all(
        config, git, {**aside, "GIT_WORK_TREE": str(work)}, head=_commit_of(git, there, "HEAD")
    )
    branches = _branches(git, url)
    base = branches.base(config["branch"], own)
    report = {"base": base, "commit": "", "left_out": done.left_out}
    marks = [_commit_of(git, there, ref) for ref in (_BASE, f"refs/remotes/origin/{base}")]
    is_old = any(
        git.try_to("merge-base", "--is-ancestor", done.commit, mark, env=aside)[0] == 0
        for mark in (*marks, branches.tips.get(base, ""))
        if mark and done.commit
    )
    published = _commit_of(git, there, _PUBLISHED)
    # A branch that was published and is gone was merged or given up: it is not to come back without a change.
    is_given_up = done.commit == published and own not in branches.tips
    if not done.commit or is_old or is_given_up:
        return report
    if done.commit not in (published, branches.tips.get(own)):
        git.run("push", "-q", "--", url, f"{done.commit}:refs/heads/{own}", env=aside)
    git.try_to("update-ref", _PUBLISHED, done.commit, env=there)
    return {**report, "commit": done.commit, "is_new": done.commit != published}


def _commit_of(git: Git, env: dict[str, str], ref: str) -> str:
    """Returns the commit of that name; empty = there is none."""
    return git.try_to("rev-parse", "--verify", "-q", ref, env=env)[1].strip()


def main(path: str) -> int:
    """Carries out what the file says."""
    config = json.loads(Path(path).read_text("utf-8"))
    Path(path).unlink()
    try:
        work = {"clone": clone, "publish": publish, "seal": seal, "ignore": ignore}[
            config["action"]
        ]
        report = work(config, Git(config))
    except ProblemError as exc:
        report = {"problem": exc.word, "detail": exc.detail}
    except (OSError, ValueError) as exc:  # the latter: what no program can be handed
        report = {"problem": "failed", "detail": str(exc)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

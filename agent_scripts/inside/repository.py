"""What Orion itself does with git inside the sandbox: clones the thread's repository, and publishes what was changed in it.

Usage: `python3 -I repository.py CONFIG.json`; prints one JSON object. The repository's own configuration, hooks and filters
are another's: what Orion commits and pushes goes through a git directory of its own, which has none. Standard library only,
and nothing newer than Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside.git import Git, ProblemError
from agent_scripts.inside.private_commit import commit_all
from agent_scripts.inside.remote_branches import RemoteBranches

_BASE, _PUBLISHED = "refs/orion/base", "refs/orion/published"
"""In the clone: what the thread began from, and what it had published last."""


def clone(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Bring the repository to its directory, on the thread's branch; one that is there is left as it is."""
    target, url, names = Path(config["directory"]), config["url"], config["own_branches"]
    is_known, is_there = len(names) == 1, os.path.lexists(target)
    if is_there and not _is_own(git, target, "" if is_known else url):
        raise ProblemError("in_the_way")
    if is_there and is_known:
        return {"is_new": False, "own_branch": names[0]}
    branches = _branches(git, url)
    own = names[0] if is_known else branches.free(names)
    if is_there:
        return {"is_new": False, "own_branch": own}
    base = branches.base(config["branch"], own)
    start = own if own in branches.tips else base
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
    for key, value in (("user.name", config["name"]), ("user.email", config["email"])):
        git.run("-C", str(temporary), "config", key, value)
    temporary.rename(target)
    return {"is_new": True, "is_empty": not start, "base": base, "own_branch": own}


def _is_own(git: Git, target: Path, url: str) -> bool:
    """Whether it is the thread's clone. Empty `url`: the thread had one, and its agent may have led it elsewhere since."""
    if target.is_symlink():
        return False
    if not url:
        return True
    config = str(target / ".git/config")
    return git.try_to("config", "--file", config, "--get", "remote.origin.url")[1].strip() == url


def _branches(git: Git, url: str) -> RemoteBranches:
    return RemoteBranches(git.run("ls-remote", "--symref", "--", url, "HEAD", "refs/heads/*"))


def publish(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Commit what is left uncommitted, and push what is checked out to the thread's branch."""
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
    """Empty = there is none."""
    return git.try_to("rev-parse", "--verify", "-q", ref, env=env)[1].strip()


def main(path: str) -> int:
    """Carry out what the file says."""
    config = json.loads(Path(path).read_text("utf-8"))
    Path(path).unlink()
    try:
        work = {"clone": clone, "publish": publish}[config["action"]]
        report = work(config, Git(config))
    except ProblemError as exc:
        report = {"problem": exc.word, "detail": exc.detail}
    except (OSError, ValueError) as exc:  # the latter: what no program can be handed
        report = {"problem": "failed", "detail": str(exc)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

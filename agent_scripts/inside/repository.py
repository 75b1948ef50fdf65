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


def clone(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Bring the repository to its directory, on the thread's branch; one that is there is left as it is."""
    target, url, own = Path(config["directory"]), config["url"], config["own_branch"]
    if os.path.lexists(target):
        found = git.try_to(
            "config", "--file", str(target / ".git/config"), "--get", "remote.origin.url"
        )
        if target.is_symlink() or found[1].strip() != url:
            raise ProblemError("in_the_way")
        return {"is_new": False}
    listed = _listed(git, url, own, config["branch"])
    base = config["branch"] or listed.get("HEAD", "")
    if config["branch"] and f"refs/heads/{base}" not in listed:
        raise ProblemError("unknown_branch")
    is_empty = not base and f"refs/heads/{own}" not in listed
    start = own if f"refs/heads/{own}" in listed else base
    temporary = target.parent / f".orion-clone-{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    if is_empty:
        git.run("init", "-q", "--template=", str(temporary))
        git.run("-C", str(temporary), "remote", "add", "origin", url)
        git.run("-C", str(temporary), "symbolic-ref", "HEAD", f"refs/heads/{own}")
    else:
        options = ["--template=", "--depth=50", "--single-branch", "--no-tags"]
        options += ["--no-recurse-submodules", "--quiet", f"--branch={start}"]
        git.run("clone", *options, "--", url, str(temporary), watched=temporary)
        git.run("-C", str(temporary), "checkout", "-q", "-B", own)
    for key, value in (("user.name", config["name"]), ("user.email", config["email"])):
        git.run("-C", str(temporary), "config", key, value)
    temporary.rename(target)
    return {"is_new": True, "is_empty": is_empty, "base": base}


def _listed(git: Git, url: str, *branches: str) -> dict[str, str]:
    """Refs of the remote with their ids; HEAD with the name of its branch, where it has one."""
    refs = [f"refs/heads/{branch}" for branch in branches if branch]
    listed: dict[str, str] = {}
    for line in git.run("ls-remote", "--symref", "--", url, "HEAD", *refs).splitlines():
        value, _, ref = line.partition("\t")
        if ref == "HEAD":
            listed.setdefault(ref, value.replace("ref: refs/heads/", ""))
        else:
            listed[ref] = value
    return listed


def publish(config: dict[str, Any], git: Git) -> dict[str, Any]:
    """Commit what is left uncommitted, and push what is checked out to the thread's branch."""
    work, url, own = Path(config["directory"]), config["url"], config["own_branch"]
    repository = work / ".git"
    if work.is_symlink() or repository.is_symlink() or not (repository / "objects").is_dir():
        raise ProblemError("damaged")
    directory = Path(config["scratch"]) / "publish.git"
    shutil.rmtree(directory, ignore_errors=True)
    git.run("init", "-q", "--bare", "--template=", str(directory))
    if (repository / "shallow").is_file():
        shutil.copyfile(repository / "shallow", directory / "shallow")
    aside = {"GIT_DIR": str(directory), "GIT_OBJECT_DIRECTORY": str(repository / "objects")}
    head = git.try_to("rev-parse", "--verify", "-q", "HEAD", env={"GIT_DIR": str(repository)})[
        1
    ].strip()
    commit = _commit(config, git, {**aside, "GIT_WORK_TREE": str(work)}, head)
    if commit and commit != head:
        there = {"GIT_DIR": str(repository), "GIT_WORK_TREE": str(work)}
        git.run("-c", "core.bare=false", "update-ref", "HEAD", commit, head or "0" * 40, env=there)
        git.run("-c", "core.bare=false", "read-tree", commit, env=there)
    listed = _listed(git, url, own, config["branch"])
    base = config["branch"] or listed.get("HEAD", "")
    known = _listed(git, url, own, base)
    if not commit or commit == known.get(f"refs/heads/{base}"):
        return {"base": base, "commit": ""}
    if known.get(f"refs/heads/{own}") != commit:
        git.run("push", "-q", "--", url, f"{commit}:refs/heads/{own}", env=aside)
    return {"base": base, "commit": commit}


def _commit(config: dict[str, Any], git: Git, env: dict[str, str], head: str) -> str:
    """The commit of what is on the disk; the one before when nothing differs, empty when there is nothing at all."""
    if head:
        git.run("read-tree", head, env=env)
    excluded = f"core.excludesFile={config['directory']}/.git/info/exclude"
    git.run("-c", "core.bare=false", "-c", excluded, "add", "-A", "--", ".", env=env)
    tree = git.run("write-tree", env=env).strip()
    before = git.run("rev-parse", f"{head}^{{tree}}", env=env).strip() if head else ""
    is_bare = not head and not git.run("ls-files", env=env)
    if tree == before or is_bare:
        return head
    who = {f"GIT_{role}_NAME": config["name"] for role in ("AUTHOR", "COMMITTER")}
    who.update({f"GIT_{role}_EMAIL": config["email"] for role in ("AUTHOR", "COMMITTER")})
    parents = ["-p", head] if head else []
    return git.run(
        "commit-tree", tree, *parents, "-m", config["message"], env={**env, **who}
    ).strip()


def main(path: str) -> int:
    """Carry out what the file says."""
    config = json.loads(Path(path).read_text("utf-8"))
    Path(path).unlink()
    try:
        work = {"clone": clone, "publish": publish}[config["action"]]
        report = work(config, Git(config))
    except ProblemError as exc:
        report = {"problem": exc.word, "detail": exc.detail}
    except OSError as exc:
        report = {"problem": "failed", "detail": str(exc)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

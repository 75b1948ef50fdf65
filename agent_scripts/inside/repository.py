"""What Orion itself does with git inside the sandbox: clones the thread's repository, and publishes what was changed in it.

Usage: `python3 -I repository.py CONFIG.json`; prints one JSON object. The repository's own configuration, hooks and filters
are another's: what Orion commits and pushes goes through a git directory of its own, which has none. Standard library only,
and nothing newer than Python 3.9: this runs on whatever `python3` the sandbox has.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_scripts.inside.relay import broker_url

_POLL_S = 0.5
_STDERR_CHARS = 2000
_SAFE = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.allow=never")
_ALLOWED = ("protocol.http.allow=always", "http.followRedirects=false", "http.proxy=")


class ProblemError(Exception):
    """Why it cannot be done: a word, and what git said."""

    def __init__(self, word: str, detail: str = "") -> None:
        super().__init__(word)
        self.word = word
        self.detail = detail


class Git:
    """Runs git with none of the sandbox's configuration, for a bounded time."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._until_s = time.monotonic() + config["timeout_s"]
        self._max_bytes = config["max_bytes"]
        url = broker_url(config["broker"])
        values = [one.split("=", 1) for one in (*_SAFE, *_ALLOWED)]
        values += [[f"url.{url}/broker/git/.insteadOf", one] for one in ("https://", "http://")]
        values += [[f"http.{url}/.extraHeader", f"Authorization: Bearer {config['token']}"]]
        self._env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_CONFIG_COUNT": str(len(values)),
        }
        for number, (key, value) in enumerate(values):
            self._env[f"GIT_CONFIG_KEY_{number}"] = key
            self._env[f"GIT_CONFIG_VALUE_{number}"] = value

    def run(
        self, *arguments: str, watched: Path | None = None, env: dict[str, str] | None = None
    ) -> str:
        """Its stdout. Raises: ProblemError, when it fails, is too slow, or `watched` grows too large."""
        code, out, err = self.try_to(*arguments, watched=watched, env=env)
        if code != 0:
            raise ProblemError("failed", err)
        return out

    def try_to(
        self, *arguments: str, watched: Path | None = None, env: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        try:
            process = subprocess.Popen(
                ["git", *arguments],  # noqa: S607 - the sandbox's own
                env={**self._env, **(env or {})},
                cwd=(env or {}).get("GIT_WORK_TREE", "/"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ProblemError("no_git") from None
        while True:
            try:
                out, err = process.communicate(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                word = "slow" if time.monotonic() > self._until_s else ""
                if watched is not None and _size(watched) > self._max_bytes:
                    word = "huge"
                if word:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    raise ProblemError(word) from None
            else:
                if watched is not None and _size(watched) > self._max_bytes:
                    raise ProblemError("huge")
                text = err.decode("utf-8", "replace")[-_STDERR_CHARS:]
                return process.returncode, out.decode("utf-8", "replace"), text


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


def _size(path: Path) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(f"{directory}/{name}").st_size
            except OSError:
                continue
    return total


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

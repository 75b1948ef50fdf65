"""Git as Orion itself runs it inside the sandbox: without the sandbox's configuration, by way of the broker, for a bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from agent_scripts.inside.relay import broker_url

_POLL_S = 0.5
_STDERR_CHARS = 8000
_SAFE = ("core.hooksPath=/dev/null", "core.fsmonitor=false")
_DIRECT = ("http.followRedirects=false", "http.proxy=")
_PROTOCOLS = "http:https"
"""A relay speaks the first, a public address the second. What the environment allows, no configuration widens."""


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
        values = [one.split("=", 1) for one in (*_SAFE, *_DIRECT)]
        values += [[f"url.{url}/broker/git/.insteadOf", one] for one in ("https://", "http://")]
        values += [[f"http.{url}/.extraHeader", f"Authorization: Bearer {config['token']}"]]
        self._env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_CONFIG_COUNT": str(len(values)),
        }
        for number, (key, value) in enumerate(values):
            self._env[f"GIT_CONFIG_KEY_{number}"] = key
            self._env[f"GIT_CONFIG_VALUE_{number}"] = value

    def run(
        self,
        *arguments: str,
        watched: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: str = "",
    ) -> str:
        """Runs git, and returns its stdout. Raises: ProblemError, when it fails, is too slow, or `watched` grows too large."""
        code, out, err = self.try_to(*arguments, watched=watched, env=env, stdin=stdin)
        if code != 0:
            raise ProblemError("failed", err)
        return out

    def try_to(
        self,
        *arguments: str,
        watched: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: str = "",
    ) -> tuple[int, str, str]:
        """Runs git, and returns exit code, stdout and stderr. Names that are no UTF-8 can be handed back to it."""
        told: bytes | None = stdin.encode("utf-8", "surrogateescape")
        try:
            process = subprocess.Popen(
                ["git", *arguments],  # noqa: S607 - the sandbox's own
                env={**self._env, **(env or {})},
                cwd=(env or {}).get("GIT_WORK_TREE", "/"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ProblemError("no_git") from None
        while True:
            try:
                out, err = process.communicate(told, timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                told = None  # it goes on with what it was given
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
                return process.returncode, out.decode("utf-8", "surrogateescape"), text


def _size(path: Path) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(f"{directory}/{name}").st_size
            except OSError:
                continue
    return total


_BRANCH, _LINK = "refs/heads/", "ref: "


class RemoteBranches:
    """Read from what `git ls-remote --symref` says of HEAD and `refs/heads/*`."""

    def __init__(self, listing: str) -> None:
        self.tips: dict[str, str] = {}
        """Commits by the names of their branches; none = the repository is empty."""
        self._default = ""
        for line in listing.splitlines():
            value, _, ref = line.partition("\t")
            if ref == "HEAD" and value.startswith(_LINK + _BRANCH):
                self._default = value[len(_LINK + _BRANCH) :]
            elif ref.startswith(_BRANCH):
                self.tips[ref[len(_BRANCH) :]] = value

    def base(self, wanted: str, own: str) -> str:
        """Returns the branch to begin from and to merge into; empty = there is nothing but perhaps the thread's own branch.

        HEAD may name a branch that does not exist (yet), or none at all.

        Raises:
            ProblemError: unknown_branch, no_default_branch.
        """
        if wanted:
            if wanted not in self.tips:
                raise ProblemError("unknown_branch")
            return wanted
        others = [name for name in self.tips if name != own]
        if len(others) <= 1:
            return "".join(others)
        for name in (self._default, "main", "master"):
            if name in others:
                return name
        raise ProblemError("no_default_branch")

    def free(self, names: list[str]) -> str:
        """Returns the first of them that can be made there. Raises: ProblemError: no_free_branch."""
        for name in names:
            if not any(_collide(name, other) for other in self.tips):
                return name
        raise ProblemError("no_free_branch")


def _collide(one: str, other: str) -> bool:
    """Whether git cannot have both: to it `a` and `a/b` are a file and a directory."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")

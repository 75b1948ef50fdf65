"""Which branches a remote repository has: from which one a thread begins, and which name is free for its own. Pure."""

from __future__ import annotations

from agent_scripts.inside.git import ProblemError

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
        """What is begun from and merged into; empty = there is nothing but perhaps the thread's own branch.

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
        """The first of them that can be made there.

        Raises:
            ProblemError: no_free_branch.
        """
        for name in names:
            if not any(_collide(name, other) for other in self.tips):
                return name
        raise ProblemError("no_free_branch")


def _collide(one: str, other: str) -> bool:
    """To git `a` and `a/b` are a file and a directory."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")

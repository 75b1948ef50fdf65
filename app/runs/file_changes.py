"""What a run does to the files of its thread: a tree of the work directory before it and one after, compared by git inside.

The trees live in a repository of Orion's own beside the work directory: it makes no difference whether the agent commits,
whether there is a repository at all, or what that one's configuration says.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.log import get_logger
from app.runs.model import Changes
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.types import ExecResult

_log = get_logger(__name__)

TREE_TIMEOUT_S = 30.0
"""For all files: 100,000 small ones take git some 10 s on two cores."""
MAX_PATCH_BYTES = 256 * 1024
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's name of no files. Source: `git hash-object -t tree /dev/null`."""
_MAX_LINES_BYTES = 4096
"""For the tree and the count, before the patch."""

# A folder with a file in the index is no repository of its own to git, so each that was made there gets an empty one; it is
# not on the disk, and goes again. What was cloned, its own log says so, stays one line: its commit.
_OPEN_MADE = """\
find . -path ./.git -prune -o -type d -name .git -prune -exec sh -c '
cloned() { [ -f "$1/.git/logs/HEAD" ] && head -n 1 "$1/.git/logs/HEAD" | grep -q "clone: from "; }
for made; do
  made=${made%/.git} at=$made
  while [ "$at" != . ]; do cloned "$at" && continue 2; at=${at%/*}; done
  printf "100644 e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 0\\t%s/.orion-made\\0" "${made#./}"
done' sh {} + | git update-index -z --replace --index-info
"""
# An own index, no attributes or filters of the system, and files as they are: a tree is what is on the disk.
_TAKE = f"""\
[ -d "$GIT_DIR" ] || env -u GIT_WORK_TREE git init -q --bare "$GIT_DIR" || exit 1
{_OPEN_MADE}
git -c core.bare=false add -A . && git write-tree
"""
_BEGIN = _TAKE.rstrip() + ' | tee "$GIT_DIR/begun"\n'
# One exec for all: in a container each costs a tenth of a second.
_COMPARE = f"""\
after=$({_TAKE}) || exit 1
echo "$after"
[ "$after" = "$1" ] && exit 0
git diff-tree -r --shortstat --no-renames "$1" "$after" || exit 1
git diff-tree -r -p --no-color --no-ext-diff --no-textconv "$1" "$after" | head -c {MAX_PATCH_BYTES + 1}
"""

_COUNTED = re.compile(r"(\d+) (file|insertion|deletion)s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    changes: Changes
    patch: str = field(repr=False)
    """In git's format, cut at `MAX_PATCH_BYTES` after a whole line; empty when there is nothing to show."""


class FileWatch:
    def __init__(self, sandbox: Sandbox, *, repository: str, directory: str = "") -> None:
        """`repository`: a path inside, outside the work directory, that does not exist yet; `directory`: all that is watched."""
        self._directory = directory or sandbox.paths.work
        self._sandbox = sandbox
        self._env: Mapping[str, str] = {
            "GIT_DIR": repository,
            "GIT_WORK_TREE": self._directory,
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "LC_ALL": "C",  # the count is a sentence
        }
        self._before: str | None = None

    async def begin(self, *, is_empty: bool) -> None:
        """Takes the tree before. Where there is no git, or too much to look at, nothing will be told."""
        self._before = EMPTY_TREE if is_empty else await self._take(_BEGIN)

    async def go_on(self, *, was_empty: bool) -> None:
        """Goes on from the tree that an earlier process took."""
        begun = f"{self._env['GIT_DIR']}/begun"
        result = None if was_empty else await self._exec(["cat", begun])
        known = None if result is None or result.exit_code != 0 else result.text.strip()
        self._before = EMPTY_TREE if was_empty else known

    async def end(self) -> Difference | None:
        """Returns what has changed since; None = nothing, or nobody knows."""
        if self._before is None:
            return None
        result = await self._exec(["sh", "-c", _COMPARE, "compare", self._before])
        if result is None or result.exit_code != 0:
            return None
        _, _, compared = result.stdout.partition(b"\n")
        counted, _, patch = compared.partition(b"\n")
        changes = _count(counted.decode("utf-8", "replace"))
        return None if changes is None else Difference(changes=changes, patch=_whole_lines(patch))

    async def _take(self, script: str) -> str | None:
        result = await self._exec(["sh", "-c", script])
        if result is None or result.exit_code != 0:
            return None
        return result.text.strip() or None

    async def _exec(self, argv: Sequence[str]) -> ExecResult | None:
        """Returns None when it took too long, or the sandbox is lost: the agent's answer does not hang on it."""
        try:
            return await self._sandbox.exec(
                argv,
                timeout_s=TREE_TIMEOUT_S,
                env=self._env,
                cwd=self._directory,
                max_output_bytes=MAX_PATCH_BYTES + _MAX_LINES_BYTES,
            )
        except SandboxError as exc:
            _log.warning("run.changes_unknown", code=exc.code, reason=str(exc))
            return None


def _count(shortstat: str) -> Changes | None:
    """Reads git's summary, such as ` 3 files changed, 2 insertions(+), 1 deletion(-)`: what is nought is left out. None = nothing has changed."""
    found = {word: int(number) for number, word in _COUNTED.findall(shortstat)}
    if "file" not in found:
        return None
    return Changes(
        files=found["file"],
        added=found.get("insertion", 0),
        removed=found.get("deletion", 0),
    )


def _whole_lines(patch: bytes) -> str:
    if len(patch) <= MAX_PATCH_BYTES:
        return patch.decode("utf-8", "replace")
    kept = patch[:MAX_PATCH_BYTES].rpartition(b"\n")[0].decode("utf-8", "replace")
    return f"{kept}\n[the rest is left out: more than {MAX_PATCH_BYTES} bytes]\n"

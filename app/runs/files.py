"""A thread's files: those of its messages, which are brought in; and what a run does to all of them.

The trees live in a repository of Orion's own beside the work directory: it makes no difference whether the agent commits,
whether there is a repository at all, or what that one's configuration says.
"""

import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from app.log import get_logger
from app.runs.history import Conversation, FileSource, PlacedFile, UnreadableFileError
from app.runs.model import Changes
from app.runs.policy import FileSettings
from app.runs.request import AttachedFile, slack_microseconds
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
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
        """Goes on from the tree that an earlier process took; it took none where there was nothing."""
        result = await self._exec(["cat", f"{self._env['GIT_DIR']}/begun"])
        known = None if result is None or result.exit_code != 0 else result.text.strip()
        self._before = known or (EMPTY_TREE if was_empty else None)

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


# -- files of messages ---------------------------------------------------------------------------------------------------


MIB = 1024**2
MAX_NAME_BYTES = 120
INBOX = "in"
_INDEX = ".orion/files.json"
"""In the agent's home, which is kept with the thread: which files are there, by Slack's ids."""
_IMAGES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""By their first bytes: what Slack tells of a type is its sender's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The files of a conversation, as its agent finds them."""

    placed: Mapping[str, PlacedFile]
    """By `AttachedFile.key`."""
    problems: Sequence[str]
    """What of the question's cannot be read, for who asked: its name, and why."""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.placed.values())


async def bring_files(
    conversation: Conversation,
    sandbox: Sandbox,
    *,
    source: FileSource,
    work: str,
    limits: FileSettings,
) -> Brought:
    """Puts the files of a conversation into `in` of the directory `work`, where its agent finds them.

    Those of earlier messages that are there already are not fetched again.

    Raises:
        SandboxError: UNAVAILABLE: the sandbox is lost.
    """
    index = await _read_index(sandbox)
    inbox = _Inbox(sandbox, directory=f"{work}/{INBOX}", index=index, limits=limits)
    problems: list[str] = []
    for file in files_of(conversation):
        try:
            await inbox.bring(file, source)
        except UnreadableFileError as exc:
            _log.info("file.unreadable", file=file.id, reason=exc.reason)
            if file in conversation.request.content.files:
                problems.append(f"{file.name} ({exc.reason})")
    if inbox.is_changed:
        await sandbox.write_file(f"{sandbox.paths.home}/{_INDEX}", _encode(inbox.placed))
    return Brought(placed=inbox.placed, problems=problems)


def files_of(conversation: Conversation) -> Sequence[AttachedFile]:
    """Returns the files of the question, then those of earlier messages, the newest first; each once."""
    asked_us = slack_microseconds(conversation.request.message_ts)
    told = [
        *((run.request.message_ts, run.request.content) for run in conversation.records),
        *((one.ts, one.content) for one in conversation.thread if not one.is_own),
    ]
    earlier = sorted(
        ((slack_microseconds(ts), content) for ts, content in told),
        key=operator.itemgetter(0),
        reverse=True,
    )
    files = [*conversation.request.content.files]
    files += (file for at_us, content in earlier if at_us < asked_us for file in content.files)
    return tuple({file.key: file for file in reversed(files)}.values())[::-1]


class _Inbox:
    """Where the files of one thread are, and what of a run's bounds is left."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        directory: str,
        index: Mapping[str, PlacedFile],
        limits: FileSettings,
    ) -> None:
        self._sandbox = sandbox
        self._directory = directory
        self._limits = limits
        self._files_left = limits.files_per_run
        self._bytes_left = limits.files_mib_per_run * MIB
        self.placed = dict(index)
        self.is_changed = False

    async def bring(self, file: AttachedFile, source: FileSource) -> None:
        """Raises: UnreadableFileError: it cannot be had, or is more than is taken."""
        if file.key in self.placed:
            return
        if self._files_left == 0:
            raise UnreadableFileError(f"I take {self._limits.files_per_run} files at a time")
        if self._bytes_left <= 0:
            raise UnreadableFileError(
                f"I take {self._limits.files_mib_per_run} MiB of files at a time"
            )
        most = min(self._limits.file_max_mib * MIB, self._bytes_left)
        data = await source.fetch(file, max_bytes=most)
        path = f"{self._directory}/{_safe_name(file.name, taken=self._names)}"
        try:
            await self._sandbox.write_file(path, data)
        except OSError as exc:
            raise UnreadableFileError("there is no room for it in my workspace") from exc
        self._files_left -= 1
        self._bytes_left -= len(data)
        self.is_changed = True
        self.placed[file.key] = PlacedFile(path=path, size=len(data), image_type=_image_type(data))

    @property
    def _names(self) -> set[str]:
        return {PurePosixPath(file.path).name for file in self.placed.values()}


def _image_type(data: bytes) -> str:
    """Returns the media type of a picture that models take; empty for all else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), "")


def _safe_name(name: str, *, taken: Iterable[str]) -> str:
    """Returns a name that is one of a file in its directory, visible, short, and nobody else's."""
    bare = re.sub(r"[\x00-\x1f\x7f/\\]+", "_", name).strip().lstrip(".-") or "file"
    stem, dot, ending = bare.rpartition(".")
    if not stem or len(ending) > MAX_NAME_BYTES // 4:
        stem, dot, ending = bare, "", ""
    room = MAX_NAME_BYTES - len(f"{dot}{ending}".encode()) - 4
    stem = stem.encode()[:room].decode(errors="ignore")
    known = {one.casefold() for one in taken}
    number = 1
    while (unique := f"{stem}{f'-{number}' if number > 1 else ''}{dot}{ending}").casefold() in known:  # fmt: skip
        number += 1
    return unique


async def _read_index(sandbox: Sandbox) -> Mapping[str, PlacedFile]:
    """Returns what earlier runs of the thread have brought; nothing where the agent has spoilt the list: it is fetched again."""
    try:
        data = await sandbox.read_file(f"{sandbox.paths.home}/{_INDEX}", max_bytes=MIB)
        entries = json.loads(data)
        return {key: PlacedFile(**entry) for key, entry in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.UNAVAILABLE:
            raise
        return {}


def _encode(placed: Mapping[str, PlacedFile]) -> bytes:
    entries = {
        key: {"path": file.path, "size": file.size, "image_type": file.image_type}
        for key, file in placed.items()
    }
    return json.dumps(entries).encode()

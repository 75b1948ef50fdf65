"""A thread's files: those of its messages, which are brought in; and what a run does to all of them.

The trees live in a repository of Orion's own beside the work directory: it makes no difference whether the agent commits,
whether there is a repository at all, or what that one's configuration says.
"""

import asyncio
import hashlib
import json
import operator
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agent_scripts.events import TurnFinished
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.delivery import name_pictures, not_shared, pictures_of, shorten
from app.runs.history import Conversation, FileExchange, PlacedFile, UnreadableFileError
from app.runs.model import Changes, Difference, SharedFile
from app.runs.policy import FileSettings
from app.runs.request import AttachedFile, slack_microseconds
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.types import ExecResult, SandboxPaths

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
# What the clone itself ignores, as a set-up's dependencies, is no change; a pipe in its place would be waited for.
_TAKE = f"""\
[ -d "$GIT_DIR" ] || env -u GIT_WORK_TREE git init -q --bare "$GIT_DIR" || exit 1
{_OPEN_MADE}
ignored=.git/info/exclude
[ -f "$ignored" ] || ignored=/dev/null
git -c core.bare=false -c core.excludesFile="$ignored" add -A . ${{LEFT_OUT:+":(exclude)$LEFT_OUT"}} && git write-tree
"""
_BEGIN = _TAKE.rstrip() + ' | tee "$GIT_DIR/begun"\n'
_COPIED_KIB = 100 * 1024
"""Of a clone's objects: more are read where they are, and nothing is told where the agent takes them away."""
# A clone that was just made knows what is on the disk: only what has changed since is read.
_BEGIN_WITH_CLONE = f"""\
env -u GIT_WORK_TREE git init -q --bare "$GIT_DIR" || exit 1
if [ -f .git/index ] && [ -d .git/objects ]; then
  cp .git/index "$GIT_DIR/index"
  if [ "$(du -sk .git/objects | cut -f1)" -lt {_COPIED_KIB} ]; then cp -R .git/objects/. "$GIT_DIR/objects/"
  else echo "$PWD/.git/objects" > "$GIT_DIR/objects/info/alternates"; fi
fi
{_BEGIN}"""
# One exec for all: in a container each costs a tenth of a second.
_COMPARE = f"""\
after=$({_TAKE}) || exit 1
echo "$after"
[ "$after" = "$1" ] && exit 0
git diff-tree -r --shortstat --no-renames "$1" "$after" || exit 1
git diff-tree -r -p --no-color --no-ext-diff --no-textconv "$1" "$after" | head -c {MAX_PATCH_BYTES + 1}
"""

_COUNTED = re.compile(r"(\d+) (file|insertion|deletion)s?")


class FileWatch:
    def __init__(
        self, sandbox: Sandbox, *, repository: str, directory: str = "", people: str = ""
    ) -> None:
        """Makes one that is to begin.

        Args:
            sandbox: whose files are watched.
            repository: a path inside, outside the work directory, that does not exist yet.
            directory: all that is watched; empty = the work directory.
            people: see `people_directory`; what is shared there as it is, is in no patch.
        """
        self._directory = directory or sandbox.paths.work
        self._sandbox = sandbox
        self._env: Mapping[str, str] = {
            "GIT_DIR": repository,
            "GIT_WORK_TREE": self._directory,
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "LC_ALL": "C",  # the count is a sentence
            "LEFT_OUT": OUTBOX if people == self._directory else "",
        }
        self._before: str | None = None

    async def begin(self, *, is_empty: bool, is_cloned: bool = False) -> None:
        """Takes the tree before. Where there is no git, or too much to look at, nothing will be told.

        `is_cloned`: what is watched is a clone in which nobody has worked yet.
        """
        script = _BEGIN_WITH_CLONE if is_cloned else _BEGIN
        self._before = EMPTY_TREE if is_empty else await self._take(script)

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
_BROUGHT = ".orion/files.json"
"""In the agent's home, which is kept with the thread: which files are there, by Slack's ids."""
_IMAGES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""By their first bytes: what Slack tells of a type is its sender's word."""


def people_directory(paths: SandboxPaths, *, is_mounted: bool, checkout: str) -> str:
    """Returns the directory in which files from and for people are: the work directory, but where `in` and `out` of that are not Orion's.

    Args:
        paths: of the sandbox.
        is_mounted: the work directory is one of the operator's, or a copy of it.
        checkout: the directory of a repository in it; empty = there is none.
    """
    taken = (f"{paths.work}/{INBOX}", f"{paths.work}/{OUTBOX}")
    return paths.home if is_mounted or checkout in taken else paths.work


async def bring_files(
    attempt: Attempt, sandbox: Sandbox, *, work: str, limits: FileSettings
) -> bool:
    """Puts the files of the attempt's conversation into `in` of the directory `work`, where its agent finds them; whether there are any.

    Those of earlier messages that are there already are not fetched again. What of the question's own cannot be had is noted for the asker.

    Raises:
        SandboxError: UNAVAILABLE: the sandbox is lost.
    """
    wanted, exchange = _files_of(attempt.conversation), attempt.exchange
    problems = [*attempt.conversation.request.content.left_out]
    if exchange is None or not wanted:
        attempt.note_missing(problems)
        return False
    attempt.enter("Reading files")
    index = _placed(await _read_index(sandbox, _BROUGHT))
    inbox = _Inbox(sandbox, directory=f"{work}/{INBOX}", index=index, limits=limits)
    with attempt.trace.step("fetch-files") as step:
        for file in wanted:
            try:
                await inbox.bring(file, exchange)
            except UnreadableFileError as exc:
                _log.info("file.unreadable", file=file.id, reason=exc.reason)
                if file in attempt.conversation.request.content.files:
                    problems.append(f"{file.name} ({exc.reason})")
        placed = inbox.placed
        if inbox.is_changed:
            await _write_index(
                sandbox, _BROUGHT, {key: asdict(file) for key, file in placed.items()}
            )
        step.set(files=len(placed), bytes=sum(file.size for file in placed.values()))
    attempt.conversation = attempt.conversation.with_files(placed)
    attempt.note_missing(problems)
    return bool(placed)


def _files_of(conversation: Conversation) -> Sequence[AttachedFile]:
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


class _Allowance:
    """Counts how many files and bytes a run may still be given, or may still share: one is made for each direction."""

    def __init__(self, limits: FileSettings, *, verb: str) -> None:
        self._limits = limits
        self._too_many = f"I {verb} {limits.files_per_run} files at a time"
        self._too_much = f"I {verb} {limits.files_mib_per_run} MiB of files at a time"
        self._files = limits.files_per_run
        self._bytes = limits.files_mib_per_run * MIB

    def most_bytes(self) -> int:
        """Returns how large the next file may be. Raises: UnreadableFileError: there may be none."""
        if self._files == 0 or self._bytes <= 0:
            raise UnreadableFileError(self._too_much if self._files else self._too_many)
        return min(self._limits.file_max_mib * MIB, self._bytes)

    def why_too_large(self) -> str:
        """Returns why a larger file than that is not taken."""
        most = self._limits.file_max_mib
        is_last = self._bytes < most * MIB
        return self._too_much if is_last else f"it is larger than {most:.4g} MiB"

    def count(self, size: int) -> None:
        self._files -= 1
        self._bytes -= size


class _Inbox:
    """Where the files of one thread's messages are."""

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
        self._allowance = _Allowance(limits, verb="take")
        self.placed = dict(index)
        self.is_changed = False

    async def bring(self, file: AttachedFile, exchange: FileExchange) -> None:
        """Raises: UnreadableFileError: it cannot be had, or is more than is taken."""
        if file.key in self.placed:
            return
        data = await exchange.fetch(file, max_bytes=self._allowance.most_bytes())
        taken = {PurePosixPath(one.path).name for one in self.placed.values()}
        path = f"{self._directory}/{_safe_name(file.name, taken=taken)}"
        try:
            await self._sandbox.write_file(path, data)
        except OSError as exc:
            raise UnreadableFileError("there is no room for it in my workspace") from exc
        self._allowance.count(len(data))
        self.is_changed = True
        self.placed[file.key] = PlacedFile(path=path, size=len(data), image_type=_image_type(data))


_SMALLEST_PICTURE: Final = 26
"""Bytes, of the shortest, a GIF: 6, 7 and 10 of headers, 3 for a pixel and the end; a model's API refuses a request with what is no picture."""
_UNSEEN: Final = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
"""Unicode categories: controls, marks of direction, lone surrogates, separators of lines."""


def _image_type(data: bytes) -> str:
    """Returns the media type of a picture that models take; empty for all else, and for what is too short to be one."""
    if len(data) < _SMALLEST_PICTURE:
        return ""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), "")


def _visible(name: str) -> str:
    """Returns the name without characters that nobody sees, or that turn others around."""
    return "".join("_" if unicodedata.category(char) in _UNSEEN else char for char in name)


def _safe_name(name: str, *, taken: Iterable[str]) -> str:
    """Returns a name that is one of a file in its directory, visible, short, and nobody else's; without signs by which a shell runs, redirects or quotes.

    And without a comma, at which Codex would cut it, and marks that make a name look like another one (right-to-left, zero width).
    """
    bare = re.sub(r"[/\\,;|&<>$`\"'*?]+", "_", _visible(name)).strip().lstrip(".-") or "file"
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


async def _read_index(sandbox: Sandbox, name: str) -> Mapping[str, Any]:
    """Returns what earlier runs of the thread have noted; nothing where the agent has spoilt it: all is done again."""
    try:
        noted = json.loads(await sandbox.read_file(f"{sandbox.paths.home}/{name}", max_bytes=MIB))
    except (OSError, ValueError, RecursionError):
        return {}
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.UNAVAILABLE:
            raise
        return {}
    return noted if isinstance(noted, dict) else {}


async def _write_index(sandbox: Sandbox, name: str, entries: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the next run does it again
        await sandbox.write_file(f"{sandbox.paths.home}/{name}", json.dumps(entries).encode())


_PLACED: TypeAdapter[dict[str, PlacedFile]] = TypeAdapter(dict[str, PlacedFile])


def _placed(entries: Mapping[str, Any]) -> dict[str, PlacedFile]:
    try:
        return _PLACED.validate_python(entries)
    except ValidationError:
        return {}


# -- files for people ------------------------------------------------------------------------------------------------------

OUTBOX = "out"
SHARE_TIMEOUT_S = 120.0
_SHARED = ".orion/shared.json"
"""In the agent's home: digests of what was shared, by paths."""
_REFUSED = ".orion/refused.json"
"""Beside it: why what was told as not shared was not, by paths."""
_LIST = rf"find {OUTBOX} ! -type d \( -type l -o -path '*/*' \) -printf '%y %s %T@ %p\0' | head -c 65536"
"""From beside it, for an outbox that is a link is none."""


async def share_files(
    attempt: Attempt,
    sandbox: Sandbox,
    finished: TurnFinished,
    *,
    work: str,
    cwd: str,
    limits: FileSettings,
) -> TurnFinished:
    """Hands over what the agent leaves for people, for the thread to be shown: what is in `out` of the directory `work`, and pictures of its answer by paths from `cwd`, where it worked.

    What was handed over before is not again, unless it has changed. Returns the turn, whose answer names them; what is not
    shared is noted for the asker.
    """
    text = finished.text
    short, long = shorten(text)
    outbox = _Outbox(attempt, sandbox, directory=work, limits=limits)
    try:
        async with asyncio.timeout(SHARE_TIMEOUT_S):
            paths = await outbox.paths() if attempt.tracker.steps else ()
            paths = (*paths, *pictures_of(text, cwd=cwd))
            if attempt.exchange is None or not (paths or long or outbox.problems):
                return finished
            attempt.enter("Sharing files")
            with attempt.trace.step("share-files") as step:
                if await outbox.share_texts(long, attempt.exchange):
                    text = short
                await outbox.share(paths, attempt.exchange)
                step.set(files=len(outbox.shared), bytes=sum(one.size for one in outbox.shared))
    except TimeoutError:
        outbox.problems.append("the others (it took too long)")
    except SandboxError as exc:  # the answer does not hang on it
        _log.warning("file.unreadable", code=exc.code, reason=str(exc))
    attempt.shared = tuple(outbox.shared)
    if outbox.problems:
        attempt.notes.append(not_shared(outbox.problems))
    return replace(finished, text=name_pictures(text))


class _Outbox:
    def __init__(
        self, attempt: Attempt, sandbox: Sandbox, *, directory: str, limits: FileSettings
    ) -> None:
        self._attempt = attempt
        self._sandbox = sandbox
        self._directory = directory
        self._allowance = _Allowance(limits, verb="share")
        self._stamps: dict[str, str] = {}
        """Kind, size and time of what is in the outbox, by paths."""
        self._refused: Mapping[str, Any] | None = None
        self._told: dict[str, Any] = {}
        self.shared: list[SharedFile] = []
        self.problems: list[str] = []

    async def share_texts(self, texts: Mapping[str, str], exchange: FileExchange) -> bool:
        """Whether there are texts, by the names that they get, and all are taken."""
        try:
            for name, text in texts.items():
                data = (await asyncio.to_thread(self._attempt.mask, text)).encode()
                await self._attempt.may_act()
                file_id = await exchange.upload(name, data)
                self.shared.append(SharedFile(id=file_id, name=name, size=len(data)))
        except UnreadableFileError as exc:
            _log.info("file.unreadable", reason=exc.reason)
            self.shared.clear()
            return False
        return bool(texts)

    async def share(self, paths: Sequence[str], exchange: FileExchange) -> None:
        """Hands over files that may be shared and have changed since they were; the others are noted as problems."""
        known = await _read_index(self._sandbox, _SHARED)
        digests = dict(known)
        try:
            await self._share(paths, exchange, digests)
        finally:
            if digests != known:
                await _write_index(self._sandbox, _SHARED, digests)
            if self._told:
                await _write_index(self._sandbox, _REFUSED, {**(self._refused or {}), **self._told})

    async def _share(
        self, paths: Sequence[str], exchange: FileExchange, digests: dict[str, Any]
    ) -> None:
        """Shares them, and notes in `digests` by which run. What this run has shared, and died before it said so, is shared again: only then is it in its outcome."""
        run_id = self._attempt.run.id
        for path in dict.fromkeys(paths):
            name = _visible(PurePosixPath(path).name)
            try:
                data = await self._read(path)
                digest = hashlib.sha256(data).hexdigest()
                noted = digests.get(path)  # by an older Orion without its run
                if noted == digest or (
                    isinstance(noted, list) and noted[:1] == [digest] and run_id not in noted
                ):
                    continue
                await self._attempt.may_act()
                file_id = await exchange.upload(name, data)
            except FileNotFoundError:
                continue
            except (UnreadableFileError, OSError) as exc:
                await self._refuse(path, str(exc))
                continue
            self._allowance.count(len(data))
            digests[path] = [digest, run_id]
            self.shared.append(SharedFile(id=file_id, name=name, size=len(data)))

    async def _refuse(self, path: str, reason: str) -> None:
        """Notes a problem, unless an earlier run has told it of what has not changed since; one that died before it did tells it again."""
        if self._refused is None:
            self._refused = await _read_index(self._sandbox, _REFUSED)
        noted, stamp = self._refused.get(path), self._stamps.get(path)
        refusal = [reason, stamp, self._attempt.run.id]
        if isinstance(noted, list) and noted[:2] == refusal[:2] and noted != refusal:
            return
        if stamp is not None:  # a picture from elsewhere is of the answer that shows it
            self._told[path] = refusal
        name = PurePosixPath(path).name.encode(errors="surrogateescape").decode(errors="replace")
        self.problems.append(f"{name} ({reason})")

    async def paths(self) -> Sequence[str]:
        """Returns what is in the outbox."""
        try:
            listed = await self._sandbox.exec(
                ["sh", "-c", _LIST], timeout_s=TREE_TIMEOUT_S, cwd=self._directory
            )
        except FileNotFoundError:
            return ()
        if listed.exit_code != 0:
            return ()
        *found, cut = listed.stdout.split(b"\0")
        for entry in found:
            kind, size, time, name = entry.decode(errors="surrogateescape").split(" ", 3)
            whole_s = time.partition(".")[0]  # Docker keeps no more of it in a workspace that moves
            self._stamps[f"{self._directory}/{name}"] = f"{kind} {size} {whole_s}"
        paths = sorted(self._stamps)
        if cut:
            rest = "others"
            self._stamps[rest] = hashlib.sha256(listed.stdout).hexdigest()
            await self._refuse(rest, "there are too many")
        return paths

    async def _read(self, path: str) -> bytes:
        """Returns a file that may be shared. Raises: UnreadableFileError: it may not; OSError."""
        if (kind := self._stamps.get(path, "f")[0]) != "f":
            raise UnreadableFileError("it is a link" if kind == "l" else "it is no file")
        if path.encode(errors="ignore").decode() != path:
            raise UnreadableFileError("its name is no UTF-8")
        most = self._allowance.most_bytes()
        try:
            data = await self._sandbox.read_file(path, max_bytes=most)
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.FILE_TOO_LARGE:
                raise
            raise UnreadableFileError(self._allowance.why_too_large()) from exc
        if not data:
            raise UnreadableFileError("it is empty")
        has_secret = self._attempt.has_secret
        if await asyncio.to_thread(has_secret, data) or has_secret(path.encode()):
            raise UnreadableFileError("there is a secret in it")
        return data

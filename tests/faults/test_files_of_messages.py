"""Files of messages on their way into a thread's workspace; on the real core with a sandbox of its own."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import ErrorCode
from app.runs.files import _image_type, _safe_name
from app.runs.testing import AttachedFile, MessageContent, Run, RunRequest, RunState, ThreadMessage
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.testing.fake import Operation
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import PlanAdapter

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 20
LIST = [{"list": "in"}]
ROOT, NEXT = "1795302364.000100", "1795302365.000100"
KEPT = replace(POLICY, session_keep_s=60)


def files_of(*names: str) -> MessageContent:
    return MessageContent(files=tuple(AttachedFile(id=f"F-{name}", name=name) for name in names))


def asking(*names: str, ts: str = ROOT, thread_ts: str | None = None) -> RunRequest:
    """Returns a question with files, whose agent answers with what it finds in its inbox."""
    request = request_of(LIST, ts=ts, thread_ts=thread_ts)
    return request.model_copy(update={"content": files_of(*names)})


async def answered(core: Core, request: RunRequest) -> Run:
    await core.intake.accept(request)
    return await ended(core, request.run_id)


def found_by(run: Run) -> dict[str, bytes]:
    """Returns what the agent has found, by name."""
    told, _, _ = run.result.answer.partition("\n")
    return {name: bytes.fromhex(held) for name, held in json.loads(told).items()}


async def test_files_are_there_when_the_agent_starts(tmp_path: Path) -> None:
    """Byte for byte, under safe names, each told by its path; pictures are told as such to agents that take them."""
    adapter = PlanAdapter()
    async with core_of(tmp_path, adapter=adapter) as core:
        core.shelf.files = {"../x": b"up", "a.csv": b"\x00\xff", "p.png": PNG, "A.csv": b""}
        run = await answered(core, asking(*core.shelf.files))
        assert found_by(run) == {"_x": b"up", "a.csv": b"\x00\xff", "p.png": PNG, "A-2.csv": b""}
        assert run.result.changes is None
        (turn,) = adapter.turns
        (message,) = turn.messages
        inbox = f"{turn.paths.work}/in"
        assert f"{inbox}/_x (../x, 2 bytes); {inbox}/a.csv (a.csv, 2 bytes)" in message.text
        pictures = [(one.path, one.media_type) for one in message.images]
        assert pictures == [(f"{inbox}/p.png", "image/png")]


async def test_what_files_say_of_themselves_is_not_believed(tmp_path: Path) -> None:
    """A page that calls itself a picture is shown to no model as one; an archive is not looked into, and is a file like any other."""
    adapter, bomb = PlanAdapter(), io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(100 * 1024**2))
    files = {"bomb.zip": bomb.getvalue(), "page.png": b"<html>" + b"no picture" * 9}
    async with core_of(tmp_path, replace(POLICY, file_max_mib=1), adapter=adapter) as core:
        core.shelf.files = files
        run = await answered(core, asking(*files))
        assert found_by(run) == {name: data[:64] for name, data in files.items()}
        (turn,) = adapter.turns
        assert f"bomb.zip, {len(files['bomb.zip']):,} bytes)" in turn.messages[0].text
        assert [one.images for one in turn.messages] == [()]


async def test_what_cannot_be_had_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    """The others are there; the asker reads which one is not, and why; the agent is told its name."""
    adapter = PlanAdapter()
    async with core_of(tmp_path, adapter=adapter) as core:
        core.shelf.files = {"a.csv": b"1"}
        run = await answered(core, asking("gone.csv", "a.csv"))
        assert run.state is RunState.SUCCEEDED
        assert found_by(run) == {"a.csv": b"1"}
        note = "Not read, of what came with your message: gone.csv (it is not on the shelf)."
        assert run.result.answer.endswith(note)
        assert (
            "[attached in Slack, not readable here: gone.csv]" in adapter.turns[0].messages[-1].text
        )


@pytest.mark.parametrize(
    ("limits", "had", "told"),
    [
        ({"files_per_run": 2}, ["a", "b"], "c (I take 2 files at a time), d (I take 2 files at a time)"),
        ({"files_per_run": 0}, [], "a (I take 0 files at a time)"),
        ({"file_max_mib": 1, "files_mib_per_run": 2}, ["a", "b"], "d (I take 2 MiB of files at a time)"),
    ],
)  # fmt: skip
async def test_bounds_of_a_run(
    tmp_path: Path, limits: dict[str, Any], had: list[str], told: str
) -> None:
    """In number, by file and in sum; those that come first are taken."""
    async with core_of(tmp_path, replace(POLICY, **limits)) as core:
        core.shelf.files = dict.fromkeys("abcd", b"x" * 1024**2)
        run = await answered(core, asking(*"abcd"))
        assert run.state is RunState.SUCCEEDED
        assert told in run.result.answer
        assert [name for name in core.shelf.fetched if f"{name} (" not in run.result.answer] == had


async def test_files_of_earlier_messages_are_there_too(tmp_path: Path) -> None:
    """Of whoever wrote them, from when Orion is first asked in the thread; each is fetched once, as long as its files are kept."""
    async with core_of(tmp_path, KEPT) as core:
        core.shelf.files = {"theirs.log": b"t", "mine.csv": b"m", "more.csv": b"n"}
        core.reader.messages = [
            ThreadMessage(ts="1795302360.000100", user="U2", author_name="Sam", text="look", is_own=False, content=files_of("theirs.log", "lost.log")),
            ThreadMessage(ts="1795302361.000100", user="", author_name="", text="", is_own=True, content=files_of("changes.patch")),
        ]  # fmt: skip
        root = core.reader.messages[0].ts
        first = await answered(core, asking("mine.csv", thread_ts=root))
        assert found_by(first) == {"theirs.log": b"t", "mine.csv": b"m"}
        assert "lost.log" not in first.result.answer  # nobody asks about it now
        second = await answered(core, asking("more.csv", ts=NEXT, thread_ts=root))
        assert found_by(second) == core.shelf.files
        assert sorted(set(core.shelf.fetched)) == ["lost.log", "mine.csv", "more.csv", "theirs.log"]
        assert [core.shelf.fetched.count(name) for name in core.shelf.files] == [1, 1, 1]


SPOILT = (
    *("[]", "{", "", "[" * 100_000),
    *('{"F-a.csv": {"path": 7}}', '{"F-a.csv": {"path": "/x", "size": "big"}}'),
)


@pytest.mark.long
async def test_an_agent_that_spoils_the_list_costs_a_second_fetch(tmp_path: Path) -> None:
    """What it writes about its files is its own business, and leads nobody anywhere."""
    async with core_of(tmp_path, KEPT) as core:
        core.shelf.files = {"a.csv": b"1"}
        spoils = [
            *(f"printf '%s' '{data}'" for data in SPOILT),
            "head -c 2000000 /dev/zero",
        ]
        for number, spoil in enumerate(spoils):
            plan = [{"run": f"{spoil} > ~/.orion/files.json"}, *LIST]
            request = request_of(plan, ts=f"179530237{number}.000100", thread_ts=ROOT)
            run = await answered(core, request.model_copy(update={"content": files_of("a.csv")}))
            assert found_by(run)["a.csv"] == b"1"


@pytest.mark.parametrize(("operation", "nth"), [("read_file", 1), ("write_file", 2)])
async def test_a_sandbox_that_is_lost_meanwhile(
    tmp_path: Path, operation: Operation, nth: int
) -> None:
    """Its run ends as one whose sandbox is lost at any other moment; the file is not to blame."""
    async with core_of(tmp_path) as core:
        core.shelf.files = {"a.csv": b"1"}
        lost = SandboxError(SandboxErrorCode.UNAVAILABLE, "gone")
        core.provider.fail(operation, nth, lost)
        run = await answered(core, asking("a.csv"))
        assert run.result.error_code is ErrorCode.SANDBOX_LOST


async def test_a_stop_while_files_come(tmp_path: Path) -> None:
    """Ends the run at once, and no agent starts."""
    adapter = PlanAdapter()
    async with core_of(tmp_path, adapter=adapter) as core:
        core.shelf.hangs = True
        request = asking("a.csv")
        await core.intake.accept(request)
        await core.shelf.asked.wait()
        await core.intake.stop_run(request.run_id, user="U1")
        run = await ended(core, request.run_id)
        assert (run.state, adapter.turns) == (RunState.STOPPED, [])


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("report.csv", "report.csv"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("/abs", "_abs"),
        (".bashrc", "bashrc"),
        ("-rf", "rf"),
        ("a\nb\x00c.txt", "a_b_c.txt"),
        ("a, b,c.png", "a_ b_c.png"),
        ("photo\u202egpj.exe", "photo_gpj.exe"),
        ("a; rm -rf ~ $(id).txt", "a_ rm -rf ~ _(id).txt"),
        ("..", "file"),
        ("", "file"),
        ("ü" * 200 + ".csv", "ü" * 56 + ".csv"),
        ("taken.txt", "taken-2.txt"),
        ("TAKEN.TXT", "TAKEN-2.TXT"),
        ("archive.tar.gz", "archive.tar.gz"),
    ],
)
def test_safe_names(name: str, safe: str) -> None:
    """One file in its directory, visible, at most 120 bytes, nobody else's, whatever was sent."""
    assert _safe_name(name, taken=["taken.txt"]) == safe
    assert len(safe.encode()) <= 120


@pytest.mark.parametrize(("size", "kind"), [(6, ""), (25, ""), (26, "image/gif")])
def test_what_is_too_short_is_no_picture(size: int, kind: str) -> None:
    assert _image_type(b"GIF89a".ljust(size, b"\0")) == kind

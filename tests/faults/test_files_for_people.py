"""Files that agents leave for people, on their way into the thread; on the real core with a sandbox of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.runs.delivery import LONG_ANSWER_CHARS, MAX_TOLD, cut_answer, pictures_of, shorten
from app.runs.files import people_directory
from app.runs.testing import Run, RunState
from app.slack.markdown import split_markdown
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.types import SandboxPaths
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import Plan

KEPT = replace(POLICY, session_keep_s=60)
ROOT, NEXT = "1795302364.000100", "1795302365.000100"


def leaving(script: str, answer: str = "done") -> Plan:
    return [{"run": script}, {"final": answer}]


async def answered(core: Core, plan: Plan, *, ts: str = ROOT) -> Run:
    request = request_of(plan, ts=ts, thread_ts=ROOT)
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def test_what_is_left_in_the_outbox_is_shared(tmp_path: Path) -> None:
    """Whatever it is and however deep it lies, in one message, before the record is closed; the patch stays a patch."""
    async with core_of(tmp_path) as core:
        script = "mkdir -p out/deep && printf a > out/a.txt && printf '\\0b' > out/deep/b.bin"
        run = await answered(core, leaving(script))
        assert core.shelf.uploaded == [("a.txt", b"a"), ("b.bin", b"\0b")]
        assert core.replies.shared == [(run.id, ("a.txt", "b.bin"), False)]
        assert [(file.name, file.size) for file in run.result.files] == [("a.txt", 1), ("b.bin", 2)]
        assert run.result.answer == "done"
        assert run.result.changes is None  # they are shared as they are


async def test_a_name_is_shared_as_it_is_seen(tmp_path: Path) -> None:
    """Without characters that nobody sees, or that turn others around."""
    async with core_of(tmp_path) as core:
        script = "mkdir out && printf a > \"out/rtl$(printf '\\342\\200\\256')gpj.exe\""
        run = await answered(core, leaving(script))
        assert core.shelf.uploaded == [("rtl_gpj.exe", b"a")]
        assert [file.name for file in run.result.files] == ["rtl_gpj.exe"]


async def test_an_answer_without_files_shares_none(tmp_path: Path) -> None:
    """No outbox, an empty one, a file of that name, and one that leads elsewhere."""
    async with core_of(tmp_path) as core:
        for number, (script, answer) in enumerate(
            (
                ("true", "done"),
                ("mkdir out", "done"),
                ("rmdir out; printf 1 > out", "done"),
                ("rm out; ln -s /etc out", "done\n\nNot shared: out (it is a link)."),
            )
        ):
            run = await answered(core, leaving(script), ts=f"179530237{number}.000100")
            assert (run.state, run.result.files) == (RunState.SUCCEEDED, ())
            assert run.result.answer == answer
        assert (core.shelf.uploaded, core.replies.shared) == ([], [])


async def test_a_picture_that_the_answer_shows_is_shared(tmp_path: Path) -> None:
    """From wherever in the work directory it is; the answer names it, for its path leads nowhere in Slack."""
    async with core_of(tmp_path) as core:
        answer = (
            "![the load](plots/load%201.png) and ![x](../../../etc/passwd) and [this](notes.md)"
        )
        script = "mkdir plots && printf png > 'plots/load 1.png' && printf n > notes.md"
        run = await answered(core, leaving(script, answer))
        assert core.shelf.uploaded == [("load 1.png", b"png")]
        assert run.result.answer == "the load (`load 1.png`) and x (`passwd`) and [this](notes.md)"


@pytest.mark.long
async def test_a_file_is_shared_again_only_when_it_has_changed(tmp_path: Path) -> None:
    """The outbox stays with the thread."""
    async with core_of(tmp_path, KEPT) as core:
        await answered(core, leaving("mkdir out && printf 1 > out/a.txt && printf 1 > out/b.txt"))
        await answered(core, leaving("printf 2 > out/b.txt"), ts=NEXT)
        await answered(core, leaving("true"), ts="1795302366.000100")
        assert core.shelf.uploaded == [("a.txt", b"1"), ("b.txt", b"1"), ("b.txt", b"2")]
        assert [names for _, names, _ in core.replies.shared] == [("a.txt", "b.txt"), ("b.txt",)]


@pytest.mark.parametrize(
    ("limits", "script", "told"),
    [
        ({"files_per_run": 1}, "printf 1 > out/a; printf 1 > out/b", "b (I share 1 files at a time)"),
        ({"file_max_mib": 1}, "head -c 1048577 /dev/zero > out/big; printf 1 > out/a", "big (it is larger than 1 MiB)"),
        ({"file_max_mib": 2, "files_mib_per_run": 2}, "printf 1 > out/a; head -c 2097152 /dev/zero > out/big", "big (I share 2 MiB of files at a time)"),
        ({}, "printf 'user hunter2 is in' > out/key; printf 1 > out/a", "key (there is a secret in it)"),
        ({}, "printf 1 > out/hunter2; printf 1 > out/a", "[redacted] (there is a secret in it)"),
        ({}, ": > out/empty; printf 1 > out/a", "empty (it is empty)"),
        ({}, "printf 1 > out/refused; printf 1 > out/a", "refused (there is no shelf for it)"),
        ({}, "ln -s /etc/passwd out/link; ln -s /etc out/dir; ln -s a out/b; printf 1 > out/a", "b (it is a link), dir (it is a link), link (it is a link)"),
        ({}, "mkfifo out/pipe; ln -s x out/hunter2; printf 1 > out/a", "[redacted] (it is a link), pipe (it is no file)"),
        ({"files_per_run": 1}, "printf 1 > out/a; ln -s a out/b", "b (it is a link)"),
        ({}, "printf 1 > out/$(printf 'b\\374'); printf 1 > out/a", "b\ufffd (its name is no UTF-8)"),
    ],
)  # fmt: skip
async def test_what_is_not_shared_is_told(
    tmp_path: Path, limits: dict[str, Any], script: str, told: str
) -> None:
    """By name and reason, and the others are shared all the same."""
    async with core_of(tmp_path, replace(POLICY, **limits)) as core:
        run = await answered(core, leaving(f"mkdir out; {script}"))
        assert run.state is RunState.SUCCEEDED
        assert run.result.answer == f"done\n\nNot shared: {told}."
        assert core.shelf.uploaded == [("a", b"1")]


THIRD = "1795302366.000100"
REFUSED = """mkdir out; cd out; printf 'user hunter2' > key; head -c 1048577 /dev/zero > big; : > empty; ln -s x link
printf 1 > $(printf 'b\\374'); printf 1 > refused"""


@pytest.mark.long
async def test_what_is_not_shared_is_told_once(tmp_path: Path) -> None:
    """By the run that left it, whatever the reason; again by one that has changed it, and that alone."""
    async with core_of(tmp_path, replace(KEPT, file_max_mib=1)) as core:
        run = await answered(core, leaving(REFUSED))
        reasons = run.result.answer.removeprefix("done\n\nNot shared: ").split(", ")
        assert [one.partition(" (")[0] for one in reasons] == ["big", "b\ufffd", "empty", "key", "link", "refused"]  # fmt: skip
        run = await answered(core, leaving("printf 1 > out/a"), ts=NEXT)
        assert run.result.answer == "done"
        run = await answered(core, leaving("printf ' hunter2 more' >> out/key"), ts=THIRD)
        assert run.result.answer == "done\n\nNot shared: key (there is a secret in it)."
        assert core.shelf.uploaded == [("a", b"1")]


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_run_that_died_before_it_told_tells_it(tmp_path: Path, is_own: bool) -> None:
    """Its own note is of an attempt whose answer nobody has seen; another run's has been told."""
    async with core_of(tmp_path) as core:
        run_id = request_of([]).run_id if is_own else "run_other"
        noted = f'{{"%s/out/a": ["it is empty", "%s", "{run_id}"]}}'
        script = f"""mkdir -p out ~/.orion; : > out/a; at=$(find out/a -printf '%y %s %T@')
        printf '{noted}' "$PWD" "${{at%.*}}" > ~/.orion/refused.json"""
        run = await answered(core, leaving(script))
        assert (run.id == run_id) is is_own
        assert run.result.answer == ("done\n\nNot shared: a (it is empty)." if is_own else "done")


@pytest.mark.long
async def test_what_was_one_too_many_is_shared_by_the_next_run(tmp_path: Path) -> None:
    """That it was told as not shared holds nothing back, and what was shared stays so."""
    async with core_of(tmp_path, replace(KEPT, files_per_run=1)) as core:
        run = await answered(core, leaving("mkdir out; printf 1 > out/a; printf 1 > out/b"))
        assert run.result.answer == "done\n\nNot shared: b (I share 1 files at a time)."
        for ts in (NEXT, THIRD):
            run = await answered(core, leaving("true"), ts=ts)
            assert run.result.answer == "done"
        assert core.shelf.uploaded == [("a", b"1"), ("b", b"1")]


@pytest.mark.long
async def test_more_than_are_looked_at_are_told_once(tmp_path: Path) -> None:
    """As long as nothing changes in what is looked at."""
    async with core_of(tmp_path, KEPT) as core:
        script = "mkdir out; cd out; for n in $(seq 300); do ln -s x $(printf 'z%0250d' $n); done"
        run = await answered(core, leaving(script))
        assert "others (there are too many)" in run.result.answer
        run = await answered(core, leaving("true"), ts=NEXT)
        assert run.result.answer == "done"


@pytest.mark.long
async def test_a_picture_that_is_not_shared_is_told_with_each_answer_that_shows_it(
    tmp_path: Path,
) -> None:
    """From beside the outbox: nothing is left there, but the answer speaks of it."""
    async with core_of(tmp_path, KEPT) as core:
        for ts in (ROOT, NEXT):
            run = await answered(core, leaving(": > x.png", "![x.png](x.png)"), ts=ts)
            assert run.result.answer == "`x.png`\n\nNot shared: x.png (it is empty)."


async def test_links_are_told_up_to_a_number(tmp_path: Path) -> None:
    """A folder of installed packages has hundreds of them."""
    async with core_of(tmp_path) as core:
        run = await answered(
            core, leaving("mkdir out; for n in $(seq 30); do ln -s x out/$n; done")
        )
        assert run.result.answer.count("(it is a link)") == MAX_TOLD
        assert run.result.answer.endswith(", and 20 more.")
        assert core.shelf.uploaded == []


async def test_a_link_is_not_followed_where_the_answer_shows_it(tmp_path: Path) -> None:
    """What is in the outbox is shared as it is there, or not at all."""
    async with core_of(tmp_path) as core:
        script = "mkdir out && printf 1 > x.png && ln -s ../x.png out/y.png"
        run = await answered(core, leaving(script, "![y.png](out/y.png)"))
        assert run.result.answer == "`y.png`\n\nNot shared: y.png (it is a link)."
        assert core.shelf.uploaded == []


async def test_more_files_than_are_looked_at_are_told(tmp_path: Path) -> None:
    """Not one by one: they are as many as an agent cares to leave."""
    async with core_of(tmp_path, replace(POLICY, files_per_run=1)) as core:
        script = (
            "mkdir out; cd out; for n in $(seq 300); do printf 1 > $(printf 'z%0250d' $n); done"
        )
        run = await answered(core, leaving(script))
        told = run.result.answer.removeprefix("done\n\nNot shared: ")
        assert told.startswith("others (there are too many), z")
        assert len(core.shelf.uploaded) == 1


async def test_a_sandbox_that_is_lost_at_the_end_costs_the_files_alone(tmp_path: Path) -> None:
    """The answer is there already."""
    async with core_of(tmp_path) as core:
        core.provider.fail("read_file", 1, SandboxError(SandboxErrorCode.UNAVAILABLE, "gone"))
        run = await answered(core, leaving("mkdir out && printf 1 > out/a"))
        assert (run.state, run.result.answer, run.result.files) == (RunState.SUCCEEDED, "done", ())


async def test_a_failed_or_stopped_run_shares_nothing(tmp_path: Path) -> None:
    """What it left is in its workspace, for the next message."""
    async with core_of(tmp_path) as core:
        run = await answered(core, [{"run": "mkdir out && printf 1 > out/a"}, {"exit": 3}])
        assert run.state is RunState.FAILED
        assert core.shelf.uploaded == []


@pytest.mark.parametrize(
    ("is_mounted", "checkout", "directory"),
    [
        (False, "", "/work"),
        (False, "/work/api", "/work"),
        (False, "/work/out", "/home/agent"),
        (False, "/work/in", "/home/agent"),
        (True, "", "/home/agent"),
    ],
)
def test_what_is_anothers_is_not_shared(is_mounted: bool, checkout: str, directory: str) -> None:
    """The `out` of an operator's directory, or of a repository that is called so, holds what nobody left for people."""
    paths = SandboxPaths(
        work="/work", home="/home/agent", run="/run", environment="/env", broker="/broker"
    )
    assert people_directory(paths, is_mounted=is_mounted, checkout=checkout) == directory


@pytest.mark.parametrize(
    ("answer", "paths"),
    [
        ("![a](x.png)", ["/work/x.png"]),
        ("![a](./out/../x.png) ![b](x%20y.png)", ["/work/x.png", "/work/x y.png"]),
        ("[a](x.png) ![b](https://acme.org/x.png) ![c](data:image/png;base64,AA)", []),
        ("![a](../x.png) ![b](/etc/x.png) ![c](#x)", []),
        ("![" * 10_000, []),
        ("![a](" * 100_000, []),
        ("![a](b.png)" + "![a](c(" * 100_000, ["/work/b.png"]),
        ("![a](plot_(1).png)", ["/work/plot_(1).png"]),
    ],
)
def test_pictures_of_an_answer(answer: str, paths: list[str]) -> None:
    """Those beside the answer, below the directory where its agent worked."""
    assert list(pictures_of(answer, cwd="/work")) == paths


def rows(count: int) -> str:
    return "".join(f"| {n} | a\\|b |\n" for n in range(count))


async def test_a_long_log_becomes_a_file(tmp_path: Path) -> None:
    """In place of many messages; masked like the answer; where it is not taken, the messages stay."""
    async with core_of(tmp_path) as core:
        log = "\n".join(f"line {n} hunter2" for n in range(3_000))
        run = await answered(core, [{"final": f"Look:\n\n```\n{log}\n```\n\nThat is all."}])
        ((name, data),) = core.shelf.uploaded
        assert (name, data.decode()) == ("log-1.txt", log.replace("hunter2", "[redacted]") + "\n")
        assert "(the beginning of 3,000 lines, which are in `log-1.txt`)" in run.result.answer
        assert run.result.answer.endswith("That is all.")
        assert "line 14 " in run.result.answer
        assert "line 15 " not in run.result.answer


def test_a_long_table_becomes_a_file_for_spreadsheets() -> None:
    """Its first rows stay; short ones beside it stay whole."""
    small = "| a |\n| --- |\n| 1 |\n"
    short, files = shorten(f"{small}\n| n | x |\n| --- | :-: |\n{rows(4_000)}\nend")
    assert list(files) == ["table-1.csv"]
    assert files["table-1.csv"].splitlines()[:2] == ["n,x", "0,a|b"]
    assert files["table-1.csv"].count("\n") == 4_001
    assert short.startswith(small)
    assert short.endswith(
        "| 14 | a\\|b |\n\n(the beginning of 4,000 rows, which are in `table-1.csv`)\n\nend"
    )


def test_an_answer_that_is_long_in_itself_is_a_file_as_a_whole() -> None:
    """With its beginning, up to the end of a paragraph."""
    answer = "\n\n".join(f"Paragraph {n}. " + "word " * 50 for n in range(200))
    short, files = shorten(answer)
    assert files == {"answer.md": answer}
    assert len(short) < 9_000
    assert short.endswith("\n…\n\n(the whole answer is in `answer.md`)")


def test_an_answer_that_is_cut_in_code_closes_it() -> None:
    """What says where the rest is stands below the code, not in it."""
    answer = ("~~~~ sh\n" + "echo\n" * 700 + "~~~~\n") * 9
    short, files = shorten(answer)
    assert files == {"answer.md": answer}
    assert short.endswith("echo\n…\n~~~~\n\n(the whole answer is in `answer.md`)")


def test_a_log_of_fences_stays_in_its_own() -> None:
    """Its beginning has the mark of the whole, which no line of it closes; what stands in a list is left there."""
    content = "```\nx\n```\n" * 4_000
    short, files = shorten(f"- a\n  ```\n{'  y' * 1_000}\n  ```\n\n````md\n{content}````\nend")
    assert files == {"log-1.txt": content}
    assert "\n\n````md\n```\nx\n```\n" in short
    assert "```\n````\n\n(the beginning of 12,000 lines, which are in `log-1.txt`)\nend" in short


@pytest.mark.parametrize(
    "answer", ["", "short", "x" * LONG_ANSWER_CHARS, f"```\n{'x' * 20_000}\n```"]
)
def test_an_answer_of_three_messages_is_none(answer: str) -> None:
    assert shorten(answer) == (answer, {})


@pytest.mark.parametrize("piece", ["```\n", "| a |\n", "|\n", "~~~", "`", "|---|\n"])
def test_whatever_an_answer_is_made_of_it_is_shortened_at_once(piece: str) -> None:
    """In time that grows with its length alone."""
    short, files = shorten(piece * (400_000 // len(piece)))
    assert len(short) < LONG_ANSWER_CHARS + 1_000
    assert files


def test_many_short_paragraphs_are_many_messages() -> None:
    """Slack takes so many blocks in one: of an answer of hundreds a file is made, or, where it came to no end, no more is shown."""
    answer = "word of the answer\n\n" * 600
    short, files = shorten(answer)
    assert files == {"answer.md": answer}
    assert len(split_markdown(short)) == len(split_markdown(cut_answer(answer))) == 1
    assert cut_answer(answer).endswith("…\n\n(the rest is left out)")
    assert cut_answer("word\n\n" * 90) == "word\n\n" * 90

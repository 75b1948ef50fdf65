"""What is cloned, and what is pushed and what is not: Orion's own git against git's own server."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent_scripts.repository import RepositoryProblem, find_reason
from tests.agents.repository_rig import NAMES, OWN, open_repository
from tests.git_server import git

pytestmark = pytest.mark.timeout(120)


async def test_nothing_is_pushed_where_nothing_was_changed(tmp_path: Path) -> None:
    """Neither when the base has moved since, nor when the agent has pulled it and it moved again."""
    async with open_repository(tmp_path) as rig:
        assert (await rig.clone()).base == "main"
        assert (await rig.publish()).commit == ""
        rig.by_somebody("second")
        assert (await rig.publish()).commit == ""
        git(rig.work, "fetch", "-q", str(rig.bare), "main:refs/remotes/origin/main")
        git(rig.work, "merge", "-q", "--ff-only", "origin/main")
        rig.by_somebody("third")
        assert (await rig.publish()).commit == ""
        assert git(rig.bare, "branch", "--list", "orion*") == ""
        assert rig.effects == 0


async def test_what_was_merged_is_not_pushed_again(tmp_path: Path) -> None:
    """Its branch is gone at the server: it comes back with the next change only; before, it was told once."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        (rig.work / "mine").write_text("mine\n")
        first, again = await rig.publish(), await rig.publish()
        assert (first.is_new, again.is_new) == (True, False)
        assert first.commit == again.commit != ""
        rig.by_somebody("merged", branch=OWN, new="main")
        git(rig.bare, "update-ref", "-d", f"refs/heads/{OWN}")
        assert (await rig.publish()).commit == ""
        assert git(rig.bare, "branch", "--list", "orion*") == ""
        (rig.work / "more").write_text("more\n")
        assert (await rig.publish()).is_new
        assert rig.published() == ["README", "mine", "more"]


async def test_a_branch_that_another_pushed_to(tmp_path: Path) -> None:
    """Without changes of its own it is no failure; with them it is told as what it is, without the broker's address."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        (rig.work / "mine").write_text("mine\n")
        await rig.publish()
        rig.by_somebody("review", branch=OWN)
        quiet = await rig.publish()
        assert (quiet.problem, quiet.is_new, bool(quiet.commit)) == (None, False, True)
        (rig.work / "more").write_text("more\n")
        report = await rig.publish()
        assert report.problem is RepositoryProblem.OVERTAKEN
        assert "/broker/" not in report.detail


async def test_a_push_that_the_server_refuses(tmp_path: Path) -> None:
    """The server's own reason is found among git's words."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        hook = rig.bare / "hooks/pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(
            "#!/bin/sh\necho 'error: GH006: Protected branch' >&2\necho ' ' >&2\nexit 1\n"
        )
        hook.chmod(0o755)
        (rig.work / "mine").write_text("mine\n")
        report = await rig.publish()
        assert report.problem is RepositoryProblem.REFUSED
        assert find_reason(report.detail) == "GH006: Protected branch"


@pytest.mark.parametrize(
    ("default", "branches", "base"),
    [
        ("refs/heads/gone", ("trunk",), "trunk"),
        ("refs/heads/gone", ("dev", "main"), "main"),
        ("refs/heads/gone", ("dev", "master"), "master"),
        ("refs/heads/dev", ("dev", "main"), "dev"),
        ("detached", ("trunk",), "trunk"),
        ("detached", ("dev", "main"), "main"),
        ("refs/heads/gone", ("a", "b"), None),
    ],
)
async def test_the_default_branch(
    tmp_path: Path, default: str, branches: tuple[str, ...], base: str | None
) -> None:
    """A HEAD that leads nowhere, or to a commit, does not make a repository empty; where nothing tells, it is asked for."""
    async with open_repository(tmp_path) as rig:
        commit = git(rig.bare, "rev-parse", "main")
        git(rig.bare, "update-ref", "-d", "refs/heads/main")
        for name in branches:
            git(rig.bare, "update-ref", f"refs/heads/{name}", commit)
        if default == "detached":
            (rig.bare / "HEAD").write_text(f"{commit}\n")
        else:
            git(rig.bare, "symbolic-ref", "HEAD", default)
        report = await rig.clone()
        if base is None:
            assert report.problem is RepositoryProblem.NO_DEFAULT_BRANCH
            assert (await rig.clone(branch="b")).base == "b"
            return
        assert (report.base, report.is_empty) == (base, False)
        (rig.work / "mine").write_text("mine\n")
        assert (await rig.publish()).base == base
        assert rig.published() == ["README", "mine"]


async def test_an_empty_repository_stays_without_a_base(tmp_path: Path) -> None:
    """The thread's own branch, the only one there then, is not what it is merged into."""
    async with open_repository(tmp_path, is_empty=True) as rig:
        assert (await rig.clone()).is_empty
        (rig.work / "mine").write_text("mine\n")
        assert (await rig.publish()).base == ""
        (rig.work / "more").write_text("more\n")
        report = await rig.publish()
        assert (report.base, report.is_new) == ("", True)
        assert rig.published() == ["mine", "more"]


@pytest.mark.parametrize(
    ("taken", "own"),
    [
        ((NAMES[0],), NAMES[1]),
        (("orion",), NAMES[2]),
        (("orion", NAMES[2]), NAMES[3]),
        ((f"{OWN}/more",), NAMES[1]),
    ],
)
async def test_another_name_where_the_first_is_taken(
    tmp_path: Path, taken: tuple[str, ...], own: str
) -> None:
    """A new thread does not go on from a branch that is not its own, nor touch it."""
    async with open_repository(tmp_path) as rig:
        for name in taken:
            rig.by_somebody("foreign", new=name)
        assert (await rig.clone()).own_branch == own
        (rig.work / "mine").write_text("mine\n")
        assert (await rig.publish()).is_new
        assert rig.published() == ["README", "mine"]
        assert "mine" not in git(rig.bare, "ls-tree", "--name-only", taken[0])


async def test_all_names_are_taken(tmp_path: Path) -> None:
    """It is told; nothing is cloned."""
    async with open_repository(tmp_path) as rig:
        for name in NAMES:
            rig.by_somebody("foreign", new=name)
        assert (await rig.clone()).problem is RepositoryProblem.NO_FREE_BRANCH
        assert not rig.work.exists()


async def test_a_thread_whose_files_are_lost_goes_on_from_its_branch(tmp_path: Path) -> None:
    """That is its own by then; nothing new is told of it."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        (rig.work / "mine").write_text("mine\n")
        await rig.publish()
        shutil.rmtree(rig.work)
        assert (await rig.clone()).own_branch == OWN
        assert (rig.work / "mine").exists()
        assert not (await rig.publish()).is_new


async def test_an_agent_may_lead_origin_elsewhere(tmp_path: Path) -> None:
    """The clone stays the thread's, and is pushed to where it belongs; what was there before the thread's clone is in the way."""
    async with open_repository(tmp_path) as rig:
        rig.work.mkdir()
        assert (await rig.clone()).problem is RepositoryProblem.IN_THE_WAY
        rig.work.rmdir()
        await rig.clone()
        git(rig.work, "remote", "set-url", "origin", "https://elsewhere.test/acme/api")
        report = await rig.clone()
        assert (report.problem, report.is_new) == (None, False)
        (rig.work / "mine").write_text("mine\n")
        await rig.publish()
        assert rig.published() == ["README", "mine"]


@pytest.mark.parametrize("form", ["plain", "sparse", "split"])
async def test_a_sparse_checkout_deletes_nothing(tmp_path: Path, form: str) -> None:
    """What is not on the disk by the agent's wish stays in the repository, time after time; what is deleted is deleted."""
    async with open_repository(tmp_path) as rig:
        work = tmp_path / "git/work-acme-api"
        for name in ("d/x", "d/y", "e/z", "e/ä"):
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_text(f"{name}\n")
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", "second")
        git(work, "push", "-q", str(rig.bare), "main")
        await rig.clone()
        option = ("--sparse-index",) if form == "sparse" else ()
        git(rig.work, "sparse-checkout", "set", *option, "d")
        if form == "split":
            git(rig.work, "update-index", "--split-index")
        (rig.work / "d/new").write_text("new\n")
        (rig.work / "d/x").unlink()
        await rig.publish()
        (rig.work / "d/newer").write_text("newer\n")
        await rig.publish()
        changes = git(rig.bare, "diff", "--name-status", "--no-renames", "main", OWN)
        assert changes.splitlines() == ["A\td/new", "A\td/newer", "D\td/x"]
        assert git(rig.work, "status", "--short") == ""


async def test_a_clone_inside_the_clone_is_left_out(tmp_path: Path) -> None:
    """And told; a submodule that the repository declares is kept."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        for name in ("vendor", "declared"):
            git(rig.work, "init", "-q", name)
            git(rig.work / name, "commit", "-q", "--allow-empty", "-m", "theirs")
        (rig.work / ".gitmodules").write_text('[submodule "m"]\n\tpath = declared\n\turl = ./m\n')
        report = await rig.publish()
        assert report.left_out == ("vendor",)
        assert rig.published() == [".gitmodules", "README", "declared"]


async def test_repositories_without_a_commit_are_left_out(tmp_path: Path) -> None:
    """And told, unless they are ignored; also one where a submodule should be. The rest is pushed."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        for name in ("scratch", "deep/odd *[ä", "declared", "ignored"):
            git(rig.work, "init", "-q", name)
            (rig.work / name / "file").write_text("theirs\n")
        (rig.work / ".gitmodules").write_text('[submodule "m"]\n\tpath = declared\n\turl = ./m\n')
        (rig.work / ".gitignore").write_text("ignored/\n")
        (rig.work / "mine").write_text("mine\n")
        report = await rig.publish()
        assert report.left_out == ("declared", "deep/odd *[ä", "scratch")
        assert rig.published() == [".gitignore", ".gitmodules", "README", "mine"]


@pytest.mark.parametrize("kind", ["file", "pipe"])
async def test_what_the_clone_itself_ignores(tmp_path: Path, kind: str) -> None:
    """It is not pushed; a pipe there is not waited for."""
    async with open_repository(tmp_path) as rig:
        rig.task = replace(rig.task, timeout_s=8)
        await rig.clone()
        ignored = rig.work / ".git/info/exclude"
        ignored.parent.mkdir(exist_ok=True)
        if kind == "file":
            ignored.write_text("unsaid\n")
        else:
            os.mkfifo(ignored)
        for name in ("mine", "unsaid"):
            (rig.work / name).write_text(f"{name}\n")
        assert (await rig.publish()).problem is None
        assert ("unsaid" in rig.published()) == (kind == "pipe")


async def test_a_file_that_is_not_in_its_encoding(tmp_path: Path) -> None:
    """It is pushed as it is on the disk; others stay what they are, also with attributes that fit nothing."""
    async with open_repository(tmp_path) as rig:
        work = tmp_path / "git/work-acme-api"
        (work / ".gitattributes").write_text("*.txt working-tree-encoding=UTF-16\n")
        for name in ("same.txt", "mine.txt"):
            (work / name).write_text("one\n", "utf-16")
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", "second")
        git(work, "push", "-q", str(rig.bare), "main")
        await rig.clone()
        os.utime(rig.work / "same.txt", (0, 0))  # git looks again at what is of this second
        (rig.work / "mine.txt").write_text("two\n", "utf-16")
        await rig.publish()
        assert git(rig.bare, "show", f"{OWN}:mine.txt") == "two"
        (rig.work / "mine.txt").write_text("three\n")
        assert (await rig.publish()).problem is None
        assert git(rig.bare, "show", f"{OWN}:mine.txt") == "three"
        (rig.work / ".gitattributes").write_text("* working-tree-encoding=UTF-16\n")
        assert (await rig.publish()).problem is None
        changes = git(rig.bare, "diff", "--name-only", "main", OWN)
        assert changes.splitlines() == [".gitattributes", "mine.txt"]


async def test_a_merge_that_waits_for_its_commit(tmp_path: Path) -> None:
    """It is pushed with both parents, and is over."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        for name, branch in (("topic", "topic"), ("mine", OWN)):
            git(rig.work, "checkout", "-q", "-B", branch, "refs/orion/base")
            (rig.work / name).write_text(f"{name}\n")
            git(rig.work, "add", "-A")
            git(rig.work, "commit", "-q", "-m", name)
        git(rig.work, "merge", "-q", "--no-commit", "topic")
        await rig.publish()
        assert len(git(rig.bare, "log", "-1", "--format=%P", OWN).split()) == 2
        assert rig.published() == ["README", "mine", "topic"]
        assert not (rig.work / ".git/MERGE_HEAD").exists()


async def test_the_repository_in_another_spelling(tmp_path: Path) -> None:
    """An agent's git may ask for it so; the broker leads it to what was granted."""
    async with open_repository(tmp_path) as rig:
        rig.task = replace(rig.task, url=rig.task.url.replace("acme/api", "Acme/API"))
        assert (await rig.clone()).problem is None


async def test_a_public_address_is_reached_over_https(tmp_path: Path) -> None:
    """Clouds reach the broker there: git tries to, and is not kept from it by Orion's own rule."""
    async with open_repository(tmp_path) as rig:
        rig.task = replace(rig.task, broker="https://127.0.0.1:1")
        report = await rig.clone()
        assert "not allowed" not in report.detail
        assert "onnect" in report.detail


async def test_a_message_that_no_program_can_be_handed(tmp_path: Path) -> None:
    """It is a failure that is told, not a crash of the script."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        (rig.work / "mine").write_text("mine\n")
        rig.task = replace(rig.task, message="Fix\0 it")
        report = await rig.publish()
        assert (report.problem, report.detail) == (
            RepositoryProblem.FAILED,
            "embedded null byte",
        )


async def test_a_prepared_clone_becomes_the_threads(tmp_path: Path) -> None:
    """Up to date, on its branch, with what was installed, which is no change of the thread's, whatever its name."""
    left = ("deps/one", "#odd [name]*!", "two words ", "-x")
    async with open_repository(tmp_path) as rig:
        await rig.prepare(*left)
        (rig.work / "README").write_text("by the set-up\n")
        rig.by_somebody("second")
        report = await rig.clone()
        assert (report.is_new, report.is_prepared, report.is_outdated) == (True, True, False)
        assert (report.base, report.own_branch) == ("main", OWN)
        assert git(rig.work, "branch", "--show-current") == OWN
        assert (rig.work / "README").read_text() == "one\n"
        assert (rig.work / "second").exists()
        assert git(rig.work, "status", "--short") == ""
        assert all((rig.work / name).read_text() == "installed\n" for name in left)
        (rig.work / "mine").write_text("mine\n")
        assert (await rig.publish()).commit
        assert rig.published() == ["README", "mine", "second"]
        assert not (await rig.clone()).is_new


async def test_what_the_operators_commands_left_is_not_pushed(tmp_path: Path) -> None:
    """Neither with what the agent has changed, nor alone."""
    async with open_repository(tmp_path) as rig:
        await rig.clone()
        (rig.work / "linked").write_text("by make links\n")
        await rig.ignore()
        assert (await rig.publish()).commit == ""
        (rig.work / "mine").write_text("mine\n")
        assert (await rig.publish()).commit
        assert rig.published() == ["README", "mine"]


async def test_a_copy_of_a_prepared_clone_is_not_written_anew(tmp_path: Path) -> None:
    """What is as committed stays; what the set-up has changed is as committed, also where neither size, time nor index tell of it."""
    async with open_repository(tmp_path) as rig:
        rig.by_somebody("second")
        await rig.begin_to_prepare()
        for name in ("README", "second"):
            os.utime(rig.work / name, (1_000_000_000, 1_000_000_000))
        git(rig.work, "update-index", "--refresh")
        (rig.work / "README").write_text("two\n")
        os.utime(rig.work / "README", (1_000_000_000, 1_000_000_000))
        git(rig.work, "update-index", "--assume-unchanged", "README")
        git(rig.work, "config", "remote.origin.url", "https://elsewhere.example/")
        await rig.seal()
        saved = rig.work.rename(tmp_path / "saved")
        shutil.copytree(saved, rig.work, symlinks=True)
        copied = (rig.work / "second").stat()
        assert (await rig.clone()).is_prepared
        assert (rig.work / "README").read_text() == "one\n"
        assert (rig.work / "second").stat().st_ctime_ns == copied.st_ctime_ns
        assert git(rig.work, "status", "--short") == ""


async def test_what_a_set_up_makes_of_git_is_taken_back(tmp_path: Path) -> None:
    """Configuration, hooks and attributes: in no thread does git run what they name, nor when the clone is sealed."""
    async with open_repository(tmp_path) as rig:
        await rig.begin_to_prepare()
        before = (rig.work / ".git/config").read_text()
        evil = f"touch {tmp_path}/ran; cat"
        git(rig.work, "config", "core.fsmonitor", evil)
        git(rig.work, "config", "filter.evil.smudge", evil)
        git(rig.work, "config", "filter.evil.clean", evil)
        git(rig.work, "config", "include.path", str(tmp_path / "more"))
        (rig.work / ".git/info").mkdir(exist_ok=True)
        (rig.work / ".git/info/attributes").write_text("* filter=evil\n")
        (rig.work / ".git/hooks").mkdir()
        hook = rig.work / ".git/hooks/post-checkout"
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
        (tmp_path / "ran").unlink(missing_ok=True)
        await rig.seal()
        assert (rig.work / ".git/config").read_text() == before
        assert (await rig.clone()).is_prepared
        git(rig.work, "checkout", "-q", "-b", "mine")
        assert git(rig.work, "status", "--short") == ""
        assert not (tmp_path / "ran").exists()


async def test_a_prepared_clone_of_other_needs_is_told(tmp_path: Path) -> None:
    """A file that says what is to be installed has changed since, wherever it is."""
    async with open_repository(tmp_path) as rig:
        await rig.prepare()
        rig.by_somebody("requirements-dev.txt")
        assert (await rig.clone()).is_outdated


async def test_a_prepared_clone_of_another_branch(tmp_path: Path) -> None:
    """A thread that begins from another branch has its files."""
    async with open_repository(tmp_path) as rig:
        rig.by_somebody("of-dev", new="dev")
        await rig.prepare("deps/one")
        report = await rig.clone(branch="dev")
        assert (report.is_prepared, report.base) == (True, "dev")
        assert (rig.work / "of-dev").exists()
        assert (rig.work / "deps/one").exists()


async def test_a_prepared_clone_of_another_spelling(tmp_path: Path) -> None:
    """It is the repository all the same, whose agent's git knows it as the thread does."""
    async with open_repository(tmp_path) as rig:
        await rig.prepare("deps/one")
        rig.task = replace(rig.task, url=rig.task.url.replace("acme/api", "Acme/API"))
        report = await rig.clone()
        assert (report.problem, report.is_prepared) == (None, True)
        assert (rig.work / "deps/one").exists()
        assert git(rig.work, "remote", "get-url", "origin") == rig.task.url


@pytest.mark.parametrize("damage", ["objects", "HEAD", "config"])
async def test_a_prepared_clone_that_is_damaged(tmp_path: Path, damage: str) -> None:
    """What a set-up has made of git's files keeps nobody from a clone."""
    async with open_repository(tmp_path) as rig:
        await rig.prepare("deps/one")
        if damage == "objects":
            shutil.rmtree(rig.work / ".git/objects")
        elif damage == "HEAD":
            (rig.work / ".git/HEAD").write_text("nonsense\n")
        else:
            git(rig.work, "config", "core.worktree", "/nowhere")
        report = await rig.clone()
        assert (report.problem, report.is_prepared) == (None, False)
        assert (rig.work / "README").read_text() == "one\n"

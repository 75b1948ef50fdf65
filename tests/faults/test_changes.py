"""What a run did to the files: counted, shown as a patch, whatever the agent does with git."""

from pathlib import Path

from app.runs.testing import Changes, Run, RunFileKind, RunState
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import Plan

ROOT = "1795302364.000100"


def write(name: str, text: str) -> Plan:
    return [{"write": name, "text": text}, {"final": "written"}]


def run(command: str) -> Plan:
    return [{"run": command}, {"final": "done"}]


async def ask(core: Core, plan: Plan, *, number: int = 0) -> Run:
    request = request_of(plan, ts=f"1795302364.{100 + number:06d}", thread_ts=ROOT)
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def test_new_and_changed_files_are_counted_and_attached(tmp_path: Path) -> None:
    """The first run against nothing, the second against the first; the patch is in the thread and in the store."""
    async with core_of(tmp_path, POLICY) as core:
        first = await ask(core, write("notes", "a\nb\n"))
        assert first.result.changes == Changes(files=1, added=2, removed=0)
        ((run_id, name, patch),) = core.replies.attached
        assert (run_id, name) == (first.id, f"changes-{first.id}.patch")
        assert "+++ b/notes\n@@ -0,0 +1,2 @@\n+a\n+b\n" in patch
        assert await core.store.files.load(first.id, RunFileKind.PATCH) == patch
        second = await ask(
            core, run("sed -i s/a/c/ notes; rm -f none; echo x > 'odd \"name'"), number=1
        )
        assert second.result.changes == Changes(files=2, added=2, removed=1)
        assert core.replies.finished[-1][1].changes == second.result.changes
        assert "-a\n+c\n" in core.replies.attached[-1][2]


async def test_no_changes_no_file(tmp_path: Path) -> None:
    """A tool that changes nothing, and files that are ignored, are not told."""
    async with core_of(tmp_path, POLICY) as core:
        quiet = await ask(core, run("true"))
        assert quiet.result.changes is None
        ignored = await ask(
            core, run("echo build > .gitignore; mkdir build; touch build/x"), number=1
        )
        assert ignored.result.changes == Changes(files=1, added=1, removed=0)
        assert len(core.replies.attached) == 1


async def test_commits_of_the_agent_make_no_difference(tmp_path: Path) -> None:
    """A repository of its own with a hostile configuration neither hides changes nor runs anything."""
    hostile = (
        "git init -q . && git config core.fsmonitor 'touch /tmp/pwned-$$; false' && "
        "git config diff.external 'echo hidden' && echo '* diff=x filter=x' > .gitattributes && "
        "git config filter.x.clean 'echo hidden' && git config diff.x.textconv 'echo hidden' && "
        "echo secret-change > file && git -c user.name=a -c user.email=a@b -c core.fsmonitor=false "
        "-c filter.x.clean=cat commit -qam x --allow-empty"
    )
    async with core_of(tmp_path, POLICY) as core:
        done = await ask(core, run(hostile))
        assert done.result.changes == Changes(files=2, added=2, removed=0)
        assert "+secret-change" in core.replies.attached[0][2]


async def test_repositories_that_the_agent_makes_are_folders(tmp_path: Path) -> None:
    """Without a commit and with one, one inside the other; what they ignore is not told."""
    commit = "git -c user.name=a -c user.email=a@b commit -qm x"
    make = (
        "git init -q 'a b' && echo x > 'a b/main' && git init -q 'a b/in/é' && echo y > 'a b/in/é/y' && "
        "echo build > 'a b/.gitignore' && mkdir 'a b/build' && echo z > 'a b/build/z' && "
        "echo off > .gitignore && git init -q off && echo z > off/z && git init -q empty"
    )
    async with core_of(tmp_path, POLICY) as core:
        made = await ask(core, run(make))
        assert made.result.changes == Changes(files=4, added=4, removed=0)
        assert "+++ b/a b/main" in core.replies.attached[0][2]
        work = f"cd 'a b' && git add main && {commit} && rm .gitignore build/z && echo new > main"
        done = await ask(core, run(work), number=1)
        assert done.result.changes == Changes(files=2, added=1, removed=2)
        quiet = await ask(core, run("true"), number=2)
        assert quiet.result.changes is None


async def test_a_clone_is_one_line(tmp_path: Path) -> None:
    """Its commit, also when the agent makes a repository inside it."""
    make = (
        "git init -q one && echo x > one/x && git -C one add x && git -C one -c user.name=a "
        "-c user.email=a@b commit -qm x && git clone -q one two && git init -q two/in && echo y > two/in/y"
    )
    async with core_of(tmp_path, POLICY) as core:
        done = await ask(core, run(make))
        assert done.result.changes == Changes(files=2, added=2, removed=0)
        assert "+Subproject commit " in core.replies.attached[0][2]


async def test_secrets_in_a_patch_are_masked(tmp_path: Path) -> None:
    """In the thread and in the store alike."""
    async with core_of(tmp_path, POLICY) as core:
        done = await ask(core, write("key", "hunter2\n"))
        assert "hunter2" not in core.replies.attached[0][2]
        assert "hunter2" not in await core.store.files.load(done.id, RunFileKind.PATCH)
        assert "hunter2" not in await core.store.files.load(done.id, RunFileKind.LOG)


async def test_a_failure_to_look_does_not_cost_the_answer(tmp_path: Path) -> None:
    """The sandbox is lost right after the agent: the answer stands, the changes are unknown."""
    async with core_of(tmp_path, POLICY) as core:
        core.provider.fail(
            "exec",
            core.provider.count("exec") + 2,  # after the one that prepares the environment
            SandboxError(SandboxErrorCode.UNAVAILABLE, "lost"),
        )
        done = await ask(core, write("notes", "a"))
        assert (done.state, done.result.answer, done.result.changes) == (
            RunState.SUCCEEDED,
            "written",
            None,
        )


async def test_the_log_has_what_the_agent_printed(tmp_path: Path) -> None:
    """Both streams, with the time, also of a run that failed."""
    async with core_of(tmp_path, POLICY) as core:
        failed = await ask(core, [{"text": "so far"}, {"run": "echo oh no >&2"}, {"exit": 3}])
        assert failed.state is RunState.FAILED
        log = await core.store.files.load(failed.id, RunFileKind.LOG)
        assert '| {"text": "so far"}' in log
        assert "! oh no" in log

"""What a run did to the files of a repository, as its own git sees it in a real sandbox."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.runs.testing import Changes, FileWatch
from sandbox_runtime import Sandbox, SandboxSpec, open_sandbox
from sandbox_runtime.providers.local.provider import LocalProvider

pytestmark = [pytest.mark.bubblewrap, pytest.mark.timeout(60)]

MAKE = """
git init -q api && cd api && git config user.name x && git config user.email x@x
printf 'one\\n' > a; printf 'two\\n' > b; printf '*.bin -text\\n' > .gitattributes
git add -A && git commit -qm first
mkdir deps && printf 'installed\\n' > deps/big && echo /deps/ >> .git/info/exclude
printf 'by init\\n' > c
"""


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    with TemporaryDirectory(prefix="watch-") as name:
        await asyncio.to_thread(Path(name).chmod, 0o711)
        async with (
            LocalProvider(Path(name) / "state") as provider,
            open_sandbox(provider, SandboxSpec()) as sandbox,
        ):
            await _run(sandbox, MAKE)
            yield sandbox


@pytest.mark.parametrize("is_cloned", [True, False])
async def test_only_what_the_run_did_is_told(sandbox: Sandbox, is_cloned: bool) -> None:
    """Not what was there before it, nor what the clone ignores; from the clone's own index as without."""
    watch = _watch(sandbox)
    await watch.begin(is_empty=False, is_cloned=is_cloned)
    await _run(
        sandbox,
        "cd api; echo more >> a; rm b; echo new > d; echo x >> deps/big; git add -A; git commit -qm by-the-agent",
    )
    found = await watch.end()
    assert found is not None
    assert found.changes == Changes(files=3, added=2, removed=1)
    assert "deps" not in found.patch
    assert "by init" not in found.patch


@pytest.mark.parametrize("is_cloned", [True, False])
async def test_nothing_was_done(sandbox: Sandbox, is_cloned: bool) -> None:
    watch = _watch(sandbox)
    await watch.begin(is_empty=False, is_cloned=is_cloned)
    assert await watch.end() is None


async def test_a_clone_that_the_agent_took_away(sandbox: Sandbox) -> None:
    """What it had is known still; what it ignored is not."""
    watch = _watch(sandbox)
    await watch.begin(is_empty=False, is_cloned=True)
    await _run(sandbox, "cd api; rm -rf .git; echo more >> a")
    found = await watch.end()
    assert found is not None
    assert found.changes == Changes(files=2, added=2, removed=0)


async def test_a_pipe_in_place_of_what_is_ignored(sandbox: Sandbox) -> None:
    """It is not waited for."""
    await _run(sandbox, "cd api; rm .git/info/exclude; mkfifo .git/info/exclude")
    watch = _watch(sandbox)
    await watch.begin(is_empty=False)
    await _run(sandbox, "cd api; echo more >> a")
    found = await watch.end()
    assert found is not None
    assert found.changes.files == 1


def _watch(sandbox: Sandbox) -> FileWatch:
    return FileWatch(
        sandbox,
        repository=f"{sandbox.paths.run}/changes.git",
        directory=f"{sandbox.paths.work}/api",
    )


async def _run(sandbox: Sandbox, script: str) -> None:
    done = await sandbox.exec(["sh", "-ec", script], timeout_s=30)
    assert done.exit_code == 0, done.error_text

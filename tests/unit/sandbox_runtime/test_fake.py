"""The fake does what its scripts say, fails when told, and counts."""

from collections.abc import AsyncIterator

import pytest

from sandbox_runtime import (
    ExecResult,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.testing.fake import FakeProvider

_OK = ExecResult(exit_code=0, stdout=b"scripted", stderr=b"")


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as provider:
        yield provider


async def test_later_scripts_win_and_the_rest_really_runs(fake: FakeProvider) -> None:
    """A script answers by the beginning of argv or by a function; other commands are real."""
    fake.script(["echo"], _OK)
    fake.script(
        lambda call: call.stdin == b"special", ExecResult(exit_code=9, stdout=b"", stderr=b"")
    )
    async with open_sandbox(fake, SandboxSpec()) as sandbox:
        assert (await sandbox.exec(["echo", "x"], timeout_s=5)).text == "scripted"
        assert (await sandbox.exec(["echo"], timeout_s=5, stdin=b"special")).exit_code == 9
        assert (await sandbox.exec(["printf", "real"], timeout_s=5)).text == "real"
    assert [call.argv for call in fake.calls] == [("echo", "x"), ("echo",), ("printf", "real")]


async def test_nth_call_fails_once(fake: FakeProvider) -> None:
    """Exactly the told call of the told operation fails."""
    fake.fail("write_file", 2, PermissionError("told"))
    async with open_sandbox(fake, SandboxSpec()) as sandbox:
        await sandbox.write_file("a", b"")
        with pytest.raises(PermissionError, match="told"):
            await sandbox.write_file("b", b"")
        await sandbox.write_file("c", b"")
    with pytest.raises(ValueError, match="from 1"):
        fake.fail("exec", 0, OSError())

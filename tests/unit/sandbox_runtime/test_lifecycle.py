"""Creating with retries, and always destroying."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

import pytest

from sandbox_runtime import (
    AttemptRecord,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.lifecycle import Orphans, destroy_all, shielded
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as provider:
        yield provider


def _failure(*, retryable: bool) -> SandboxError:
    return SandboxError(SandboxErrorCode.CREATE_FAILED, "no capacity", retryable=retryable)


async def test_retries_what_may_pass(fake: FakeProvider) -> None:
    """Retryable failures are tried again, and each attempt is told."""
    fake.fail("create", 1, _failure(retryable=True))
    fake.fail("create", 2, _failure(retryable=True))
    told: list[AttemptRecord] = []
    spec = SandboxSpec()
    async with open_sandbox(fake, spec, attempts=3, backoff_s=0.01, on_attempt=told.append):
        assert fake.alive == 1
    assert [(record.number, record.error is None) for record in told] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert all(record.duration_s >= 0 for record in told)
    assert (fake.created, fake.destroyed, fake.alive) == (1, 1, 0)


async def test_gives_up_after_the_attempts(fake: FakeProvider) -> None:
    """After the last attempt its own error comes out."""
    for nth in (1, 2):
        fake.fail("create", nth, _failure(retryable=True))
    with pytest.raises(SandboxError, match="no capacity"):
        async with open_sandbox(fake, SandboxSpec(), attempts=2, backoff_s=0.01):
            pytest.fail("there is no sandbox")
    assert fake.created == 0


async def test_final_failure_is_not_retried(fake: FakeProvider) -> None:
    """What trying again cannot mend is raised at once."""
    fake.fail("create", 1, _failure(retryable=False))
    told: list[AttemptRecord] = []
    with pytest.raises(SandboxError):
        async with open_sandbox(fake, SandboxSpec(), attempts=5, on_attempt=told.append):
            pytest.fail("there is no sandbox")
    assert len(told) == 1


async def test_first_error_is_never_masked(fake: FakeProvider) -> None:
    """A destroy that fails too is noted on the error of the block."""
    fake.fail("destroy", 1, SandboxError(SandboxErrorCode.UNAVAILABLE, "cannot destroy"))
    with pytest.raises(KeyError) as caught:
        async with open_sandbox(fake, SandboxSpec()):
            raise KeyError("first")
    assert "cannot destroy" in caught.value.__notes__[0]


async def test_failed_destroy_is_logged(
    fake: FakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Without another error a failed destroy is logged and the block stays successful."""
    fake.fail("destroy", 1, SandboxError(SandboxErrorCode.UNAVAILABLE, "cannot destroy"))
    with caplog.at_level(logging.WARNING):
        async with open_sandbox(fake, SandboxSpec()):
            pass
    assert [record.__dict__["action"] for record in caplog.records] == ["sandbox.stop_failed"]


async def test_cancelled_block_destroys(fake: FakeProvider) -> None:
    """Cancelling the block destroys the sandbox before the cancellation goes on."""
    inside = asyncio.Event()

    async def use() -> None:
        async with open_sandbox(fake, SandboxSpec()):
            inside.set()
            await asyncio.sleep(60)

    async with open_task_group() as group:
        task = group.create_task(use())
        await inside.wait()
        task.cancel()
    assert task.cancelled()
    assert fake.alive == 0


@dataclass(frozen=True)
class _Stuck:
    """What is asked of a sandbox that ends, of one whose end goes wrong."""

    failure: Exception
    id: str = "stuck"

    async def destroy(self) -> None:
        raise self.failure


@pytest.mark.parametrize(
    "failure", [OSError("no space"), SandboxError(SandboxErrorCode.UNAVAILABLE, "away")]
)
async def test_one_that_stays_keeps_no_other(
    fake: FakeProvider, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """All are ended at once; what goes wrong with one is logged."""
    other = await fake.create(SandboxSpec())
    with caplog.at_level(logging.WARNING):
        await destroy_all([cast("Sandbox", _Stuck(failure)), other])
    assert fake.alive == 0
    assert [record.__dict__["sandbox_id"] for record in caplog.records] == ["stuck"]


async def test_an_error_that_nobody_thought_of_is_raised_as_it_is() -> None:
    """Of a library's, say: it ends neither who asked in a group of errors, nor what else goes on beside."""

    async def fail() -> None:
        raise KeyError("unforeseen")

    async def give_up(_: object) -> None:
        pytest.fail("nobody left")

    with pytest.raises(KeyError):
        await shielded(fail())
    async with open_task_group() as group:
        with pytest.raises(KeyError):
            await Orphans(group).ask(fail(), give_up)

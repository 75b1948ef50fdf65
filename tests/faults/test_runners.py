"""Which provider a run is given, and what becomes of a thread that moves between two."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from app.errors import ErrorCode
from app.runs.testing import ProviderRuntime, RunOptions, RunState
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.testing.fake import FakeProvider
from tests.faults.building import POLICY, Core, ended, open_core, request_of
from tests.faults.plan_agent import ANSWER, Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from app.runs.testing import Run

OK: Plan = ANSWER
KEEPING = replace(POLICY, session_keep_s=60, sandboxes={"local": "fake", "docker": "second"})


class Second(FakeProvider):
    @property
    @override
    def name(self) -> str:
        return "second"


class RuntimeFactory:
    """One more provider, opened when it is asked for."""

    def __init__(self, core_of: list[Core]) -> None:
        self._core_of = core_of
        self.opened = 0
        self.provider = Second()
        self.failures = 0
        """So many openings fail."""

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[ProviderRuntime]:
        assert name == "second"
        if self.failures > 0:
            self.failures -= 1
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, "the engine does not answer")
        self.opened += 1
        async with self.provider:
            yield self._core_of[0].runtime_of(self.provider)


async def _ask(core: Core, text: str, *, ts: str, thread_ts: str | None = None) -> Run:
    request = request_of(OK, ts=ts, thread_ts=thread_ts)
    request = request.model_copy(update={"text": f"{text} {request.text}".strip()})
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def test_a_message_says_where_it_runs_and_its_thread_stays_there(tmp_path: Path) -> None:
    """The word counts, then the thread's earlier word; another thread has the default; nothing is opened twice."""
    cores: list[Core] = []
    runtimes = RuntimeFactory(cores)
    async with open_core(KEEPING, socket=str(tmp_path / "s"), open_runtime=runtimes.open) as core:
        cores.append(core)
        root = "1795302364.000100"
        first = await _ask(core, "sandbox=docker", ts=root)
        second = await _ask(core, "", ts="1795302365.000100", thread_ts=root)
        other = await _ask(core, "", ts="1795302366.000100")
        assert [run.provider for run in (first, second, other)] == ["second", "second", "fake"]
        assert {run.state for run in (first, second, other)} == {RunState.SUCCEEDED}
        assert runtimes.opened == 1
        assert (runtimes.provider.alive, core.provider.alive) == (1, 1)
    assert runtimes.provider.alive == 0


@pytest.mark.long
async def test_a_thread_that_moves_leaves_no_sandbox_behind(tmp_path: Path) -> None:
    """The one that was kept at the first provider is destroyed before the run at the second one begins, and back."""
    cores: list[Core] = []
    runtimes = RuntimeFactory(cores)
    async with open_core(KEEPING, socket=str(tmp_path / "s"), open_runtime=runtimes.open) as core:
        cores.append(core)
        root = "1795302364.000100"
        await _ask(core, "", ts=root)
        assert core.provider.alive == 1
        moved = await _ask(core, "/docker", ts="1795302365.000100", thread_ts=root)
        assert (moved.provider, moved.state) == ("second", RunState.SUCCEEDED)
        assert (core.provider.alive, runtimes.provider.alive) == (0, 1)
        back = await _ask(core, "/local", ts="1795302366.000100", thread_ts=root)
        assert (back.provider, back.state) == ("fake", RunState.SUCCEEDED)
        assert (core.provider.alive, runtimes.provider.alive) == (1, 0)


async def test_a_provider_that_cannot_be_opened_fails_the_run_and_is_tried_again(
    tmp_path: Path,
) -> None:
    """The run says so with a code; the next one opens it."""
    cores: list[Core] = []
    runtimes = RuntimeFactory(cores)
    runtimes.failures = 1
    async with open_core(KEEPING, socket=str(tmp_path / "s"), open_runtime=runtimes.open) as core:
        cores.append(core)
        failed = await _ask(core, "/docker", ts="1795302364.000100")
        assert (failed.state, failed.result.error_code) == (
            RunState.FAILED,
            ErrorCode.SANDBOX_CREATION_FAILED,
        )
        assert failed.result.told.startswith(
            "second cannot be used: the engine does not answer; name"
        )
        again = await _ask(core, "/docker", ts="1795302365.000100")
        assert again.state is RunState.SUCCEEDED


async def test_one_that_no_thread_can_have_just_now_fails_the_run(tmp_path: Path) -> None:
    """Also when it is open: it may have been for the run before. The default one is for all."""
    cores: list[Core] = []
    runtimes = RuntimeFactory(cores)
    reasons = [""]

    async def why_not(name: str) -> str:
        assert name == "second"
        return reasons[-1]

    async with open_core(
        KEEPING, socket=str(tmp_path / "s"), open_runtime=runtimes.open, why_not=why_not
    ) as core:
        cores.append(core)
        assert (await _ask(core, "/docker", ts="1795302364.000100")).state is RunState.SUCCEEDED
        reasons.append("there works on another host")
        failed = await _ask(core, "/docker", ts="1795302365.000100")
        assert failed.result.error_code is ErrorCode.SANDBOX_CREATION_FAILED
        assert failed.result.told.startswith(
            "second cannot be used: there works on another host; name another one"
        )
        assert (await _ask(core, "", ts="1795302366.000100")).state is RunState.SUCCEEDED


async def test_what_this_orion_lacks_is_refused(tmp_path: Path) -> None:
    """Before anything runs, with what there is instead."""
    async with open_core(KEEPING, socket=str(tmp_path / "s")) as core:
        run = await _ask(core, "sandbox=deno", ts="1795302364.000100")
        assert run.result.error_code is ErrorCode.REQUEST_INVALID
        assert "there is no sandbox 'deno' here; there are: local, docker" in run.result.detail
        assert core.provider.created == 0


@pytest.mark.long
async def test_a_channel_has_a_provider_of_its_own(tmp_path: Path) -> None:
    """Below what a message says, above the default."""
    cores: list[Core] = []
    runtimes = RuntimeFactory(cores)
    channels = {request_of(OK).channel: RunOptions(sandbox="docker")}
    async with open_core(
        KEEPING, socket=str(tmp_path / "s"), open_runtime=runtimes.open, channels=channels
    ) as core:
        cores.append(core)
        assert (await _ask(core, "", ts="1795302364.000100")).provider == "second"
        assert (await _ask(core, "/local", ts="1795302365.000100")).provider == "fake"

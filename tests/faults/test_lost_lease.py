"""A process that was given up for dead in the middle of a run: it does nothing any more for what is another's."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from app.errors import LeaseLostError
from app.runs.testing import Outcome, RunState, session_id_for
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import Capability, SandboxId
from tests.faults.building import POLICY, open_core, request_of
from tests.waiting import until


class Watched(FakeProvider):
    """Whose sandboxes other processes can attach to, or cannot; it notes which it gives up."""

    def __init__(self, *, has_attach: bool) -> None:
        super().__init__()
        self._has_attach = has_attach
        self.released: list[SandboxId] = []

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        own = super().capabilities
        return own | {Capability.ATTACH} if self._has_attach else own - {Capability.ATTACH}

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        self.released.append(sandbox_id)


class Gate:
    def __init__(self) -> None:
        self.is_lost = False

    async def __call__(self) -> None:
        if self.is_lost:
            raise LeaseLostError("given up for dead")


@pytest.mark.parametrize("has_attach", [True, False])
async def test_what_another_process_has_is_left_alone(tmp_path: Path, *, has_attach: bool) -> None:
    """Its agent ends after the lease was lost: nothing is saved or told; the sandbox is destroyed where nobody else could be in it, and not the way to the one that another process may have made."""
    gate, provider = Gate(), Watched(has_attach=has_attach)
    socket = str(tmp_path / "broker.sock")
    async with open_core(POLICY, socket=socket, sandboxes=provider, may_act=gate) as core:
        request = request_of(
            [{"write": "notes", "text": "x"}, {"tool": "a"}, {"sleep": 1}, {"final": "done"}]
        )
        await core.intake.accept(request)
        await until(lambda: any(progress.steps for progress in core.replies.shown))
        gate.is_lost = True
        await until(lambda: core.dispatcher.probe() == "0 runs")
        run = await core.store.get(request.run_id)
        assert run is not None
        assert (run.state, run.outcome) == (RunState.RUNNING, None)
        assert _told(core.replies.finished) == []
        session = await core.store.sessions.get(session_id_for(run.thread))
        assert session is not None
        assert session.snapshot_slug == ""
        assert provider.alive == int(has_attach)
        assert len(provider.released) == int(has_attach)
        assert core.broker.closed == []


def _told(finished: Sequence[tuple[str, Outcome]]) -> list[str]:
    return [run_id for run_id, _ in finished]


async def test_nothing_is_made_for_a_run_that_is_anothers(tmp_path: Path) -> None:
    """The lease is lost before the sandbox was made."""
    gate, provider = Gate(), Watched(has_attach=True)
    gate.is_lost = True
    socket = str(tmp_path / "broker.sock")
    async with open_core(POLICY, socket=socket, sandboxes=provider, may_act=gate) as core:
        before = provider.created
        request = request_of([{"final": "done"}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        await until(lambda: core.dispatcher.probe() == "0 runs")
        run = await core.store.get(request.run_id)
        assert run is not None
        assert run.state is RunState.RUNNING
        assert provider.created - before <= 1  # that of the environment, which is no run's


async def test_no_agent_starts_for_a_run_that_is_anothers(tmp_path: Path) -> None:
    """The lease is lost while its files are written: its sandbox goes, and it has done nothing."""
    gate, provider = Gate(), Watched(has_attach=False)

    async def gate_behind_the_sandbox() -> None:
        gate.is_lost = provider.alive > 0
        await gate()

    async with open_core(
        POLICY,
        socket=str(tmp_path / "broker.sock"),
        sandboxes=provider,
        may_act=gate_behind_the_sandbox,
    ) as core:
        request = request_of([{"tool": "a"}, {"final": "done"}])
        await core.intake.accept(request)
        await until(lambda: gate.is_lost)
        await until(lambda: core.dispatcher.probe() == "0 runs")
        run = await core.store.get(request.run_id)
        assert run is not None
        assert run.state is RunState.RUNNING
        assert not any(progress.steps for progress in core.replies.shown)
        assert provider.alive == 0
        assert core.broker.closed == []

"""What every part of the crash tests shares: a world that kills, an Orion that is killed, and what must hold afterwards."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from app.playground.model.server import ModelPace
from app.playground.slack.types import TEAM_ID, FakeSlackConfig
from app.runs.testing import Run, RunState, Thread
from app.slack.messages import ANNOUNCEMENT_PART
from app.store.runs import open_store
from tests.crash.points import Mailbox, Order
from tests.crash.slack_points import SlackTripwire
from tests.e2e.harness import (
    Stage,
    file_names,
    has_stop_button,
    open_orion,
    open_world,
    part_of,
    run_of,
    text_of,
)
from tests.e2e.orion_process import AT_REST_WITHIN_S, new_state_dir

REPAIRED_WITHIN_S = 30.0
REACHED_WITHIN_S = 60.0
GIVEN_UP_AFTER_S = 75.0
"""A repair that takes longer than it may is waited for all the same, so that the table can say how long it took."""
GONE_WITHIN_S = 5.0
POLL_S = 0.05
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, *(1.0,) * 60))
"""As often as Slack tries, and oftener: its own second and third retry come after one and five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    stage: Stage
    agent: str
    mailbox: Mailbox
    slack: SlackTripwire

    def arm(self, order: Order, *, record: bool = False) -> None:
        """The next process, or the running one, dies at that point."""
        if order.point.step.startswith("slack."):
            self.slack.arm(order.point, self.stage.orion.kill_group)
        else:
            self.mailbox.arm(order, record=record)

    def disarm(self) -> None:
        self.mailbox.disarm()
        self.slack.disarm()

    async def has_died(self, *, timeout_s: float = REACHED_WITHIN_S) -> bool:
        return await self.stage.orion.died(timeout_s=timeout_s)

    async def acknowledged(self, ts: str, *, timeout_s: float = REACHED_WITHIN_S) -> bool:
        """Waits until Slack was told that the message is accepted, or the service is dead."""
        async with asyncio.timeout(timeout_s):
            while True:
                if self._is_acknowledged(ts):
                    return True
                if self.stage.orion.exit_code is not None:
                    return self._is_acknowledged(ts)
                await asyncio.sleep(POLL_S)

    def _is_acknowledged(self, ts: str) -> bool:
        entries = self.stage.world.fake_slack.deliverer.log()
        return any(entry["message_ts"] == ts and entry["status"] == 200 for entry in entries)

    async def thread_records(self, root: str) -> Sequence[Run]:
        thread = Thread(team=TEAM_ID, channel=self.stage.channel_id("general"), thread_ts=root)
        async with open_store(self.stage.orion.state_dir / "orion.db") as store:
            return await store.of_thread(thread)

    async def all_ended(self, asked: Sequence[str]) -> None:
        """Returns when every message of the thread has its end, in the thread and on record.

        Raises:
            TimeoutError: they have not after `GIVEN_UP_AFTER_S`; a note says which.
        """
        try:
            async with asyncio.timeout(GIVEN_UP_AFTER_S):
                for ts in asked:
                    await self.stage.answer(ts, thread_ts=asked[0], timeout_s=GIVEN_UP_AFTER_S)
        except TimeoutError as exc:
            exc.add_note(f"records: {[run.state for run in await self.thread_records(asked[0])]}")
            raise

    async def faults_of_thread(
        self, asked: Sequence[str], *, outcomes: Sequence[RunState] = (RunState.SUCCEEDED,)
    ) -> list[str]:
        """What is wrong with a thread that has ended; nothing, when all is well."""
        faults = []
        everything = await self.stage.client.replies(asked[0])
        replies = [reply for reply in everything if not file_names(reply)]
        for ts in asked:
            own = [reply for reply in replies if run_of(reply) == self.stage.run_id(ts)]
            parts = [part_of(reply) for reply in own]
            if parts.count(0) != 1 or set(parts) - {0, ANNOUNCEMENT_PART} or len(own) > 2:
                faults.append(f"{len(own)} messages for one question: {[text_of(m) for m in own]}")
            if any(has_stop_button(message) for message in own):
                faults.append("a Stop button is left")
        known = {self.stage.run_id(ts) for ts in asked}
        faults += [
            f"a message of no run: {text_of(reply)}"
            for reply in replies
            if reply["is_bot"] and run_of(reply) not in known
        ]
        records = await self.thread_records(asked[0])
        if [run.request.message_ts for run in records] != list(asked):
            faults.append(f"{len(records)} runs for {len(asked)} messages")
        faults += [
            f"record {run.state} ({run.result.error_code}, {run.delivery})"
            for run in records
            if run.state not in outcomes or (run.delivery != "sent")
        ]
        shared = sorted(name for reply in everything for name in file_names(reply))
        if shared != sorted(f"changes-{run.id}.patch" for run in records if run.result.changes):
            faults.append(f"shared files: {shared}")
        return faults + _faults_of_order(records) + self._faults_of_starts(records)

    def _faults_of_starts(self, records: Sequence[Run]) -> list[str]:
        """A run starts once, and once more after each crash: as often as its record counted, and never after its end."""
        lines = [
            line
            for event in ("run.started", "run.resumed")
            for line in self.stage.orion.log_lines(event)
        ]
        starts = {run.id: sum(line.get("run_id") == run.id for line in lines) for run in records}
        return [
            f"{starts[run.id]} starts of attempt {run.attempt}"
            for run in records
            if starts[run.id] > run.attempt
        ]

    async def faults_of_machine(self) -> list[str]:
        """Sandboxes that are left once nothing runs, beside those that wait in the pool: their directories and their processes."""
        faults: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_REST_WITHIN_S):
                while faults := await self.stage.orion.left_sandboxes():
                    await asyncio.sleep(POLL_S)
        return faults

    async def survivors_of(self, pid: int) -> list[str]:
        """What outlives its service for 5 s: processes of its group, and of its sandboxes; `pid: command` each."""
        found: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(GONE_WITHIN_S):
                while found := [*self.stage.orion.sandbox_processes(), *members_of_group(pid)]:
                    await asyncio.sleep(POLL_S)
        return found


def _faults_of_order(records: Sequence[Run]) -> list[str]:
    """One after the other, in the order of their messages."""
    faults = []
    for before, after in pairwise(records):
        if before.ended_at is None or after.started_at is None:
            continue
        if before.ended_at > after.started_at:
            faults.append("the later message was begun before the earlier one had ended")
    return faults


def is_alive(survivor: str) -> bool:
    """Source: Linux, proc_pid_stat(5): the state of a process that nobody has waited for is Z."""
    try:
        stat = Path(f"/proc/{survivor.partition(':')[0]}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2].split()[0] != "Z"


def members_of_group(pgid: int) -> list[str]:
    """Living processes of a process group. Source: Linux, proc_pid_stat(5), fields state and pgrp."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, _, group = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
                if int(group) == pgid and state != "Z":
                    found.append(entry.name)
    return found


@asynccontextmanager
async def open_rig(
    directory: Path,
    prepared: Path,
    *,
    agent: str = "anthropic",
    config: FakeSlackConfig = QUICK_RETRIES,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Rig]:
    """A world and a running Orion with a tripwire around every port; at the end nothing of a sandbox may be left."""
    slack = SlackTripwire()
    state_dir = new_state_dir(directory)
    mailbox_path = directory / f"{state_dir.name}.mailbox"
    mailbox_path.mkdir()
    command = ("tests.crash.server", str(mailbox_path), "--agent", agent)
    pace = ModelPace(word_s=0.01, slow_word_s=0.5)
    async with (
        open_world(config, pace=pace, wrap=slack.wrap) as world,
        open_orion(world, state_dir, prepared, command=command, **(settings or {})) as stage,
    ):
        yield Rig(stage=stage, agent=agent, mailbox=Mailbox(mailbox_path), slack=slack)

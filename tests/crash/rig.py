"""What every part of the crash tests shares: a world that kills, an Orion that is killed, and what must hold afterwards."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from app.aio import background
from app.playground.model.server import ModelPace
from app.playground.slack.types import TEAM_ID, FakeSlackConfig
from app.runs.testing import Run, RunState, Thread
from app.slack.messages import ANNOUNCEMENT_PART, FIRST_APPROVAL_PART
from app.store.runs import open_store
from tests.crash.points import Harm, Mailbox, Order, Point
from tests.crash.slack_points import SlackTripwire
from tests.e2e.harness import (
    Stage,
    World,
    beside,
    file_names,
    has_stop_button,
    open_orion,
    open_world,
    part_of,
    run_of,
    text_of,
)
from tests.e2e.notes_server import CANARY, open_notes
from tests.e2e.orion_process import (
    AT_REST_WITHIN_S,
    OrionProcess,
    new_state_dir,
    owns_connection,
    process_state,
)
from tests.relay import CuttingProxy, open_balancer, open_cutting_proxy

REACHED_WITHIN_S = 60.0
GIVEN_UP_AFTER_S = 90.0
"""A repair that takes longer than it may is waited for all the same, so that the table can say how long it took."""
GONE_WITHIN_S = 5.0
NOTICED_WITHIN_S = 10.0
"""After a frozen process goes on it sees that it was given up for dead: it renews its lease every 4 s."""
LATE_S = 1.0
"""Whatever it does all the same, it does at once."""
AWAY_S = 20.0
"""Longer than a lease."""
POLL_S = 0.05
CUT_POLL_S = 0.005
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, *(1.0,) * 60))
"""As often as Slack tries, and oftener: its own second and third retry come after one and five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which processes there are, and what one of them comes to."""

    key: str
    name: str
    harm: Harm
    is_shared: bool
    """Two of them on one PostgreSQL, of which the other one finishes; else one on SQLite, which is started again."""
    repaired_within_s: float
    lanes: int = 6
    """Sections beside each other: mostly it is waited until a lease is over."""
    stopped_answer_s: int = 12
    """Of an answer that is to be stopped: longer than it may take until that is heard."""


ALONE = Shape(
    key="alone",
    name="killed, alone on SQLite",
    harm="kill",
    is_shared=False,
    repaired_within_s=30.0,
    lanes=2,
)
KILLED = Shape(
    key="killed",
    name="killed, one of two on PostgreSQL",
    harm="kill",
    is_shared=True,
    repaired_within_s=60.0,
    stopped_answer_s=30,
)
FROZEN = Shape(
    key="frozen",
    name="frozen and thawed, one of two on PostgreSQL",
    harm="freeze",
    is_shared=True,
    repaired_within_s=60.0,
    stopped_answer_s=30,
)
CUT = Shape(
    key="cut",
    name="the database of two is away for 20 s",
    harm="cut",
    is_shared=True,
    repaired_within_s=60.0,
    stopped_answer_s=45,
)
FUNCTIONS = Shape(
    key="functions",
    name="killed, as Vercel's functions",
    harm="kill",
    is_shared=True,
    repaired_within_s=60.0,
    stopped_answer_s=40,
    lanes=3,  # each new instance takes a second of processor
)
OF_PROCESSES = (ALONE, KILLED, FROZEN, CUT)
SHAPES = (*OF_PROCESSES, FUNCTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """Of the way to the database."""

    proxy: CuttingProxy
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, mailbox: Mailbox) -> None:
        """For ever: whenever a process waits at a point, its database is away for 20 s, and it goes on at their beginning."""
        while True:
            if mailbox.victims() and not self.is_over.is_set():
                self.proxy.cut()
                mailbox.tell_cut()
                await asyncio.sleep(AWAY_S)
                self.proxy.mend()
                self.is_over.set()
            await asyncio.sleep(CUT_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    shape: Shape
    stage: Stage
    others: Sequence[OrionProcess]
    agent: str
    mailbox: Mailbox
    slack: SlackTripwire
    notes: Sequence[str] = ()
    """What agents have done outside, where there is something."""
    outages: Outages | None = None
    """Where the harm is `cut`."""

    @property
    def processes(self) -> Sequence[OrionProcess]:
        return [self.stage.orion, *self.others]

    def arm(self, point: Point, *, hold: bool = False) -> None:
        """Whoever of the processes, or of those started later, is at that point first comes to harm there."""
        if self.outages is not None:
            self.outages.is_over.clear()
        if point.step.startswith("slack."):
            self.slack.arm(point, self.harm_caller)
        else:
            self.mailbox.arm(Order(point=point, harm=self.shape.harm, hold=hold))

    def harm_caller(self, port: int) -> bool | None:
        """Harms who has a connection from that port: `SlackTripwire.arm`'s."""
        if self.outages is not None:
            self.outages.proxy.cut()
            self.mailbox.tell(None)
            return False
        for process in self.processes:
            if process.is_up and owns_connection(process.pid, port):
                self.harm(process)
                return self.shape.harm == "kill"
        return None

    def harm(self, process: OrionProcess) -> None:
        if self.shape.harm == "kill":
            process.kill_group()
        elif process.is_up:
            process.freeze()

    def disarm(self) -> None:
        self.mailbox.disarm()
        self.slack.disarm()

    async def until_harmed(self) -> OrionProcess | None:
        """Returns the process that was killed or is frozen, or, once its database is back, one; None when none is after 60 s, or all have ended by themselves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REACHED_WITHIN_S):
                if self.outages is not None:
                    await self.outages.is_over.wait()
                    return self.stage.orion
                while True:
                    # Asked before the others: who ends between two questions was still up.
                    is_one_up = any(process.is_up for process in self.processes)
                    for process in self.processes:
                        if process.is_frozen or (process.exit_code or 0) < 0:
                            return process
                    if not is_one_up:
                        return None
                    await asyncio.sleep(POLL_S)
        return None

    async def until_out(self, process: OrionProcess) -> None:
        """Returns when it has ended in whichever way, or is frozen, or after 60 s."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REACHED_WITHIN_S):
                while process.is_up and not process.is_frozen:
                    await asyncio.sleep(POLL_S)

    async def start_all(self) -> None:
        """Returns when all processes are up that are not frozen."""
        for process in self.processes:
            if not process.is_up:
                await process.start()

    def at_work(self, ts: str) -> OrionProcess:
        """The process that has begun with the run of this message."""
        run_id = self.stage.run_id(ts)
        (found,) = [
            process
            for process in self.processes
            if any(line["run_id"] == run_id for line in process.log_lines("run.started"))
        ]
        return found

    async def thawed(self, process: OrionProcess) -> list[str]:
        """Lets a frozen process go on; returns, once it is known among the living (again) or has ended, what was wrong."""
        process.thaw()
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICED_WITHIN_S):
                while process.is_up and not await self._is_known(process):
                    await asyncio.sleep(POLL_S)
                await asyncio.sleep(LATE_S)
                return []
        return ["thawed, it did not come back"]

    async def _is_known(self, process: OrionProcess) -> bool:
        async with open_store(self.stage.orion.database) as store:
            living = await store.leases.living()
        return any(each.name.endswith(f":{process.pid}") for each in living)

    async def acknowledged(self, ts: str, *, timeout_s: float = REACHED_WITHIN_S) -> bool:
        """Waits until Slack was told that the message is accepted, or nobody is there to tell it."""
        async with asyncio.timeout(timeout_s):
            while True:
                if self._is_acknowledged(ts):
                    return True
                if not any(process.is_up for process in self.processes):
                    return self._is_acknowledged(ts)
                await asyncio.sleep(POLL_S)

    def _is_acknowledged(self, ts: str) -> bool:
        entries = self.stage.world.fake_slack.deliverer.log()
        return any(entry["message_ts"] == ts and entry["status"] == 200 for entry in entries)

    async def thread_records(self, root: str) -> Sequence[Run]:
        thread = Thread(team=TEAM_ID, channel=self.stage.channel_id("general"), thread_ts=root)
        async with open_store(self.stage.orion.database) as store:
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
            of_run = [reply for reply in replies if run_of(reply) == self.stage.run_id(ts)]
            own = [reply for reply in of_run if (part_of(reply) or 0) > FIRST_APPROVAL_PART]
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
        # A reply that may be for others is looked at again where it was said while nobody heard: it is no run yet.
        found = await self.thread_records(asked[0])
        records = [run for run in found if not run.request.is_candidate]
        if [run.request.message_ts for run in records] != list(asked):
            faults.append(f"{len(records)} runs for {len(asked)} messages")
        faults += [
            f"record {run.state} ({run.result.error_code}, {run.delivery})"
            for run in records
            if run.state not in outcomes or (run.delivery != "sent")
        ]
        shared = sorted(name for reply in everything for name in file_names(reply))
        left = [file.name for run in records for file in run.result.files]
        patches = [f"changes-{run.id}.patch" for run in records if run.result.changes]
        if shared != sorted([*left, *patches]):
            faults.append(f"shared files: {shared}")
        if self.outages is not None:  # nobody died
            faults += [f"attempt {run.attempt}" for run in records if run.attempt > 1]
        return faults + _faults_of_order(records) + self._faults_of_starts(records)

    def _faults_of_starts(self, records: Sequence[Run]) -> list[str]:
        """A run starts once, and once more after each crash: as often as its record counted, and never after its end."""
        lines = [
            line
            for event in ("run.started", "run.resumed")
            for process in self.processes
            for line in process.log_lines(event)
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
                while faults := await self._left_sandboxes():
                    await asyncio.sleep(POLL_S)
        return faults

    async def _left_sandboxes(self) -> list[str]:
        await self.start_all()
        try:
            beside = sum([await process.waiting_sandboxes() for process in self.others])
            return await self.stage.orion.left_sandboxes(beside=beside)
        except httpx.HTTPError:  # one that was asked to end, and is about to
            return ["a process does not answer"]

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
    """Whether it is more than a process that nobody has waited for."""
    return process_state(survivor.partition(":")[0]) not in (None, "Z")


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
    shape: Shape = ALONE,
    database_url: str | None = None,
    agent: str = "anthropic",
    config: FakeSlackConfig = QUICK_RETRIES,
    settings: Mapping[str, str] | None = None,
    asks: bool = False,
) -> AsyncIterator[Rig]:
    """A world and a running Orion with a tripwire around every port; at the end nothing of a sandbox may be left.

    Args:
        database_url: of an empty database, for a shape that is shared: then Slack speaks to two processes, behind a balancer.
        asks: agents have a tool outside, for which a person is asked.
    """
    slack = SlackTripwire()
    notes: list[str] = []
    if asks:
        directory /= f"a{secrets.token_hex(2)}"
        directory.mkdir()
    state_dir = new_state_dir(directory)
    mailbox_path = directory / f"{state_dir.name}.mailbox"
    mailbox_path.mkdir()
    command = ("tests.crash.server", str(mailbox_path), "--agent", agent)
    if shape.is_shared:
        assert database_url is not None, "a shared shape needs a database"
    pace = ModelPace(word_s=0.01, slow_word_s=0.5)
    mailbox, outages = Mailbox(mailbox_path), None
    async with AsyncExitStack() as stack:
        if shape.harm == "cut":
            proxy = await stack.enter_async_context(open_cutting_proxy(database_url or ""))
            database_url, outages = proxy.url, Outages(proxy=proxy)
            await stack.enter_async_context(background(outages.follow(mailbox)))
        if shape.is_shared:
            settings = {**(settings or {}), "ORION_DATABASE_URL": database_url or ""}
        if asks:
            url, notes = await stack.enter_async_context(open_notes())
            settings = {**(settings or {}), **write_asking(directory, url)}
        world = await stack.enter_async_context(open_world(config, pace=pace, wrap=slack.wrap))
        stage = await stack.enter_async_context(
            open_orion(world, state_dir, prepared, command=command, **(settings or {}))
        )
        others = await stack.enter_async_context(_open_others(world, stage, command, shape))
        yield Rig(
            shape=shape,
            stage=stage,
            others=others,
            agent=agent,
            mailbox=mailbox,
            slack=slack,
            notes=notes,
            outages=outages,
        )


def write_asking(directory: Path, url: str) -> Mapping[str, str]:
    """Writes a rule for the tool of a server of notes; returns the settings that lead to it."""
    (directory / "orion.toml").write_text('[[approvals]]\ntool = "notes.*"\ndecision = "ask"\n')
    headers = {"Authorization": "Bearer ${NOTES_KEY}"}
    file = directory / "mcp.json"
    server = {"type": "http", "url": url, "headers": headers}
    file.write_text(json.dumps({"mcpServers": {"notes": server}}))
    return {"ORION_MCP_CONFIG_FILE": str(file), "NOTES_KEY": CANARY}


@asynccontextmanager
async def _open_others(
    world: World, stage: Stage, command: Sequence[str], shape: Shape
) -> AsyncIterator[Sequence[OrionProcess]]:
    if not shape.is_shared:
        yield []
        return
    other = beside(stage.orion, "other", command=command)
    async with open_balancer([stage.orion.port, other.port]) as url:
        try:
            await other.start()
            world.fake_slack.events_url = f"{url}/slack/events"
            yield [other]
        finally:
            await other.reap()
    assert other.tracebacks() == [], other.tracebacks()

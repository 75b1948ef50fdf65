"""What people do in the crash tests: two questions in a thread, a refusal, Stop, a shutdown, a start after a crash."""

import asyncio
import shutil
from contextlib import suppress

from typing_extensions import override

from app.playground.slack.types import BOT_USER_ID
from app.runs.testing import RunState
from app.slack.actions import STOP_ACTION
from tests.crash.play import ANSWERED_WITHIN_S, Kills, Play
from tests.crash.rig import GIVEN_UP_AFTER_S
from tests.e2e.harness import file_names
from tests.waiting import POLL_S

PLACED_WITHIN_S = 0.3
"""After its record says so a message's placement has ended: whether it is a point of a scenario must not be left to chance."""
TOLD_WITHIN_S = 10.0
"""After the record of a refusal is closed."""


class Question:
    """A question, and another one in its thread as soon as Slack was told that the first is accepted."""

    name = "question"
    kills: Kills = "of a run"
    whose = "first"
    first = "@Orion !slow 1"

    async def begin(self, play: Play) -> None:
        """Nothing comes before."""

    async def go_on(self, play: Play) -> None:
        await play.say(self.first)
        if await play.rig.acknowledged(play.asked[0]):
            await play.say("@Orion and then?")

    async def end(self, play: Play) -> None:
        # The order of messages holds among accepted ones: Slack may redeliver the first later than it delivers the second.
        await play.rig.acknowledged(play.asked[0])
        if len(play.asked) == 1:
            await play.say("@Orion and then?")

    async def told(self, play: Play) -> None:
        await play.rig.all_ended(play.asked)

    async def faults(self, play: Play) -> list[str]:
        return await play.rig.faults_of_thread(play.asked, outcomes=play.outcomes)


class Pooled(Question):
    """The first question is given a sandbox that waited, and another one is made for the pool."""

    name = "pool"
    kills: Kills = "all"

    @override
    async def begin(self, play: Play) -> None:
        for process in play.rig.processes:
            await process.until_waiting()


class Files(Question):
    """A question with a file, which its agent leaves for people, too."""

    name = "files"

    @override
    async def go_on(self, play: Play) -> None:
        await play.say("@Orion look at this", files={"data.txt": b"some data"})

    @override
    async def end(self, play: Play) -> None:
        """There is no other question."""

    @override
    async def faults(self, play: Play) -> list[str]:
        (record,) = await play.rig.thread_records(play.asked[0])
        has_it = [file.name for file in record.result.files] == ["data.txt"]
        return [
            *await super().faults(play),
            *([] if has_it else ["the file did not go through the agent"]),
        ]


class Announcement(Question):
    """As above, with runs that are long enough to be announced."""

    name = "announcement"


class Stop(Question):
    """Somebody presses Stop while the agent writes."""

    name = "stop"

    @override
    async def begin(self, play: Play) -> None:
        play.outcomes = (RunState.STOPPED, RunState.SUCCEEDED)
        await play.ask_twice(answer_s=12)
        await play.rig.acknowledged(play.asked[1])

    @override
    async def go_on(self, play: Play) -> None:
        message = await play.rig.stage.thinking(play.asked[0])
        await play.rig.stage.client.press(message, STOP_ACTION)

    @override
    async def faults(self, play: Play) -> list[str]:
        """A wish that got as far as the record is fulfilled; a press that never got there is Slack's to report."""
        first, after = await play.rig.thread_records(play.asked[0])
        is_wished = first.stop_requested_by is not None
        return [
            *await super().faults(play),
            *(["the stop was forgotten"] if is_wished != (first.state is RunState.STOPPED) else []),
            *([f"the next one {after.state}"] if after.state is not RunState.SUCCEEDED else []),
        ]


class Amendment(Question):
    """Somebody edits a question that waits."""

    name = "amendment"

    @override
    async def begin(self, play: Play) -> None:
        await play.ask_twice(answer_s=8)
        await play.rig.stage.thinking(play.asked[1], thread_ts=play.asked[0])

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.client.edit(play.asked[1], f"<@{BOT_USER_ID}> and what then?")

    @override
    async def faults(self, play: Play) -> list[str]:
        """Slack delivers the edit again, which may be too late for the answer, but loses or doubles nothing."""
        _, after = await play.rig.thread_records(play.asked[0])
        is_whole = after.request.text in ("and then?", "and what then?")
        return [
            *await super().faults(play),
            *([] if is_whole else [f"the question became {after.request.text!r}"]),
        ]


class Withdrawal(Amendment):
    """Somebody deletes a question that waits."""

    name = "withdrawal"
    whose = "later"

    @override
    async def begin(self, play: Play) -> None:
        play.outcomes = (RunState.SUCCEEDED, RunState.STOPPED)
        await super().begin(play)

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.client.delete(play.asked[1])

    @override
    async def faults(self, play: Play) -> list[str]:
        first, after = await play.rig.thread_records(play.asked[0])
        is_wished = after.stop_requested_by is not None
        return [
            *await super().faults(play),
            *(["it was forgotten"] if is_wished != (after.state is RunState.STOPPED) else []),
            *([f"the first {first.state}"] if first.state is not RunState.SUCCEEDED else []),
        ]


class Shutdown(Question):
    """SIGTERM while the agent writes, and for longer than the grace of 10 s, also where five go by before it."""

    name = "shutdown"
    kills: Kills = "all"

    @override
    async def begin(self, play: Play) -> None:
        await play.ask_twice(answer_s=20)
        stage = play.rig.stage
        await stage.thinking(play.asked[1], thread_ts=play.asked[0])
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while (await stage.record(play.asked[1])).placed_at is None:
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(PLACED_WITHIN_S)

    @override
    async def go_on(self, play: Play) -> None:
        play.worker.ask_to_end()
        await play.rig.until_out(play.worker)


class Start(Question):
    """It was killed while the agent was writing, and is killed again while it starts and reconciles."""

    name = "start"
    kills: Kills = "of no run"

    @override
    async def begin(self, play: Play) -> None:
        await play.ask_twice(answer_s=3)
        await play.rig.acknowledged(play.asked[1])
        play.worker.kill_group()
        await play.rig.until_out(play.worker)

    @override
    async def go_on(self, play: Play) -> None:
        await play.worker.launch()


class CatchUp(Question):
    """Two messages of a thread that Slack never told of, as no process was there; the service starts, and finds them."""

    name = "catch_up"
    kills: Kills = "all"

    @override
    async def begin(self, play: Play) -> None:
        for process in play.rig.processes:
            await process.terminate()
        client = play.rig.stage.client
        await client.switches(outage=True)
        await play.say("@Orion is anybody there?")
        await play.say("@Orion and now?")
        await client.switches(outage=False)

    @override
    async def go_on(self, play: Play) -> None:
        for process in play.rig.processes:
            await process.launch()

    @override
    async def end(self, play: Play) -> None:
        """All is said."""


class CatchUpOverSocket(CatchUp):
    """The same, where Slack cannot reach the service."""

    name = "catch_up_socket"


class Environment(Question):
    """The first start: the agent's environment is made while a question waits for it."""

    name = "environment"
    kills: Kills = "of no run"

    @override
    async def begin(self, play: Play) -> None:
        orion = play.worker
        for process in play.rig.processes:
            await process.terminate()
        for made in ("environments", "snapshots", "names"):
            shutil.rmtree(orion.state_dir / made, ignore_errors=True)
        await play.say("@Orion a first word to a service that is not there yet")

    @override
    async def go_on(self, play: Play) -> None:
        await play.worker.launch()


class Refusal(Question):
    """An empty question in an answered thread: its asker alone is told, and nothing runs."""

    name = "refusal"

    @override
    async def begin(self, play: Play) -> None:
        await play.say("@Orion hello")
        await play.rig.stage.answer(play.asked[0], timeout_s=ANSWERED_WITHIN_S)

    @override
    async def go_on(self, play: Play) -> None:
        await play.say("@Orion")

    @override
    async def end(self, play: Play) -> None:
        """It ends by itself."""

    @override
    async def told(self, play: Play) -> None:
        await play.rig.stage.ended(play.asked[1], timeout_s=GIVEN_UP_AFTER_S)
        with suppress(TimeoutError):  # that it never comes is a fault, found below
            await play.rig.stage.client.wait_for_reply(
                play.asked[0], lambda reply: bool(reply["ephemeral_to"]), timeout_s=TOLD_WITHIN_S
            )

    @override
    async def faults(self, play: Play) -> list[str]:
        replies = await play.rig.stage.client.replies(play.asked[0])
        told = [reply for reply in replies if reply["ephemeral_to"]]
        own = sum(not reply["ephemeral_to"] and not file_names(reply) for reply in replies)
        record = await play.rig.stage.record(play.asked[1])
        return [
            *(["the refusal was never told"] if not told else []),
            *([f"{own} other messages instead of the answer and the question"] if own != 2 else []),
            *([f"record {record.state}"] if record.state is not RunState.FAILED else []),
        ]

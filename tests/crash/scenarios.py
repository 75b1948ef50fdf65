"""What people do in the crash tests: two questions in a thread, a refusal, Stop, a shutdown, a start after a crash."""

import asyncio
import re
import secrets
import shutil
from contextlib import suppress

from typing_extensions import override

from app.playground.slack.types import BOT_USER_ID, COLLEAGUE, Person
from app.runs.testing import RunState
from app.slack.actions import STOP_ACTION
from app.slack.manifest import ASK_SHORTCUT
from tests.crash.play import ANSWERED_WITHIN_S, Kills, Play
from tests.crash.rig import GIVEN_UP_AFTER_S
from tests.e2e.harness import file_names
from tests.fake_slack_client import FakeSlackError
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


class Invocations(Question):
    """The same to functions, of which each invocation starts and ends the service; the first answer takes two of them."""

    kills: Kills = "all"
    first = "@Orion !slow 5"


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


class Live(Question):
    """A question whose answer is streamed, and one behind it; Slack's line stands below the thread meanwhile."""

    name = "live"

    @override
    async def faults(self, play: Play) -> list[str]:
        """Besides: no stream is left as one, and the line is gone."""
        stage, root = play.rig.stage, play.asked[0]
        replies = await stage.client.replies(root)
        is_left = any(reply.get("streaming_state") == "in_progress" for reply in replies)
        workspace = stage.world.fake_slack.workspace
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN_S):
                while workspace.status_of(stage.channel_id("general"), root)["status"]:
                    await asyncio.sleep(POLL_S)
        has_line = bool(workspace.status_of(stage.channel_id("general"), root)["status"])
        return [
            *await super().faults(play),
            *(["a stream is left open"] if is_left else []),
            *(["the line is left below the thread"] if has_line else []),
        ]


class FollowUps(Question):
    """In an answered thread a reply without a mention, which is for Orion, and then somebody else's, which is not."""

    name = "followups"
    whose = "later"
    silent = ""

    @override
    async def begin(self, play: Play) -> None:
        self.silent = ""
        await play.say("@Orion hello")
        await play.rig.stage.answer(play.asked[0], timeout_s=ANSWERED_WITHIN_S)

    @override
    async def go_on(self, play: Play) -> None:
        await play.say("and then?")
        if await play.rig.acknowledged(play.asked[1]):
            await self._join(play)

    @override
    async def end(self, play: Play) -> None:
        await play.rig.acknowledged(play.asked[1])
        if not self.silent:
            await self._join(play)

    async def _join(self, play: Play) -> None:
        client = play.rig.stage.client
        self.silent = await client.say(
            "nice weather, you two", thread_ts=play.asked[0], user=COLLEAGUE
        )

    @override
    async def told(self, play: Play) -> None:
        await super().told(play)
        await play.rig.acknowledged(self.silent)
        stage = play.rig.stage
        async with asyncio.timeout(GIVEN_UP_AFTER_S):
            while await stage.orion.run(stage.run_id(self.silent)) is not None:
                await asyncio.sleep(POLL_S)


class Memory(Question):
    """Something to remember in the channel, and to forget again."""

    name = "memory"

    def __init__(self) -> None:
        self.said = ""

    @override
    async def go_on(self, play: Play) -> None:
        self.said = f"the word of the day is {secrets.token_hex(4)}"
        await play.say(f"@Orion remember: {self.said}")
        if await play.rig.acknowledged(play.asked[0]):
            await play.say(f"@Orion forget {self.said}")

    @override
    async def end(self, play: Play) -> None:
        await play.rig.acknowledged(play.asked[0])
        if len(play.asked) == 1:
            await play.say(f"@Orion forget {self.said}")

    @override
    async def faults(self, play: Play) -> list[str]:
        """It is remembered once, under one number, which is forgotten, and nothing else."""
        records = await play.rig.thread_records(play.asked[0])
        told = [record.result.answer for record in records]
        numbers = [re.findall(r"number ([\d, ]+)", answer) for answer in told]
        is_right = len(numbers) == 2 and len(numbers[0]) == 1 and numbers[0] == numbers[1]
        return [*await super().faults(play), *([] if is_right else [f"told: {told}"])]


class Announcement(Question):
    """As above, with runs that are long enough to be announced."""

    name = "announcement"


class _Waiting(Question):
    """The agent writes, and another question waits behind it."""

    @override
    async def begin(self, play: Play) -> None:
        play.outcomes = (RunState.STOPPED, RunState.SUCCEEDED)
        await play.ask_twice(answer_s=play.rig.shape.stopped_answer_s)
        await play.rig.acknowledged(play.asked[1])


class Stop(_Waiting):
    """Somebody presses Stop while the agent writes."""

    name = "stop"

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


class Interruption(_Waiting):
    """Somebody writes an urgent message while the agent writes and another question waits."""

    name = "interruption"
    whose = "later"

    @override
    async def go_on(self, play: Play) -> None:
        await play.say("@Orion ! do both")

    @override
    async def end(self, play: Play) -> None:
        await play.rig.acknowledged(play.asked[2])

    @override
    async def faults(self, play: Play) -> list[str]:
        """Those that it interrupts end, at once or by themselves, and it is answered."""
        *before, urgent = await play.rig.thread_records(play.asked[0])
        states = [run.state for run in before]
        is_answered = urgent.state is RunState.SUCCEEDED and "do both" in urgent.result.answer
        return [
            *await super().faults(play),
            *(["nothing was interrupted"] if RunState.STOPPED not in states else []),
            *([] if is_answered else [f"the urgent one {urgent.state}"]),
        ]


class Hearing(Interruption):
    """The only one that goes has an agent that is told of the urgent message while it writes."""

    name = "hearing"

    @override
    async def begin(self, play: Play) -> None:
        await play.ask_slowly(answer_s=12)

    @override
    async def end(self, play: Play) -> None:
        await play.rig.acknowledged(play.asked[1])

    @override
    async def faults(self, play: Play) -> list[str]:
        """Both are answered, by one answer or by two."""
        return await Question.faults(self, play)


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


class Places(Question):
    """Somebody new opens Orion, and asks about a message by the shortcut; whatever fails they try again."""

    name = "places"
    kills: Kills = "all"

    @override
    async def begin(self, play: Play) -> None:
        workspace = play.rig.stage.world.fake_slack.workspace
        play.person = f"U0NEW{len(workspace.people)}"
        workspace.join(Person(id=play.person, name=play.person, real_name=play.person))
        play.about = await play.rig.stage.client.say("the deploy of teapot failed")

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.client.open_home(tab="messages", user=play.person)
        await self._ask(play)

    @override
    async def end(self, play: Play) -> None:
        """Slack repeats no click, and every other one reaches who is frozen: the person clicks until they are heard."""
        async with asyncio.timeout(GIVEN_UP_AFTER_S):
            await self.go_on(play)
            while not await play.rig.thread_records(play.about):
                await asyncio.sleep(POLL_S)
                await self._ask(play)

    async def _ask(self, play: Play) -> None:
        client = play.rig.stage.client
        if play.view is None:
            chosen = await client.choose_shortcut(play.about, ASK_SHORTCUT, user=play.person)
            play.view = chosen["view"]
        if play.view is not None:
            with suppress(FakeSlackError):  # Orion has taken it, so it is closed
                await client.submit(play.view, {"question": "why is that"}, user=play.person)

    @override
    async def told(self, play: Play) -> None:
        async with asyncio.timeout(GIVEN_UP_AFTER_S):
            while True:
                records = await play.rig.thread_records(play.about)
                if records and all(run.state.is_final for run in records):
                    return
                await asyncio.sleep(POLL_S)

    @override
    async def faults(self, play: Play) -> list[str]:
        """One run and one answer; a welcome at the most: it may be lost to a kill, and is never said twice."""
        stage = play.rig.stage
        records = await play.rig.thread_records(play.about)
        ends = [(run.state, run.delivery) for run in records]
        replies = await stage.client.replies(play.about)
        posted = [one for one in replies if one["is_bot"] and not file_names(one)]
        said = await stage.client.messages(channel=stage.channel_id(play.person))
        return [
            *([] if ends == [(RunState.SUCCEEDED, "sent")] else [f"runs of one question: {ends}"]),
            *([] if len(posted) == 1 else [f"{len(posted)} messages for one question"]),
            *([f"{len(said)} welcomes"] if len(said) > 1 else []),
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
        async with asyncio.timeout(GIVEN_UP_AFTER_S):
            while (
                not play.worker.has_heard()
            ):  # else the next start is the first one, and nothing was missed
                await asyncio.sleep(POLL_S)
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

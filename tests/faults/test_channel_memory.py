"""What people tell Orion to remember: kept in its place, told to the agents of that place, forgotten, bounded; and nowhere else."""

import json
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.commands import answer_memory_command, read_memory
from app.runs.testing import (
    MAX_TOLD_BYTES,
    Outcome,
    Run,
    RunPolicy,
    RunRequest,
    RunState,
    Surface,
    SystemClock,
    find_refusal,
    run_id_for,
)
from app.store.runs import open_store
from tests.building import make_run
from tests.faults.building import POLICY, Core, core_of, ended
from tests.faults.plan_agent import ANSWER, PlanAdapter

OF_OPERATOR = replace(POLICY, instructions={"C1": "Answer in German."})


class Talk:
    """People who talk to a core, each message a second after the one before."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.number = 0

    def message(self, text: str, **of: object) -> RunRequest:
        self.number += 1
        place = {"team": "T1", "channel": "C1", "user": "U1"} | {
            name: str(of[name]) for name in ("team", "channel", "user") if name in of
        }
        ts = str(of.get("ts") or f"17953{self.number:05d}.000100")
        is_dm = place["channel"].startswith("D")
        return RunRequest(
            run_id=run_id_for(team=place["team"], channel=place["channel"], message_ts=ts),
            thread_ts=ts,
            message_ts=ts,
            text=text,
            surface=Surface.DM if is_dm else Surface.CHANNEL,
            is_external=bool(of.get("is_external")),
            is_bot=bool(of.get("is_bot")),
            received_at=SystemClock().now(),
            **place,
        )

    async def run(self, text: str, **of: object) -> Run:
        request = self.message(text, **of)
        await self.core.intake.accept(request)
        return await ended(self.core, request.run_id)

    async def ask(self, text: str, **of: object) -> str:
        run = await self.run(text, **of)
        assert run.state is RunState.SUCCEEDED, run.result.detail
        return run.result.answer

    async def refused(self, text: str, **of: object) -> Outcome:
        run = await self.run(text, **of)
        assert run.state is RunState.FAILED
        return run.result


@pytest.fixture
def agent() -> PlanAdapter:
    return PlanAdapter()


@pytest.fixture
async def talk(tmp_path: Path, agent: PlanAdapter) -> AsyncIterator[Talk]:
    async with core_of(tmp_path, OF_OPERATOR, adapter=agent) as core:
        yield Talk(core)


async def test_a_note_is_told_to_the_next_agent_of_its_channel(
    talk: Talk, agent: PlanAdapter
) -> None:
    """Without an agent of its own; with who said it and when, behind Orion's own text, in every thread of the place."""
    answer = await talk.ask("remember that we use uv")
    assert "as number 1: we use uv" in answer
    assert agent.turns == []
    assert (await talk.run(json.dumps(ANSWER), user="U2")).state is RunState.SUCCEEDED
    (turn,) = agent.turns
    own, _, about = turn.system_prompt.partition("Of this channel;")
    assert "You are Orion" in own
    assert 'operator: "Answer in German."' in about
    assert re.search(r'1\. "we use uv" \(name of U1, 2026-\d\d-\d\d\)$', about)
    assert "we use uv" not in json.dumps([message.text for message in turn.messages])


async def test_people_see_what_is_known_who_said_it_and_when(talk: Talk) -> None:
    """The operator's text, too; where there is nothing, how to begin."""
    assert "nothing of this place" in await talk.ask("what do you know here?", channel="C9")
    await talk.ask("remember: the db is PostgreSQL")
    shown = await talk.ask("what do you know here?", user="U2")
    assert "- the operator: Answer in German." in shown
    assert re.search(r"- 1: the db is PostgreSQL \(name of U1, `U1`, [\d-]+ [\d:]+ UTC\)", shown)
    assert f"of {MAX_TOLD_BYTES} bytes" in shown


async def test_it_is_forgotten_by_number_and_by_words(talk: Talk, agent: PlanAdapter) -> None:
    """Numbers stay what they are; words that are in several notes are told, and in none too."""
    for text in ("we use uv", "we use ruff", "deploys are on Tuesdays"):
        await talk.ask(f"remember {text}")
    forgotten = await talk.ask("forget 1 and 99")
    assert "number 1." in forgotten
    assert "nothing by the number 99" in forgotten
    assert "number 3" in await talk.ask("forget that Deploys are on tuesdays.")
    await talk.ask("remember we use mypy")
    shown = await talk.ask("what do you know here?")
    assert re.findall(r"- (\d): ([\w ]+) \(", shown) == [("2", "we use ruff"), ("4", "we use mypy")]
    for text, said in (
        ("forget we use", "in more than one, 2, 4"),
        ("forget the moon", "nothing here that says 'the moon'"),
        ("forget 1", "nothing here by the number 1"),
        ("forget 17", "nothing here by the number 17"),
        ("forget 98 and 99", "nothing here by the numbers 98, 99"),
    ):
        assert said in (await talk.refused(text)).detail
    assert "numbers 2, 4" in await talk.ask("forget everything")
    await talk.run(json.dumps(ANSWER))
    assert "we use" not in agent.turns[-1].system_prompt


@pytest.mark.parametrize(
    ("people", "may"), [(None, True), (frozenset(), False), (frozenset({"U2"}), True)]
)
async def test_who_may_have_a_note_forgotten(
    tmp_path: Path, people: frozenset[str] | None, *, may: bool
) -> None:
    """Who said it, and who may change the channel's defaults; `everything` is one's own in any case."""
    policy = replace(POLICY, channel_defaults_by=people)
    async with core_of(tmp_path, policy) as core:
        talk = Talk(core)
        for number in range(2):
            await talk.ask(f"remember thing {number}", user="U1")
        assert (
            "nothing that I remember" in (await talk.refused("forget everything", user="U2")).detail
        )
        if may:
            assert "number 1" in await talk.ask("forget 1", user="U2")
        else:
            refused = await talk.refused("forget 1", user="U2")
            assert refused.error_code is ErrorCode.NOT_ALLOWED
            assert "only who said it" in refused.detail
            await talk.ask("forget 1", user="U1")
        assert "number 2" in await talk.ask("forget everything", user="U1")


@pytest.mark.parametrize("whose", ["is_external", "is_bot"])
@pytest.mark.parametrize("text", ["remember that Eve is an admin", "forget 1"])
async def test_people_of_other_companies_and_apps_write_nothing(
    talk: Talk, text: str, whose: str
) -> None:
    """Also where they may ask; what is known they may see, as all that is written there."""
    policy = replace(POLICY, allow_external=True)
    refusal = find_refusal(
        talk.message(text, **{whose: True}), policy, runs_last_hour=1, unfinished=1
    )
    assert refusal is not None
    assert refusal.code is ErrorCode.NOT_ALLOWED
    shown = talk.message("what do you know here?", **{whose: True})
    assert find_refusal(shown, policy, runs_last_hour=1, unfinished=1) is None
    await talk.ask("remember we use uv")
    request = talk.message("hello")
    await talk.core.intake.accept(request.model_copy(update={"text": text, whose: True}))
    assert (await ended(talk.core, request.run_id)).state is RunState.FAILED
    assert [note.text for note in await talk.core.store.channel_notes.of("T1", "C1")] == [
        "we use uv"
    ]


@pytest.mark.long
async def test_too_much_is_refused(talk: Talk, agent: PlanAdapter) -> None:
    """Nothing is kept of it, and it says by how much; what agents are told stays within its bound."""
    runs = [await talk.run(f"remember {number} {'word ' * 20}") for number in range(10)]
    states = [run.state for run in runs]
    number = states.count(RunState.SUCCEEDED)
    assert states == [RunState.SUCCEEDED] * number + [RunState.FAILED] * (10 - number)
    run = runs[-1]
    assert run.result.error_code is ErrorCode.REQUEST_INVALID
    assert re.search(
        r"this is \d+ bytes more than I can remember here, 1000 in all", run.result.detail
    )
    kept = await talk.core.store.channel_notes.of("T1", "C1")
    assert 3 < len(kept) == number
    assert "as number" in await talk.ask("remember so")  # there is room for less
    assert (await talk.refused(f"remember {'x' * 40_000}")).error_code is ErrorCode.REQUEST_INVALID
    await talk.run(json.dumps(ANSWER))
    _, head, told = agent.turns[-1].system_prompt.partition("Of this channel;")
    assert len((head + told).encode()) <= MAX_TOLD_BYTES
    assert "so" in told


async def test_what_is_known_is_not_kept_twice_and_nothing_is_asked_for(talk: Talk) -> None:
    """Nor a secret; files and what is forwarded are named as not remembered."""
    await talk.ask("remember We use uv")
    assert "already, as number 1" in await talk.ask("remember we use UV")
    for nothing in ("remember this", "remember \u200b\u202e", "remember: ..."):
        assert (
            "write what I shall know here after `remember`" in (await talk.refused(nothing)).detail
        )
    assert "any more after `forget`" in (await talk.refused("forget")).detail
    bare = await answer_memory_command(make_run(talk.message("forget")), talk.core.ports, POLICY)
    assert bare is not None
    assert bare.state is RunState.FAILED  # though its words, none, stand in the only note
    assert "hunter2" not in (await talk.refused("forget hunter2")).detail
    assert "2: @name of U07 owns uv" in await talk.ask("remember that @U07 owns uv")
    assert "number 2" in await talk.ask("forget that @U07 owns uv")
    assert "[redacted]" in await talk.ask("remember the password is hunter2")
    request = talk.message("remember the plan")
    content = request.content.model_copy(update={"shared": ("a forwarded plan",)})
    await talk.core.intake.accept(request.model_copy(update={"content": content}))
    run = await ended(talk.core, request.run_id)
    assert "What came with your message is not remembered." in run.result.answer


@pytest.mark.long
async def test_commands_are_no_part_of_a_conversation(talk: Talk, agent: PlanAdapter) -> None:
    """An agent of the same thread is told the note, not the words with which it was given."""
    first = await talk.run("remember we use uv")
    later = talk.message(json.dumps(ANSWER))
    later = later.model_copy(update={"thread_ts": first.request.thread_ts})
    await talk.core.intake.accept(later)
    await ended(talk.core, later.run_id)
    assert "uv" not in "".join(message.text for message in agent.turns[-1].messages)


async def test_what_was_begun_is_the_same_when_it_is_done_again(talk: Talk) -> None:
    """A process that dies behind the write: one note, one number, the same answer; also when others wrote in between."""
    note = make_run(talk.message("remember we use uv"))
    ports = talk.core.ports
    first = await answer_memory_command(note, ports, POLICY)
    await talk.ask("remember another")
    assert await answer_memory_command(note, ports, POLICY) == first
    by_words = make_run(talk.message("forget we use uv"))
    gone = await answer_memory_command(by_words, ports, POLICY)
    await talk.ask("remember we use uv")
    again = await answer_memory_command(by_words, ports, POLICY)
    assert gone is not None
    assert again is not None
    assert "number 1" in gone.answer
    kept = await talk.core.store.channel_notes.of("T1", "C1")
    assert (kept[0].number, kept[0].text) == (2, "another")


PLACES = [
    *((team, f"C{number}") for team in ("T1", "T2") for number in range(12)),
    *((team, f"D{number}") for team in ("T1", "T2") for number in range(8)),
    *(("T1", f"G{number}") for number in range(4)),
]
PEOPLE = [f"U{number}" for number in range(10)]
CANARY = re.compile(r"canary-\w+")


def canary(team: str, channel: str) -> str:
    return f"canary-{team}{channel}x"


async def test_a_thousand_probes_find_nothing_of_another_place(tmp_path: Path, talk: Talk) -> None:
    """Channels, group and direct messages, two workspaces with the same ids, everybody everywhere: each answer, and all that an agent would be told, has its own place's alone."""
    policy = RunPolicy(instructions={"C3": f"of the operator: {canary('op', 'C3')}"})
    chance = random.Random(24)  # noqa: S311 - the same probes each time
    async with open_store(tmp_path / "probes.db") as store:
        ports = replace(talk.core.ports, channel_notes=store.channel_notes)

        async def say(text: str, team: str, channel: str, user: str) -> Outcome:
            run = make_run(talk.message(text, team=team, channel=channel, user=user))
            outcome = await answer_memory_command(run, ports, policy)
            assert outcome is not None
            return outcome

        for team, channel in PLACES:
            for user in chance.sample(PEOPLE, 2):
                said = await say(
                    f"remember {user} says {canary(team, channel)}", team, channel, user
                )
                assert said.state is RunState.SUCCEEDED
        leaks, own = [], 0
        for number in range(1000):
            team, channel = chance.choice(PLACES)
            other = canary(*chance.choice([place for place in PLACES if place != (team, channel)]))
            user = chance.choice(PEOPLE)
            probe = chance.choice(("show", "agent", "forget words", "forget number", "same words"))
            match probe:
                case "show":
                    outcome = await say("what do you know here?", team, channel, user)
                    told = outcome.answer + outcome.detail
                case "agent":
                    request = talk.message("hello", team=team, channel=channel, user=user)
                    told = (await read_memory(request, ports, policy)).render_for_agent()
                case "forget words":
                    outcome = await say(f"forget {other}", team, channel, user)
                    assert outcome.state is RunState.FAILED
                    told = outcome.answer + outcome.detail.replace(repr(other), "")
                case "forget number":
                    outcome = await say("forget 99", team, channel, user)
                    told = outcome.answer + outcome.detail
                case _:
                    outcome = await say(
                        f"remember {user} says {other} {number}", team, channel, user
                    )
                    assert outcome.state is RunState.SUCCEEDED
                    assert "already" not in outcome.answer
                    kept = await store.channel_notes.of(team, channel)
                    await store.channel_notes.forget(team, channel, [kept[-1].number], by="test")
                    told = outcome.answer.replace(other, "")
            mine = {canary(team, channel), canary("op", channel) if channel == "C3" else ""}
            found = set(CANARY.findall(told))
            own += bool(found)
            leaks += [(number, probe, one) for one in found - mine]
        assert leaks == []
        assert own > 300  # the probes do find what is there
        everything = [note for place in PLACES for note in await store.channel_notes.of(*place)]
        assert len(everything) == 2 * len(PLACES)


@pytest.mark.long
async def test_agents_of_other_places_are_told_nothing(talk: Talk, agent: PlanAdapter) -> None:
    """Two dozen runs of agents, with all of the core around them: what each is told and shown."""
    places = [("T1", "C1"), ("T1", "C2"), ("T1", "D1"), ("T1", "D2"), ("T2", "C1"), ("T2", "D1")]
    for team, channel in places:
        await talk.ask(f"remember {canary(team, channel)}", team=team, channel=channel)
    for user in ("U1", "U2", "U3", "U4"):
        for team, channel in places:
            run = await talk.run(json.dumps(ANSWER), team=team, channel=channel, user=user)
            assert run.state is RunState.SUCCEEDED
            turn = agent.turns[-1]
            told = turn.system_prompt + "".join(message.text for message in turn.messages)
            assert set(CANARY.findall(told)) == {canary(team, channel)}
            assert ("Answer in German" in told) == (channel == "C1")
    assert len(agent.turns) == 24

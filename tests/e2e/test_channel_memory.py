"""The memory of channels and direct messages in a real service: told to the model there, shown there, and in no other place."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from app.playground.slack.types import COLLEAGUE, EXTERNAL, YOU
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(300)]

CANARY = re.compile(r"canary-\w+")
# A direct message is named by the person.
PLACES: Mapping[str, tuple[str, ...]] = {
    "general": (YOU, COLLEAGUE),
    "random": (YOU, COLLEAGUE),
    "partners": (YOU, COLLEAGUE),
    YOU: (YOU,),
    COLLEAGUE: (COLLEAGUE,),
}
ROUNDS = 2


def canary_of(channel: str) -> str:
    return f"canary-{channel.lower()}"


async def told_to_model(world: World, marker: str) -> str:
    """The newest model request that asks this, its system prompt included."""
    requests = [json.dumps(one) for one in await world.model_requests()]
    return next(request for request in reversed(requests) if marker in request)


async def probe(stage: Stage, channel: str, user: str, number: int) -> None:
    """An agent's run and what people are shown: nothing but what is this place's own."""
    marker = f"probe-{channel.lower()}-{user.lower()}-{number}"
    answer = await stage.ask(f"@Orion {marker}", channel=channel, user=user)
    request = await told_to_model(stage.world, marker)
    shown = await stage.ask("@Orion what do you know here?", channel=channel, user=user)
    assert set(CANARY.findall(request)) == {canary_of(channel)}
    assert set(CANARY.findall(shown)) == {canary_of(channel)}
    assert set(CANARY.findall(answer)) <= {canary_of(channel)}


@pytest.mark.long
async def test_dozens_of_probes_over_http_find_nothing_of_another_place(
    world: World, start_orion: OpenOrion
) -> None:
    """Channels, one shared with another company, and two people's direct messages: 28 answers, 14 of them an agent's; after a restart, too."""
    async with start_orion(world) as stage:
        for channel, people in PLACES.items():
            said = await stage.ask(
                f"@Orion remember {canary_of(channel)}", channel=channel, user=people[0]
            )
            assert "as number 1" in said
        assert stage.orion.log_lines("sandbox.created") == []
        probes = [
            (channel, people[number % len(people)], number)
            for number in range(ROUNDS)
            for channel, people in PLACES.items()
        ]
        for channel, user, number in probes[: len(probes) // 2]:
            await probe(stage, channel, user, number)
        await stage.orion.terminate()
        await stage.orion.start()
        for channel, user, number in probes[len(probes) // 2 :]:
            await probe(stage, channel, user, number)
        ts = await stage.client.say(f"@Orion forget {canary_of(YOU)}")
        assert "nothing here that says" in text_of(await stage.answer(ts))
        assert "number 1" in await stage.ask("@Orion forget 1", channel="random")
        assert "nothing of this place" in await stage.ask(
            "@Orion what do you know here?", channel="random"
        )
        for channel, user, number in probes[: len(PLACES)]:
            if channel != "random":
                await probe(stage, channel, user, ROUNDS + number)


@pytest.mark.long
async def test_what_an_operator_says_of_a_channel_and_who_writes_there(
    world: World, start_orion: OpenOrion
) -> None:
    """Over the socket: `orion.toml` is told in its channel; people of another company ask and see, and write nothing."""
    async with start_orion(
        world, SLACK_APP_TOKEN=world.config.app_token, ORION_ALLOW_EXTERNAL="true"
    ) as stage:
        await stage.orion.terminate()
        channel = stage.channel_id("partners")
        file = stage.orion.directory / "orion.toml"
        file.write_text(f'[channels.{channel}]\ninstructions = "Speak of canary-operator."\n')
        await stage.orion.start()
        await stage.ask("@Orion remember canary-ours", channel="partners")
        place: dict[str, Any] = {"channel": "partners", "user": EXTERNAL}
        ts = await stage.client.say("@Orion remember canary-theirs", **place)
        run = await stage.ended(ts, channel="partners")
        assert run.result.error_code == "NOT_ALLOWED"
        shown = await stage.ask("@Orion what do you know here?", **place)
        assert CANARY.findall(shown) == ["canary-operator", "canary-ours"]
        await stage.ask("@Orion probe-by-guest", **place)
        request = await told_to_model(world, "probe-by-guest")
        assert CANARY.findall(request) == ["canary-operator", "canary-ours"]
        await stage.ask("@Orion probe-in-general")
        assert "canary" not in await told_to_model(world, "probe-in-general")
        await _look_after_it(stage, channel)


async def _look_after_it(stage: Stage, channel: str) -> None:
    """The operator sees what a person said, and has it forgotten, beside the service."""
    code, listed = await stage.cli("notes", "list", "--person", YOU, "--json")
    (row,) = json.loads(listed)
    assert (code, row["channel"], row["text"]) == (0, channel, "canary-ours")
    assert (await stage.cli("notes", "forget"))[0] == 2
    assert (await stage.cli("notes", "forget", "--number", "1"))[0] == 2
    assert (await stage.cli("notes", "forget", "--channel", channel, "--number", "2"))[0] == 1
    assert await stage.cli("notes", "forget", "--person", YOU) == (0, "1 forgotten\n")
    assert await stage.cli("notes", "list") == (0, "")
    shown = await stage.ask("@Orion what do you know here?", channel="partners")
    assert CANARY.findall(shown) == ["canary-operator"]

"""What breaks around functions: each question ends as the table of faults says, whichever invocation meets it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.playground.slack.types import BOT_USER_ID
from app.runs.testing import Resumption, RunState
from app.slack.api import CALL_TIMEOUT_S
from tests.e2e.fault_table import fault
from tests.e2e.harness import text_of
from tests.relay import open_cutting_proxy
from tests.sockets import open_black_hole
from tests.vercel.deployed import ANSWERED_S, SLOW_WORDS, Deployed, Place
from tests.vercel.deployment import Deployment
from tests.vercel.platform import LEFT_BY_CLIENT

pytestmark = [
    pytest.mark.long,
    pytest.mark.machines,
    pytest.mark.postgresql,
    pytest.mark.bubblewrap,
    pytest.mark.filterwarnings(LEFT_BY_CLIENT),
    pytest.mark.timeout(600),
]

AWAY_S = 20.0
SLICE_S = "4"
MODEL = {
    "!429": "Model: 429",
    "!529": "Model: 529",
    "!cut": "Model: cut stream",
    "!garbage": "Model: garbage",
    "!stall": "Model: stalled stream",
}
POSTS: Mapping[str, Mapping[str, object]] = {
    "Slack: time-out after the message was posted": {"answer_after_s": CALL_TIMEOUT_S + 1},
    "Slack: connection cut after the message was posted": {"drop_after_accept": True},
    "Slack: connection cut before the message was posted": {"drop_before_accept": True},
}
ANSWERS: Mapping[str, Mapping[str, object]] = {
    "Slack: 429 with Retry-After": {"status": 429, "retry_after": 1, "times": 2},
    "Slack: 500": {"status": 500, "times": 2},
    "Slack: 502 of a gateway, in HTML": {"status": 502, "is_html": True, "times": 2},
}


@pytest.fixture
def place(
    deployment: Deployment, bundles: Mapping[str, Path], postgres_url: str, tmp_path: Path
) -> Place:
    return Place(deployment=deployment, bundles=bundles, url=postgres_url, directory=tmp_path)


async def test_slack(place: Place) -> None:
    """It limits, errs, answers late or not at all, is away while a run ends, and takes no messages any more."""
    async with place.deploy(ORION_SLICE_S=SLICE_S) as deployed:
        await deployed.ask("@Orion hello")
        for row, trouble in POSTS.items():
            await deployed.client.faults("chat.postMessage", **trouble)
            await _answered(deployed, row)
        for row, trouble in ANSWERS.items():
            for method in ("chat.postMessage", "chat.update"):
                await deployed.client.faults(method, **trouble)
            await _answered(deployed, row)
        ts = await _ask_slowly(deployed, 9)
        (message,) = await deployed.bot_messages(ts)
        await deployed.client.delete(message["ts"], user=BOT_USER_ID)
        await _ends(deployed, ts, "Slack: thinking message deleted")
        ts = await _ask_slowly(deployed, 8)
        await deployed.client.switches(outage=True)
        await asyncio.sleep(11)
        await deployed.client.switches(outage=False)
        await _ends(deployed, ts, "Slack: down while a run ends")
        ts = await _ask_slowly(deployed, 9, channel="random")
        await deployed.client.channel("random", archived=True)
        record = await deployed.ended(ts, channel="random", timeout_s=ANSWERED_S)
        fault("Slack: channel archived").assert_holds(record)
        ts = await _ask_slowly(deployed, 9)
        await deployed.client.switches(token_revoked=True)
        record = await deployed.ended(ts, timeout_s=ANSWERED_S)
        fault("Slack: token revoked").assert_holds(record)


async def test_the_model(place: Place) -> None:
    """It refuses, breaks off, answers nonsense, or nothing."""
    async with place.deploy(ORION_SLICE_S=SLICE_S, ORION_IDLE_TIMEOUT_S="5") as deployed:
        await deployed.ask("@Orion hello")
        asked = {await deployed.client.say(f"@Orion {word}"): row for word, row in MODEL.items()}
        for ts, row in asked.items():
            await _ends(deployed, ts, row)


async def test_traces_that_nobody_takes(place: Place) -> None:
    """What waits for them within the invocation waits no longer than it may."""
    with open_black_hole() as url:
        async with place.deploy(LANGFUSE_BASE_URL=url) as deployed:
            await _answered(deployed, "Langfuse: black hole")


async def test_a_database_that_is_away(place: Place, postgres_url: str) -> None:
    """In the middle of a run, and of its slices: the agent works on, and is followed again."""
    async with open_cutting_proxy(postgres_url) as proxy:
        away = Place(
            deployment=place.deployment,
            bundles=place.bundles,
            url=proxy.url,
            directory=place.directory,
        )
        async with away.deploy(ORION_SLICE_S="12") as deployed:
            await deployed.ask("@Orion hello")
            ts = await _ask_slowly(deployed, 30)
            proxy.cut()
            await asyncio.sleep(AWAY_S)
            proxy.mend()
            late = await deployed.client.say("@Orion and now")
            for asked in (ts, late):
                await _ends(deployed, asked, "PostgreSQL: away for 20 s in the middle of a run")
            assert (await deployed.record(ts)).attempt == 1


async def test_the_cloud(place: Place) -> None:
    """Each step fails once; it is full, refuses, cuts, ends what runs, saves nothing."""
    async with place.deploy(ORION_SLICE_S=SLICE_S) as deployed:
        await deployed.ask("@Orion hello")
        cloud = deployed.cloud
        for name, row in {
            "hiccups": "Cloud: each step of a sandbox's life fails once",
            "full": "Cloud: too many requests or sandboxes",
            "refusing": "Cloud: token revoked",
            "unsaved": "Cloud: nothing can be saved",
        }.items():
            struck = cloud.struck()
            cloud.trouble[name]()
            ts = await deployed.client.say("@Orion run: echo 4711 > notes")
            await _ends(deployed, ts, row)
            assert cloud.struck() > struck, row
            cloud.calm()
        cloud.trouble["cut"]()
        ts = await _ask_slowly(deployed, 9)
        await _ends(deployed, ts, "Cloud: connection to a working agent cut")
        cloud.calm()
        ts = await _ask_slowly(deployed, 20)
        cloud.end_machines()
        await _ends_or_begins_again(deployed, ts, "Cloud: sandbox ends under its agent")


async def _ask_slowly(deployed: Deployed, seconds: int, *, channel: str = "general") -> str:
    """Returns once the agent writes."""
    ts = await deployed.client.say(f"@Orion !slow {seconds}", channel=channel)
    await deployed.client.wait_for_reply(
        ts, lambda reply: SLOW_WORDS in text_of(reply), channel=channel, timeout_s=60
    )
    return ts


async def _answered(deployed: Deployed, row: str) -> None:
    await _ends(deployed, await deployed.client.say("@Orion hello"), row)


async def _ends(deployed: Deployed, ts: str, row: str) -> None:
    """In one message, as the row says."""
    await deployed.answer(ts, timeout_s=ANSWERED_S)
    fault(row).assert_holds(await deployed.record(ts))
    assert len(await deployed.bot_messages(ts)) == 1, row


async def _ends_or_begins_again(deployed: Deployed, ts: str, row: str) -> None:
    """Between two slices nobody sees it: the next one begins the turn again, in another sandbox."""
    await deployed.answer(ts, timeout_s=ANSWERED_S)
    record = await deployed.record(ts)
    if record.result.resumed is Resumption.REPEATED:
        assert (record.state, record.delivery) == (RunState.SUCCEEDED, "sent")
    else:
        fault(row).assert_holds(record)
    assert len(await deployed.bot_messages(ts)) == 1

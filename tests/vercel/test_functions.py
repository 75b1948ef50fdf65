"""A deployment answers: the real functions in the real runtime, the real queue service, emulated sandboxes, PostgreSQL."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.dispatch.vercel_queue import TOPIC, WakeUp, message_key
from app.runs.testing import RunState
from app.web.hosting import serve
from tests.e2e.clouds import KEY
from tests.e2e.harness import text_of
from tests.e2e.orion_process import POLL_S
from tests.git_server import GitServer, settings_for
from tests.github_accounts import CLIENT_ID, GitHubAccounts
from tests.relay import Connection, open_relay
from tests.vercel.deployed import ANSWERED_S, CRON, SLOW_WORDS, Deployed, Place
from tests.vercel.deployment import Deployment
from tests.vercel.platform import DEPLOYMENT, LEFT_BY_CLIENT
from tests.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.machines,
    pytest.mark.postgresql,
    pytest.mark.bubblewrap,
    pytest.mark.filterwarnings(LEFT_BY_CLIENT),
    pytest.mark.timeout(600),
]

MAX_CALLS = 8


@pytest.fixture
def place(
    deployment: Deployment, bundles: Mapping[str, Path], postgres_url: str, tmp_path: Path
) -> Place:
    return Place(deployment=deployment, bundles=bundles, url=postgres_url, directory=tmp_path)


def _numbers(deployed: Deployed, run_id: str) -> list[int]:
    """Of the messages of a run that have come."""
    messages = [json.loads(one.payload) for one in deployed.platform.pushed]
    return [one["number"] for one in messages if one["run_id"] == run_id]


@pytest.mark.alone
async def test_a_mention_is_answered(place: Place) -> None:
    """Acknowledged after the message stands, within Slack's 3 s; answered by one message; traced before the function has returned."""
    async with place.deploy() as deployed:
        ts = await deployed.client.say("@Orion run: echo 4711")
        message = await deployed.thinking(ts)
        delivered = await deployed.deliveries(ts, at_least=2)
        assert {one["status"] for one in delivered} == {200}
        assert max(one["latency_ms"] for one in delivered) < 3000
        assert "4711" in text_of(await deployed.answer(ts, timeout_s=ANSWERED_S))
        assert [one["ts"] for one in await deployed.bot_messages(ts)] == [message["ts"]]
        run_id = deployed.run_id(ts)
        await until(lambda: _numbers(deployed, run_id) == [1], timeout_s=30)
        tree = await deployed.world.whole_trace(str((await deployed.record(ts)).trace_id))
        assert "execute-agent" in str(tree)


async def test_slices_each_in_a_process_of_its_own(place: Place) -> None:
    """What has worked for a message is killed before the next one comes: one attempt, one answer, with progress on the way."""
    async with place.deploy(ORION_SLICE_S="2") as deployed:
        await deployed.ask("@Orion hello")  # the environment is there
        deployed.platform.is_fresh = True
        ts = await deployed.client.say("@Orion !slow 20")
        await deployed.client.wait_for_reply(
            ts, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=60
        )
        await deployed.answer(ts, timeout_s=ANSWERED_S)
        record = await deployed.record(ts)
        assert (record.state, record.attempt, record.delivery) == (RunState.SUCCEEDED, 1, "sent")
        assert len(await deployed.bot_messages(ts)) == 1
        # The last one may be in its function yet.
        await until(lambda: len(_numbers(deployed, record.id)) >= 3, timeout_s=60)
        numbers = _numbers(deployed, record.id)
        assert numbers == list(range(1, len(numbers) + 1))


async def test_the_broker_behind_the_function_that_hears(place: Place) -> None:
    """With ORION_PUBLIC_URL sandboxes ask it instead of the model, also between two slices: each call is counted, and none of them has the key."""
    hears: list[str] = []

    async def connect() -> Connection:
        return await asyncio.open_connection("127.0.0.1", urlsplit(hears[0]).port or 0)

    async with open_relay(connect) as relay:
        url = f"http://127.0.0.1:{relay.port}"
        async with place.deploy(
            port=relay.port, ORION_PUBLIC_URL=url, ORION_SLICE_S="3"
        ) as deployed:
            hears.append(deployed.platform.hears.url)
            ts = await deployed.client.say("@Orion run: echo 4711")
            assert "4711" in text_of(await deployed.answer(ts, timeout_s=ANSWERED_S))
            slow = await deployed.client.say("@Orion !slow 12")
            assert "press Stop" in text_of(await deployed.answer(slow, timeout_s=ANSWERED_S))
            assert len(_numbers(deployed, deployed.run_id(slow))) >= 3
            for asked, calls in ((ts, 2), (slow, 1)):
                record = await deployed.record(asked)
                assert (record.state, record.attempt) == (RunState.SUCCEEDED, 1)
                assert record.result.usage.model_calls == calls
            assert KEY.encode() not in deployed.cloud.sent()


@pytest.mark.alone
async def test_a_process_killed_in_a_slice(place: Place) -> None:
    """kill -9 while an agent works: within 60 s another goes on with it, and it is answered once."""
    async with place.deploy(ORION_SLICE_S="3") as deployed:
        await deployed.ask("@Orion hello")
        ts = await deployed.client.say("@Orion !slow 25")
        await deployed.client.wait_for_reply(
            ts, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=60
        )
        deployed.platform.kill_after_s.append(1.0)
        await until(lambda: not deployed.platform.kill_after_s, timeout_s=30)
        killed_s = time.monotonic()
        await deployed.answer(ts, timeout_s=ANSWERED_S)
        assert time.monotonic() - killed_s < 60
        record = await deployed.record(ts)
        assert (record.state, record.delivery) == (RunState.SUCCEEDED, "sent")
        assert record.attempt <= 2
        assert len(await deployed.bot_messages(ts)) == 1


async def test_how_much_a_slice_asks(place: Place) -> None:
    """Requests to the provider in each in which an agent is only followed, and messages of a run."""
    async with place.deploy(ORION_SLICE_S="8") as deployed:
        await deployed.ask("@Orion hello")
        done = len(deployed.platform.pushed)
        ts = await deployed.client.say("@Orion !slow 45")
        await deployed.answer(ts, timeout_s=ANSWERED_S)
        # A message that is left of the first question may have somebody work for the second one.
        slices = [one for one in deployed.platform.pushed[done:] if one.api_calls]
        followed = slices[1:-1]
        assert len(followed) >= 3
        assert max(one.api_calls for one in followed) <= MAX_CALLS
        # Placed, begun, ended; so ten minutes, by slices of 30 s, are 23 at the most, and two messages that find it ended.
        assert len(slices) <= 45 / 8 + 3


async def test_stop(place: Place) -> None:
    """Said while an agent works, it is dead and told within seconds."""
    async with place.deploy(ORION_SLICE_S="5") as deployed:
        await deployed.ask("@Orion hello")
        ts = await deployed.client.say("@Orion !slow 120")
        await deployed.client.wait_for_reply(
            ts, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=60
        )
        await deployed.client.say("stop", thread_ts=ts)
        assert (await deployed.ended(ts, timeout_s=30)).state is RunState.STOPPED


async def test_messages_that_are_none(place: Place) -> None:
    """Forged, of another deployment, of another form, of 10 MB, twice, and for a run that nobody knows: acknowledged, and nothing happens."""
    async with place.deploy() as deployed:
        ts = await deployed.client.say("@Orion hello")
        await deployed.answer(ts, timeout_s=ANSWERED_S)
        before, shown = await deployed.record(ts), len(await deployed.bot_messages(ts))
        key = message_key(deployed.world.config.signing_secret)
        right = WakeUp(run_id=before.id, number=7, deployment=DEPLOYMENT)
        bodies = [
            right.model_dump_json().encode(),
            right.signed(b"another key").model_dump_json().encode(),
            right.model_copy(update={"deployment": "dpl_old"})
            .signed(key)
            .model_dump_json()
            .encode(),
            b"x" * 10_000_000,
            b"[]",
            *[right.signed(key).model_dump_json().encode()] * 2,
            right.model_copy(update={"run_id": "run_none"}).signed(key).model_dump_json().encode(),
        ]
        done = len(deployed.platform.pushed)
        for body in bodies:
            await deployed.platform.client().send(TOPIC, body)
        await until(lambda: len(deployed.platform.pushed) >= done + len(bodies), timeout_s=60)
        assert {one.status for one in deployed.platform.pushed} == {204}
        assert deployed.platform.works.log.count("queue.refused") == 5
        assert await deployed.record(ts) == before
        assert len(await deployed.bot_messages(ts)) == shown


async def test_the_cron(place: Place) -> None:
    """Only who has its secret is heard; it removes and wakes, and says how much."""
    async with place.deploy() as deployed:
        url, http = f"{deployed.platform.hears.url}/ops/sweep", deployed.platform.http
        for given in ("", "Bearer wrong"):
            answer = await http.get(url, headers={"authorization": given}, timeout=30)
            assert answer.status_code == 401
        answer = await http.get(url, headers={"authorization": f"Bearer {CRON}"}, timeout=30)
        assert (answer.status_code, answer.text[:11]) == (200, "0 runs woke")


async def test_the_cron_finds_what_nobody_heard(place: Place) -> None:
    """From its first time on: what Slack could not tell is answered, and says that it comes late."""
    async with place.deploy() as deployed:
        url, http = f"{deployed.platform.hears.url}/ops/sweep", deployed.platform.http
        key = {"authorization": f"Bearer {CRON}"}
        first = await http.get(url, headers=key, timeout=30)
        assert first.text.endswith("messages looked through\n")
        await deployed.client.switches(outage=True)
        ts = await deployed.client.say("@Orion while nobody heard")
        await deployed.client.switches(outage=False)
        await http.get(url, headers=key, timeout=60)
        assert "while I was away" in text_of(await deployed.answer(ts))


async def test_an_account_is_linked(place: Place, tmp_path: Path) -> None:
    """By a code that outlives the function that has shown it: its person comes back when they have typed it in."""
    accounts = GitHubAccounts()
    server = GitServer(root=tmp_path / "git", accounts=accounts)
    given = {
        "ORION_GITHUB_APP_CLIENT_ID": CLIENT_ID,
        "ORION_GITHUB_IDENTITY": "person",
        "ORION_OWN_KEYS_SECRET": "secret-of-the-tests-for-accounts-4711",
    }
    async with (
        serve(server.app()) as url,
        place.deploy(None, port=0, **settings_for(url), **given) as deployed,
    ):

        async def link() -> str:
            return str((await deployed.client.command("/orion link"))["text"])

        told = await link()
        found = re.search(r"type in `([^`]+)`", told)
        assert found, told
        assert "write `/orion link GitHub` again" in told
        assert found[1] in await link()
        accounts.authorize(found[1], login="ann", number=3)
        async with asyncio.timeout(60):  # which is not asked more often than every few seconds
            while "is linked: ann" not in await link():
                await asyncio.sleep(POLL_S)
        assert "is forgotten here" in str((await deployed.client.command("/orion unlink"))["text"])

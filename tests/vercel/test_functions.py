"""A deployment answers: the real functions in the real runtime, the real queue service, emulated sandboxes, PostgreSQL."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.playground.stack import orion_environment
from app.runs.testing import Run, run_id_for
from app.store.runs import open_store
from tests.e2e.clouds import CLOUDS, KEY, QUICK_RETRIES, Cloud
from tests.e2e.harness import World, open_world, text_of
from tests.emulators.machine_network import Address
from tests.vercel.deployment import Deployment
from tests.vercel.platform import Platform, open_platform

pytestmark = [
    pytest.mark.long,
    pytest.mark.machines,
    pytest.mark.postgresql,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(600),
]


@dataclass(frozen=True, kw_only=True)
class Deployed:
    world: World
    cloud: Cloud
    platform: Platform
    database_url: str

    async def run(self, ts: str) -> Run | None:
        run_id = run_id_for(team="T", channel="C", message_ts=ts)
        async with open_store(self.database_url) as store:
            return await store.get(run_id)


@asynccontextmanager
async def deploy(
    deployment: Deployment, bundles: Mapping[str, Path], database_url: str, **settings: str
) -> AsyncIterator[Deployed]:
    """Sandboxes reach the model alone, to which their network adds the key."""
    async with open_world(QUICK_RETRIES) as world:
        internet = [Address(host="127.0.0.1", port=urlsplit(world.url).port or 0)]
        with CLOUDS["vercel"](internet) as cloud:
            given = {
                **orion_environment(world.url, world.config),
                "ANTHROPIC_API_KEY": KEY,
                "ORION_DATABASE_URL": database_url,
                "ORION_LOG_FORMAT": "json",
                **cloud.settings,
                **settings,
            }
            async with open_platform(deployment, bundles, given) as platform:
                world.fake_slack.events_url = f"{platform.hears.url}/slack/events"
                yield Deployed(
                    world=world, cloud=cloud, platform=platform, database_url=database_url
                )
            assert cloud.running() == 0


async def test_a_mention_is_answered(
    deployment: Deployment, bundles: Mapping[str, Path], postgres_url: str
) -> None:
    """Over the functions alone."""
    async with deploy(deployment, bundles, postgres_url) as deployed:
        client = deployed.world.client
        ts = await client.say("@Orion run: echo 4711")
        try:
            reply = await client.wait_for_reply(
                ts, lambda reply: "4711" in text_of(reply), timeout_s=150
            )
        finally:
            print(deployed.platform.hears.log[-6000:])
            print(deployed.platform.works.log[-6000:])
            print(deployed.platform.pushed)
        assert "4711" in text_of(reply)

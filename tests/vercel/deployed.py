"""Orion deployed: the real functions of a build in the real runtime, a queue service, an emulated cloud, PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from app.playground.model.server import ModelPace
from app.playground.slack.types import FakeSlackConfig
from app.playground.stack import orion_environment
from tests.e2e.clouds import CLOUDS, KEY, QUICK_RETRIES, Cloud
from tests.e2e.harness import AT_ONCE, Stage, open_world
from tests.e2e.orion_process import OrionProcess, new_state_dir
from tests.emulators.machine_network import Address
from tests.vercel.deployment import Deployment
from tests.vercel.platform import Platform, open_platform

CRON = "cron-secret-of-the-test"
ANSWERED_S = 300.0
SLOW_WORDS = "offline model and I write slowly"
"""Of an answer to `!slow`, while it is written."""


@dataclass(frozen=True, kw_only=True)
class Deployed(Stage):
    """Its `orion` is no process: it knows where the records are."""

    cloud: Cloud
    platform: Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a deployment meets."""

    config: FakeSlackConfig = QUICK_RETRIES
    pace: ModelPace = AT_ONCE
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app
    shares: Mapping[str, Path] = field(default_factory=dict)
    """`Instance`'s."""


@dataclass(frozen=True, kw_only=True)
class Place:
    deployment: Deployment
    bundles: Mapping[str, Path]
    url: str
    directory: Path

    @asynccontextmanager
    async def deploy(
        self, outside: Outside | None = None, *, port: int = 0, **settings: str
    ) -> AsyncIterator[Deployed]:
        """Sandboxes reach the model alone, to which their network adds the key, or what is at that port; at the end none is left, nor a message to come."""
        outside = outside or Outside()
        async with open_world(outside.config, pace=outside.pace, wrap=outside.wrap) as world:
            internet = [Address(host="127.0.0.1", port=port or urlsplit(world.url).port or 0)]
            with CLOUDS["vercel"](internet) as cloud:
                given = {
                    **orion_environment(world.url, world.config),
                    "ANTHROPIC_API_KEY": KEY,
                    "ORION_DATABASE_URL": self.url,
                    "ORION_LOG_FORMAT": "json",
                    "CRON_SECRET": CRON,
                    "ORION_ANNOUNCE_AFTER_S": "0",  # messages are counted, however slow the machine is
                    **cloud.settings,
                    **settings,
                }
                async with open_platform(
                    self.deployment,
                    self.bundles,
                    given,
                    count_calls=cloud.requests,
                    shares=outside.shares,
                ) as platform:
                    world.fake_slack.events_url = f"{platform.hears.url}/slack/events"
                    orion = OrionProcess(state_dir=new_state_dir(self.directory), settings=given)
                    yield Deployed(world=world, orion=orion, cloud=cloud, platform=platform)
                    assert platform.tracebacks() == [], platform.tracebacks()
                    assert KEY not in platform.hears.log + platform.works.log
                assert cloud.running() == 0

"""Vercel's functions as the crash tests harm them: an instance is killed at a point, and the platform starts another one for the next request."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from typing_extensions import override

from app.aio import background
from app.playground.model.server import ModelPace
from tests.crash.points import Mailbox
from tests.crash.rig import (
    FUNCTIONS,
    POLL_S,
    QUICK_RETRIES,
    REACHED_WITHIN_S,
    Rig,
    members_of_group,
)
from tests.crash.slack_points import SlackTripwire
from tests.e2e.harness import Stage
from tests.e2e.orion_process import AT_REST_WITHIN_S, OrionProcess, owns_connection
from tests.forking import REPOSITORY
from tests.vercel.deployed import Deployed, Outside, Place
from tests.vercel.deployment import build
from tests.vercel.platform import HEARS, WORKS, Instance, Platform

WATCHED = ("__init__", "agent", "functions", "points")
"""Modules of this package that the functions have beside their own."""
LEADS_TO = {"app.main": "tests.crash.functions", "app.subscriber": "tests.crash.functions"}
SLICE_S = "3"


class Functions(OrionProcess):
    """Both functions as one process that is always up: whichever instance is killed, there is another one."""

    def __init__(self, platform: Platform, *, like: OrionProcess) -> None:
        super().__init__(state_dir=like.state_dir, settings=like.environment)
        self._platform = platform

    @property
    @override
    def log(self) -> str:
        return self._platform.works.log

    @property
    @override
    def is_up(self) -> bool:
        return True

    @property
    @override
    def is_frozen(self) -> bool:
        return False

    @override
    async def start(self) -> None:
        """The platform does."""


@dataclass(frozen=True, kw_only=True)
class FunctionRig(Rig):
    deployed: Deployed
    killed: list[Instance] = field(default_factory=list)
    """By a call to Slack."""

    @override
    def disarm(self) -> None:
        super().disarm()
        self.killed.clear()

    @override
    def harm_caller(self, port: int) -> bool | None:
        for instance in (self.deployed.platform.hears, self.deployed.platform.works):
            pid = instance.pid
            if pid and any(owns_connection(int(one), port) for one in members_of_group(pid)):
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                self.killed.append(instance)
                return True
        return None

    @override
    async def until_harmed(self) -> OrionProcess | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(REACHED_WITHIN_S):
                while not (self.killed or self.mailbox.victims()):
                    await asyncio.sleep(POLL_S)
                return self.stage.orion
        return None

    @override
    async def faults_of_machine(self) -> list[str]:
        running = self.deployed.cloud.running
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_REST_WITHIN_S):
                while running():
                    await asyncio.sleep(POLL_S)
        return [f"{running()} sandboxes are left"] if running() else []


def watch(bundle: Path, directory: Path) -> Path:
    """Returns a copy of a function's files that leads to `tests.crash.functions` instead of to `app`."""
    shutil.copytree(bundle, directory, copy_function=os.link, symlinks=True)
    shutil.rmtree(directory / "_vc_queue_handlers" / "__pycache__", ignore_errors=True)
    for path in [*directory.glob("*.py"), *directory.glob("_vc_queue_handlers/*.py")]:
        text = path.read_text()
        for name, watched in LEADS_TO.items():
            text = text.replace(f'"{name}"', f'"{watched}"')
            there = name.replace(".", "/"), watched.replace(".", "/")
            text = text.replace(f"{there[0]}.py", f"{there[1]}.py")
        path.unlink()  # a link
        path.write_text(text)
    (directory / "tests" / "crash").mkdir(parents=True)
    for name in ("tests/__init__.py", *(f"tests/crash/{module}.py" for module in WATCHED)):
        shutil.copy(REPOSITORY / name, directory / name)
    return directory


@asynccontextmanager
async def open_function_rig(place: Place) -> AsyncIterator[Rig]:
    """A deployment with a tripwire around every port of its functions; `place` has those that are watched."""
    slack = SlackTripwire()
    mailbox = place.directory / "mailbox"
    mailbox.mkdir()
    outside = Outside(
        config=QUICK_RETRIES,
        pace=ModelPace(word_s=0.01, slow_word_s=0.5),
        wrap=slack.wrap,
        shares={"/var/mailbox": mailbox},
    )
    async with AsyncExitStack() as stack:
        deployed = await stack.enter_async_context(place.deploy(outside, ORION_SLICE_S=SLICE_S))
        platform = deployed.platform

        def told() -> None:
            deployed.world.fake_slack.events_url = f"{platform.hears.url}/slack/events"

        await stack.enter_async_context(
            background(platform.hears.keep(told), platform.works.keep(told))
        )
        functions = Functions(platform, like=deployed.orion)
        stage = Stage(world=deployed.world, orion=functions)
        await stage.ask("@Orion hello")  # the environment is there
        yield FunctionRig(
            shape=FUNCTIONS,
            stage=stage,
            others=(),
            agent="small",
            mailbox=Mailbox(mailbox),
            slack=slack,
            deployed=deployed,
        )


def watched_place(place: Place, directory: Path) -> Place:
    """Returns the place with functions that are watched, whose files are put below `directory`."""
    bundles = {
        name: watch(place.bundles[name], directory / str(number))
        for number, name in enumerate((HEARS, WORKS))
    }
    return replace(place, bundles=bundles)


def build_watched(directory: Path) -> Place:
    """Builds them below `directory`; the place has no database yet. Raises: CannotBuildError."""
    (directory / "build").mkdir()
    deployment = build(directory / "build")
    bundles = {
        name: function.unpack(directory / f"bundle{number}")
        for number, (name, function) in enumerate(deployment.functions.items())
    }
    place = Place(deployment=deployment, bundles=bundles, url="", directory=directory)
    return watched_place(place, directory / "watched")

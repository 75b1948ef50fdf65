"""The composition root: settings become adapters, adapters become the service, the lifespan owns every resource."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from fastapi import FastAPI

from app.aio import open_task_group
from app.compose.adapters import Outside, Overrides, Role, create_key_modal, open_outside
from app.compose.core import Core, open_core
from app.compose.factories import (
    channel_options,
    create_health,
    entry_options,
    run_policy,
    start_logging,
)
from app.compose.models import missing_for_serving
from app.compose.providers import join_installation
from app.log import export_failures, get_logger
from app.runs.intake import Intake
from app.runs.ports import Dispatcher
from app.settings.group import SettingsError
from app.settings.settings import Settings, load_settings, make_private
from app.slack.api import SlackFault
from app.slack.connection import SlackConnection
from app.slack.listeners import open_entry
from app.store.engine import own_state_directory
from app.store.runs import SqlRunStore, open_store
from app.web.health import Health, Metrics
from app.web.routes import WebParts, install_routes

SHUTDOWN_GRACE_S = 10.0
"""For runs that are about to end; the others are resumed by the next process."""
IDENTIFY_INTERVAL_S = 10.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    web: WebParts
    intake: Intake
    store: SqlRunStore
    health: Health
    drain: Callable[[], Awaitable[None]]
    """Take nothing new, let runs end for the grace period, hand the others over; to be called while still serving, so that
    `/readyz` says so and Stop still works. Leaving the service drains too.
    """


def create_app(
    load: Callable[[], Settings] = load_settings, *, overrides: Overrides | None = None
) -> FastAPI:
    """Returns the FastAPI app; settings are read and resources opened when its lifespan starts."""

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with open_service(load(), overrides=overrides or Overrides()) as service:
            install_routes(api, service.web)
            yield

    return FastAPI(title="Orion", lifespan=lifespan, openapi_url=None)


@asynccontextmanager
async def open_service(
    settings: Settings, *, overrides: Overrides, role: Role = Role.WHOLE
) -> AsyncIterator[Service]:
    """Opens the service, or the part of it that this process is for, which works while the block runs.

    Raises:
        SettingsError: something that it needs is missing.
        StateDirectoryBusyError: another process owns the state directory.
        OtherPlaceError: another process keeps threads' files where this one does not find them.
        UnreadableStoreError: its database is not one that this Orion can use.
        SandboxError: no sandbox can be made on this machine.
    """
    if missing := missing_for_serving(settings, hears=role is not Role.WORKER):
        raise SettingsError("\n".join(missing))
    policy = run_policy(settings)
    policy = replace(policy, channels=channel_options(settings, policy))
    masker = start_logging(settings)
    async with AsyncExitStack() as stack:
        make_private(settings.service.state_dir)
        shares = isinstance(settings.database, str)
        directory = stack.enter_context(
            own_state_directory(settings.service.state_dir, shares=shares)
        )
        store = await stack.enter_async_context(open_store(settings.database))
        settings = await join_installation(settings, store)
        outside = await stack.enter_async_context(
            open_outside(
                settings,
                store,
                role=role,
                place=directory.place(),
                policy=policy,
                masker=masker,
                overrides=overrides,
            )
        )
        core = await stack.enter_async_context(
            open_core(
                settings,
                outside,
                directory=directory,
                policy=policy,
                masker=masker,
                adapter=overrides.adapter,
            )
        )
        adapters = outside.adapters
        health = create_health(
            store=adapters.store,
            dispatcher=adapters.dispatcher,
            slack=outside.slack,
            provider=adapters.provider if core.is_working else None,
            pools=core.runners.pools,
            state_dir=settings.service.state_dir,
        )
        await adapters.dispatcher.start(overrides.wrap("handlers", core.service))
        stack.push_async_callback(_drain, adapters.dispatcher, health)
        end_background = await stack.enter_async_context(
            _background(*core.background(), _identify_forever(outside.slack))
        )
        web = await stack.enter_async_context(_open_web(settings, outside, core, health))
        _log.info(
            "service.started",
            role=role,
            state_dir=str(settings.service.state_dir),
            sandbox=adapters.provider.name if core.is_working else "",
        )
        yield Service(
            web=web,
            intake=core.intake,
            store=adapters.store,
            health=health,
            drain=partial(_drain, adapters.dispatcher, health, end_background),
        )
    _log.info("service.stopped")


@asynccontextmanager
async def _open_web(
    settings: Settings, outside: Outside, core: Core, health: Health
) -> AsyncIterator[WebParts]:
    """Yields what the routes stand on; with Socket Mode, events come in while the block runs."""
    metrics = Metrics(
        store=outside.adapters.store,
        export_failures=export_failures,
        pools=core.runners.pools,
        calls=core.ports.ledger.figures,
    )
    ops_token = settings.service.ops_token
    parts = WebParts(
        slack=None,
        health=health,
        metrics=metrics,
        broker=outside.broker.router,
        ops_token=ops_token.get_secret_value() if ops_token else None,
        is_loopback=settings.service.is_loopback,
    )
    if outside.role is Role.WORKER:
        yield replace(parts, broker=None)
        return
    entry = open_entry(
        entry_options(settings),
        identity=outside.slack.identity,
        intake=core.intake,
        keys=create_key_modal(settings, outside.slack, outside.adapters.own_keys),
        on_ack=metrics.acknowledged,
    )
    async with entry as handler:
        yield replace(parts, slack=handler)


async def _drain(
    dispatcher: Dispatcher, health: Health, end_background: Callable[[], None] | None = None
) -> None:
    if health.is_draining:
        return
    if end_background is not None:
        end_background()
    _log.info("service.draining", grace_s=SHUTDOWN_GRACE_S)
    health.is_draining = True
    await dispatcher.stop(grace_s=SHUTDOWN_GRACE_S)


@asynccontextmanager
async def _background(*work: Coroutine[None, None, None]) -> AsyncIterator[Callable[[], None]]:
    """Runs coroutines while the block runs; a crash of one ends the service, as it should. Yields how to end them."""
    async with open_task_group() as group:
        tasks = [group.create_task(one) for one in work]

        def end() -> None:
            for task in tasks:
                task.cancel()

        yield end
        end()


async def _identify_forever(slack: SlackConnection) -> None:
    """Learns who the bot is, however long Slack takes; events are understood without it."""
    while True:
        try:
            identity = await slack.identify()
        except SlackFault as exc:
            _log.warning("slack.identify_failed", reason=str(exc))
            await asyncio.sleep(IDENTIFY_INTERVAL_S)
        else:
            _log.info("slack.identified", team=identity.team_id, bot_user=identity.bot_user_id)
            return


app = create_app()
"""For servers that import it; settings are read when its lifespan starts.

One process that goes on between requests, on a disk that stays: it takes the lock of the state directory. `vercel.json` names it, but
nothing runs there yet: where no process goes on after a response there is no dispatcher for it.
"""

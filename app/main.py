"""The composition root: settings become adapters, adapters become the service, the lifespan owns every resource."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from fastapi import FastAPI

from agent_scripts.adapter import AgentAdapter
from app.brokers import open_broker
from app.budgets import open_ledger
from app.config import Settings, SettingsError, load_settings, make_private
from app.dispatch.lock import own_state_directory
from app.log import configure_logging, export_failures, get_logger
from app.model_access import missing_for_serving
from app.own_keys import create_key_desk, create_own_keys
from app.parts import (
    channel_wishes,
    check_python,
    create_dispatcher,
    create_health,
    entry_options,
    open_tracer,
    run_policy,
    slack_options,
)
from app.providers import Choice, choose_provider, create_provider
from app.redaction import Masker
from app.rooms import Rooms
from app.runs.clock import SystemClock
from app.runs.intake import Intake
from app.runs.live_log import LiveLogs
from app.runs.ports import Dispatcher
from app.runs.reconciler import Reconciler
from app.runs.retention import Retention
from app.runs.runners import Room, Runners
from app.runs.session import Session, session_id_for
from app.runs.stops import StopSignals
from app.runs.workflow import RunService
from app.slack.api import SlackFault
from app.slack.connection import SlackConnection, open_slack
from app.slack.entry import open_entry
from app.store.sql import SqlRunStore, open_sqlite_store
from app.web.health import Health
from app.web.metrics import Metrics
from app.web.routes import WebParts, install_routes
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import SandboxId

SHUTDOWN_GRACE_S = 10.0
"""For runs that are about to end; the others are resumed by the next process."""
IDENTIFY_INTERVAL_S = 10.0

_log = get_logger(__name__)

PartT = TypeVar("PartT")


class Around(Protocol):
    """Told of each adapter by its port's name, gives back what takes its place."""

    def __call__(self, port: str, part: PartT, /) -> PartT: ...


def _as_it_is(_port: str, part: PartT, /) -> PartT:
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Parts that tests and the bench put in place of the real ones, or around them."""

    provider: SandboxProvider | None = None
    adapter: AgentAdapter | None = None
    around: Around = _as_it_is


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that is running, for whoever composed it."""

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
    """The FastAPI app; settings are read and resources opened when its lifespan starts."""

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with open_service(load(), overrides=overrides or Overrides()) as service:
            install_routes(api, service.web)
            yield

    return FastAPI(title="Orion", lifespan=lifespan, openapi_url=None)


@asynccontextmanager
async def open_service(settings: Settings, *, overrides: Overrides) -> AsyncIterator[Service]:
    """The whole service, working while the block runs.

    Raises:
        SettingsError: something `serve` needs is missing.
        StateDirectoryBusyError: another process owns the state directory.
        UnreadableStoreError: its database is not one that this Orion can use.
        SandboxError: no sandbox can be made on this machine.
    """
    if missing := missing_for_serving(settings):
        raise SettingsError("\n".join(missing))
    policy = run_policy(settings)
    channels = channel_wishes(policy)
    check_python()
    clock = SystemClock()
    masker = Masker((*settings.secrets, *settings.mcp_servers.secrets))
    around = overrides.around
    configure_logging(fmt=settings.orion_log_format, level=settings.orion_log_level, masker=masker)
    async with AsyncExitStack() as stack:
        make_private(settings.orion_state_dir)
        stack.enter_context(own_state_directory(settings.orion_state_dir))
        store = around(
            "store", await stack.enter_async_context(open_sqlite_store(settings.database_path))
        )
        await store.examine()
        tracer = await stack.enter_async_context(open_tracer(settings, masker))
        broker = await stack.enter_async_context(open_broker(settings, settings.broker_directory))
        choice = Choice(name="override", reason="")
        if overrides.provider is None:
            choice = await choose_provider(settings)
        provider = await stack.enter_async_context(
            around("provider", overrides.provider or create_provider(settings, choice))
        )
        left = await _sessions_to_keep(store)
        elsewhere = {one.provider for one in left if one.sandbox_id} - {provider.name}
        broker.close_others([session.id for session in left])
        await provider.sweep([SandboxId(session.sandbox_id) for session in left])
        await _tell_sandbox(settings, provider, choice)
        slack = await stack.enter_async_context(open_slack(slack_options(settings)))

        ledger = await stack.enter_async_context(
            open_ledger(settings, around("spending", store.spending), clock)
        )
        own_keys = around("own_keys", create_own_keys(settings, store))
        signals = StopSignals()
        dispatcher = around(
            "dispatcher", create_dispatcher(settings.database_path, capacity=policy.capacity)
        )
        rooms = Rooms(
            settings=settings,
            sessions=around("sessions", store.sessions),
            policy=policy,
            clock=clock,
            masker=masker,
            broker=broker,
            adapter=overrides.adapter,
            left=left,
        )
        room = rooms.furnish(provider)
        await stack.enter_async_context(room.pool.open())
        runners = Runners(
            room,
            open_room=rooms.open,
            policy=policy,
            group=await stack.enter_async_context(open_task_group()),
        )
        stack.callback(runners.close)
        live_logs = LiveLogs(settings.live_logs_dir)
        live_logs.clear()
        service = RunService(
            store=store,
            files=around("files", store.files),
            dispatcher=dispatcher,
            replies=around("replies", slack.replies),
            reader=around("reader", slack.reader),
            tracer=tracer,
            runners=runners,
            defaults=around("defaults", store.defaults),
            sessions=rooms.sessions,
            channels=channels,
            live_logs=live_logs,
            signals=signals,
            ledger=ledger,
            own_keys=own_keys,
            policy=policy,
            clock=clock,
            mask=masker.mask,
        )
        intake = Intake(
            dispatcher=dispatcher,
            store=store,
            files=store.files,
            replies=slack.replies,
            signals=signals,
            tracer=tracer,
            policy=policy,
            clock=clock,
        )
        reconciler = Reconciler(
            store=store,
            dispatcher=dispatcher,
            service=service,
            policy=policy,
            signals=signals,
            clock=clock,
        )
        retention = Retention(
            store=store,
            dispatcher=dispatcher,
            remove_sessions=room.workspaces.remove_unused,
            kept_for=timedelta(days=settings.orion_retention_days),
            clock=clock,
        )
        health = create_health(
            store=store,
            dispatcher=dispatcher,
            slack=slack,
            provider=provider,
            pools=runners.pools,
        )
        await dispatcher.start(around("handlers", service))
        stack.push_async_callback(_drain, dispatcher, health)
        end_background = await stack.enter_async_context(
            _background(
                signals.listen_forever(store, service.end_stopped),
                reconciler.run_forever(),
                retention.run_forever(),
                ledger.write_forever(),
                room.workspaces.close_forever(),
                _identify_forever(slack),
                _prepare_quietly(room),
                room.pool.fill_forever(room.runner.spec_to_wait),
                *(runners.open_quietly(name) for name in elsewhere),
            )
        )
        handler = await stack.enter_async_context(
            open_entry(
                entry_options(settings),
                identity=slack.identity,
                intake=intake,
                keys=create_key_desk(settings, slack, own_keys),
            )
        )
        _log.info("service.started", state_dir=str(settings.orion_state_dir), sandbox=provider.name)
        yield Service(
            web=WebParts(
                slack=handler,
                health=health,
                metrics=Metrics(
                    store=store,
                    export_failures=export_failures,
                    pools=runners.pools,
                    calls=ledger.figures,
                ),
                broker=broker.router,
                ops_token=settings.orion_ops_token.get_secret_value()
                if settings.orion_ops_token
                else None,
                is_loopback=settings.orion_host in ("127.0.0.1", "::1", "localhost"),
            ),
            intake=intake,
            store=store,
            health=health,
            drain=partial(_drain, dispatcher, health, end_background),
        )
    _log.info("service.stopped")


async def _tell_sandbox(settings: Settings, provider: SandboxProvider, choice: Choice) -> None:
    finding = await provider.probe()
    _log.info("sandbox.selected", provider=provider.name, reason=choice.reason, finding=finding)
    if settings.mount is not None:
        _log.warning("sandbox.mounted", says=settings.mount.sentence)


async def _sessions_to_keep(store: SqlRunStore) -> Sequence[Session]:
    """Those in whose sandboxes a run that the last process left may go on, or that a person left for the next run."""
    found = [session for session in await store.sessions.all() if session.kept_environment]
    for run in await store.unfinished():
        session = await store.sessions.get(session_id_for(run.thread))
        if session is not None and session.sandbox_id:
            found.append(session)
    return found


async def _drain(
    dispatcher: Dispatcher, health: Health, end_background: Callable[[], None] | None = None
) -> None:
    if health.is_draining:
        return
    if end_background is not None:
        end_background()  # the reconciler needs the engine, which goes now
    _log.info("service.draining", grace_s=SHUTDOWN_GRACE_S)
    health.is_draining = True
    await dispatcher.stop(grace_s=SHUTDOWN_GRACE_S)


@asynccontextmanager
async def _background(*work: Coroutine[None, None, None]) -> AsyncIterator[Callable[[], None]]:
    """Coroutines that go on while the block runs; a crash of one ends the service, as it should. Yields how to end them."""
    async with open_task_group() as group:
        tasks = [group.create_task(one) for one in work]

        def end() -> None:
            for task in tasks:
                task.cancel()

        yield end
        end()


async def _identify_forever(slack: SlackConnection) -> None:
    """Learn who the bot is, however long Slack takes; events are understood without it."""
    while True:
        try:
            identity = await slack.identify()
        except SlackFault as exc:
            _log.warning("slack.identify_failed", reason=str(exc))
            await asyncio.sleep(IDENTIFY_INTERVAL_S)
        else:
            _log.info("slack.identified", team=identity.team_id, bot_user=identity.bot_user_id)
            return


async def _prepare_quietly(room: Room) -> None:
    """Have the environment ready before the first question; a failure is logged, and shows with its code in that run."""
    with suppress(SandboxError):
        await room.runner.prepare_environment()
        room.pool.wake()


app = create_app()
"""For servers that import it, such as Vercel's; settings are read when its lifespan starts."""

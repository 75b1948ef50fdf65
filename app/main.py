"""The composition root: settings become adapters, adapters become the service, the lifespan owns every resource."""

import asyncio
import gc
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from fastapi import FastAPI
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from app.aio import background
from app.brokerage.registry import may_be_token
from app.compose.accounts import create_links, has_link_page
from app.compose.adapters import Outside, Overrides, Role, create_key_modal, open_outside
from app.compose.core import Core, create_catch_up, open_core
from app.compose.egress import learn_host_sets
from app.compose.factories import (
    channel_options,
    create_health,
    entry_options,
    operators_page,
    start_logging,
)
from app.compose.models import missing_for_serving
from app.compose.policy import run_policy
from app.compose.providers import join_installation
from app.dispatch.slices import SliceDispatcher, WakeUps
from app.log import export_failures, get_logger
from app.operators.desk import Desk
from app.operators.door import Door
from app.operators.pages import create_pages
from app.runs.intake import Intake
from app.runs.model import SystemClock
from app.runs.ports import Dispatcher
from app.runs.request import RunId
from app.settings.group import SettingsError
from app.settings.settings import Settings, host_environment, load_settings, make_private
from app.slack.api import SlackFault, SlackRefusal
from app.slack.catch_up import CatchUp
from app.slack.connection import SlackConnection
from app.slack.home import BACKGROUND_TIMEOUT_S
from app.slack.manifest import MANIFEST_FIX
from app.slack.overview import Overviews
from app.slack.transport import answer_alone, open_entry
from app.store.engine import own_state_directory
from app.store.runs import SqlRunStore, open_store
from app.web.health import Health, Metrics
from app.web.invocations import InvocationApp
from app.web.linked import LINKED, linked_page
from app.web.routes import WebParts, install_routes, not_found, refuse_metrics, refuse_sweep

SHUTDOWN_GRACE_S = 10.0
"""For runs that are about to end; the others are resumed by the next process."""
IDENTIFY_INTERVAL_S, IDENTIFY_TIMEOUT_S = 10.0, 3.0
REFUSED_TOKENS = frozenset({"invalid_auth", "not_authed", "account_inactive", "token_revoked"})
"""Source: Slack Web API, auth.test, errors, read 2026-11."""
HOOK_GRACE_S = 1.8
"""For messages that a request has brought to be placed: Slack waits 3 s in all, and a cold start takes one."""
SWEEP_PATH = "/ops/sweep"
"""Of the cron in `vercel.json`."""
CRON_PULLS_S = 40.0
"""For the pull requests, whose claims end by themselves."""
CRON_CATCH_UP_S = 200.0
"""Of the 300 that `vercel.json` gives it."""
STAND_IN = {"VERCEL_OIDC_TOKEN": "the-one-of-each-request"}
SLICE_S = 30.0
"""On Vercel, where ORION_SLICE_S says nothing else: ten minutes are 21 messages."""

LoadSettings = Callable[..., Settings]
"""`load_settings`, or what takes its place: with `given`."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    web: WebParts
    intake: Intake
    slices: SliceDispatcher | None
    """The dispatcher of a role that is brief."""
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
    settings: Settings,
    *,
    overrides: Overrides,
    role: Role = Role.WHOLE,
    wake_ups: WakeUps | None = None,
) -> AsyncIterator[Service]:
    """Opens the service, or the part of it that this process is for, which works while the block runs.

    `wake_ups`: of a role that is brief.

    Raises:
        SettingsError: something that it needs is missing.
        StateDirectoryBusyError: another process owns the state directory.
        OtherPlaceError: another process keeps threads' files where this one does not find them.
        UnreadableStoreError: its database is not one that this Orion can use.
        SandboxError: no sandbox can be made on this machine.
    """
    if missing := missing_for_serving(settings, hears=role.hears):
        raise SettingsError("\n".join(missing))
    if role.is_working:
        settings = await learn_host_sets(settings)
    policy = run_policy(settings)
    policy = replace(policy, channels=channel_options(settings, policy))
    if role.is_brief:
        # Nobody would be there to close what is kept for a thread's next message.
        policy = replace(policy, session_keep_s=0, slice_s=policy.slice_s or SLICE_S)
    masker = start_logging(settings)
    tell = _log.debug if role.is_brief else _log.info
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
                wake_ups=wake_ups,
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
        if outside.remembered is None:
            await _identify(outside.slack)
        else:
            await outside.remembered.identify()
        await adapters.dispatcher.start(overrides.wrap("handlers", core.service))
        drain = partial(
            _drain,
            adapters.dispatcher,
            health,
            grace_s=HOOK_GRACE_S if role is Role.HOOK else SHUTDOWN_GRACE_S,
            tell=tell,
        )
        await stack.enter_async_context(background(*core.hearing()))
        stack.push_async_callback(drain)
        catch_up = create_catch_up(settings, outside, core.intake)
        of_slack = [] if role.is_brief else [_identify_forever(outside.slack)]
        if catch_up is not None and role.hears and not role.is_brief:
            of_slack.append(catch_up.run_forever())
        end_background = await stack.enter_async_context(background(*core.background(), *of_slack))
        web = await stack.enter_async_context(_open_web(settings, outside, core, health, catch_up))
        tell(
            "service.started",
            role=role,
            state_dir=str(settings.service.state_dir),
            sandbox=adapters.provider.name if core.is_working else "",
        )
        yield Service(
            web=web,
            intake=core.intake,
            slices=outside.slices,
            store=adapters.store,
            health=health,
            drain=partial(drain, end_background=end_background),
        )
    tell("service.stopped")


def _operators_page(settings: Settings, outside: Outside, core: Core) -> Sequence[Route]:
    token = _plain(settings.service.ops_token)
    if token is None:
        return ()
    clock = SystemClock()
    desk = Desk(
        outside.adapters.store,
        policy=core.policy,
        pools=core.runners.pools,
        mask=core.ports.mask,
        trace_link=core.ports.tracer.link,
        clock=clock,
    )
    return create_pages(desk, Door(token, now=clock.now), token=token)


@asynccontextmanager
async def _open_web(
    settings: Settings, outside: Outside, core: Core, health: Health, catch_up: CatchUp | None
) -> AsyncIterator[WebParts]:
    """Yields what the routes stand on; with Socket Mode, events come in while the block runs.

    `catch_up`: of functions, that of their cron.
    """
    metrics = Metrics(
        outside.meters,
        store=outside.adapters.store,
        export_failures=export_failures,
        pools=core.runners.pools,
        calls=core.ports.ledger.figures,
        follow_ups=core.service.follow_ups,
    )
    parts = WebParts(
        slack=None,
        health=health,
        metrics=metrics,
        broker=outside.broker.router if settings.service.public_url else None,
        ops_token=_plain(settings.service.ops_token),
        is_loopback=settings.service.is_loopback and not outside.role.is_brief,
        operators=_operators_page(settings, outside, core),
    )
    if outside.slices is not None:
        parts = replace(
            parts,
            sweep=partial(_sweep, outside.slices, core, outside.slack, catch_up),
            cron_secret=_plain(settings.service.cron_secret),
        )
    if not outside.role.hears:
        yield replace(parts, broker=None)
        return
    slack, adapters = outside.slack, outside.adapters
    overviews = Overviews(
        core.ports,
        catalog=core.runners.catalog,
        policy=core.policy,
        identity=slack.identity,
        operators_page=operators_page(settings),
    )
    entry = open_entry(
        entry_options(settings),
        identity=slack.identity,
        intake=core.intake,
        surfaces=slack.surfaces(
            core.intake,
            overviews,
            welcomes=adapters.welcomes,
            keys=create_key_modal(settings, slack, adapters.own_keys, adapters.audit),
            links=create_links(
                settings,
                slack,
                outside.accounts,
                audit=adapters.audit,
                waits=not outside.role.is_brief,
            ),
            takes_comments=settings.langfuse.takes_comments,
            mask=core.ports.mask,
            on_group=core.permissions.ask_for,
            background_timeout_s=HOOK_GRACE_S if outside.role.is_brief else BACKGROUND_TIMEOUT_S,
        ),
        on_ack=metrics.acknowledged,
        hearing=outside.slack.hearing,
    )
    async with entry as handler:
        yield replace(parts, slack=handler, has_link_page=has_link_page(settings))


async def _sweep(
    dispatcher: SliceDispatcher,
    core: Core,
    slack: SlackConnection,
    catch_up: CatchUp | None,
) -> str:
    runs = await dispatcher.sweep()
    await core.desk.keep()
    removed, sessions = await core.retention.remove_old()
    with suppress(TimeoutError):
        async with asyncio.timeout(CRON_PULLS_S):
            await core.pulls.look()
    told = f"{runs} runs woken; {removed} runs and {sessions} threads' files removed\n"
    if catch_up is None:
        return told
    slack.hearing.begin()  # nobody knows when a function was last there to hear
    try:
        is_done = await catch_up.look(limit_s=CRON_CATCH_UP_S)
    except SlackFault as exc:
        return f"{told}messages not looked through: {exc.word}\n"
    return f"{told}messages looked through{'' if is_done else ' in part'}\n"


# -- as functions of Vercel's ------------------------------------------------------------------------------------------


def create_function_app(
    load: LoadSettings = load_settings, *, overrides: Overrides | None = None
) -> FastAPI:
    """Returns the FastAPI app of the function that hears; each request has the service for itself, for as long as it takes."""

    @cache
    def settings() -> Settings | None:
        """Returns what can be worked with. What is wrong is said once, and each request gets a 500: a process that ended would be started anew, to say less."""
        try:
            found = load(given=STAND_IN)
        except SettingsError as exc:
            _log.error("service.not_configured", reason=str(exc))
            return None
        start_logging(found)
        if missing := missing_for_serving(found):
            _log.error("service.not_configured", reason="; ".join(missing))
            return None
        return found

    @asynccontextmanager
    async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
        settings()
        yield

    def answer_without(request: Request, body: bytes) -> Response | None:
        found = settings()
        if found is None:
            return JSONResponse({"error": "not configured; the log says why"}, status_code=500)
        return _answer_alone(request, body, found)

    @asynccontextmanager
    async def open_app(path: str) -> AsyncIterator[ASGIApp]:
        role = Role.SLICE if path == SWEEP_PATH else Role.HOOK
        async with open_invocation(load, overrides or Overrides(), role=role) as service:
            app = FastAPI(openapi_url=None)
            install_routes(app, service.web)
            yield app

    api = FastAPI(title="Orion", lifespan=lifespan, openapi_url=None)
    api.mount("/", InvocationApp(open_app, answer_alone=answer_without))
    return api


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _answer_alone(request: Request, body: bytes, settings: Settings) -> Response | None:
    """Answers what everybody may ask, and refuses what comes from nobody who may: a stranger shall not make it open a database."""
    is_for_broker = settings.service.public_url is not None and may_be_token(request)
    match request.url.path:
        case "/healthz":
            return PlainTextResponse("ok")
        case path if path == "/readyz" or (path.startswith("/broker/") and is_for_broker):
            return None
        case "/metrics":
            return refuse_metrics(request, _plain(settings.service.ops_token), is_loopback=False)
        case "/ops/sweep":
            return refuse_sweep(request, _plain(settings.service.cron_secret))
        case "/slack/events" if request.method == "POST":
            answer = answer_alone(entry_options(settings), headers=request.headers, body=body)
            return Response(answer.body, answer.status, dict(answer.headers)) if answer else None
        case path:
            is_linked = path.startswith(f"{LINKED}/") and has_link_page(settings)
            return linked_page(request) if is_linked else not_found()


async def work_for_message(
    chunks: AsyncIterable[bytes],
    load: LoadSettings = load_settings,
    *,
    overrides: Overrides | None = None,
) -> None:
    """Does a slice of what a message of the queue wakes for, and has the next two sent; `chunks` are its body.

    Returns also when it is none of ours: to be sent again would change nothing.

    Raises:
        UnreadableStoreError: the database is away, or not one that this Orion can use.
        Exception: whatever else kept it from working; the message is to be delivered again.
    """
    from app.dispatch.vercel_queue import message_key, read_body, read_wake_up  # noqa: PLC0415 - an extra

    settings = load(given=STAND_IN)
    try:
        message = read_wake_up(
            await read_body(chunks),
            key=message_key(_plain(settings.slack.signing_secret) or ""),
            deployment=settings.service.deployment,
        )
    except ValueError as exc:
        _log.warning("queue.refused", reason=str(exc))
        return
    async with open_invocation(load, overrides or Overrides(), role=Role.SLICE) as service:
        if service.slices is None:
            raise TypeError("a message has come to a service that is not brief")
        await service.slices.work(RunId(message.run_id), number=message.number)
        await service.slices.sweep()


@asynccontextmanager
async def open_invocation(
    load: LoadSettings, overrides: Overrides, *, role: Role
) -> AsyncIterator[Service]:
    """Opens the service for one invocation of a function, in a directory of its own; nothing of it is left when the block ends.

    Raises: as `open_service`, and OSError: the queue does not take what has to be sent.
    """
    from app.dispatch.vercel_queue import VercelWakeUps, identity_token, message_key  # noqa: PLC0415 - an extra

    token = await identity_token()
    settings = load(given={"VERCEL_OIDC_TOKEN": token} if token else {})
    wake_ups = VercelWakeUps(
        key=message_key(_plain(settings.slack.signing_secret) or ""),
        deployment=settings.service.deployment,
    )
    make_private(settings.service.state_dir)
    with TemporaryDirectory(dir=settings.service.state_dir) as directory:
        service = settings.service.model_copy(update={"state_dir": Path(directory)})
        async with open_service(
            replace(settings, service=service), overrides=overrides, role=role, wake_ups=wake_ups
        ) as opened:
            yield opened
    _freeze_loaded()


@cache
def _freeze_loaded() -> None:
    """Keeps what the first invocation has loaded from the garbage collector, which takes 0.1 s to look through it, every few invocations."""
    gc.freeze()


async def _drain(
    dispatcher: Dispatcher,
    health: Health,
    *,
    grace_s: float,
    tell: Callable[..., None],
    end_background: Callable[[], None] | None = None,
) -> None:
    if health.is_draining:
        return
    if end_background is not None:
        end_background()
    tell("service.draining", grace_s=grace_s)
    health.is_draining = True
    await dispatcher.stop(grace_s=grace_s)


async def _identify(slack: SlackConnection) -> None:
    """Learns who the bot is, once; a Slack that cannot be reached is no reason not to start.

    Raises:
        SettingsError: the token is no good: whatever this process did, nobody would hear of it.
    """
    try:
        async with asyncio.timeout(IDENTIFY_TIMEOUT_S):
            identity = await slack.identify()
    except SlackRefusal as exc:
        if exc.word in REFUSED_TOKENS:
            raise SettingsError(f"SLACK_BOT_TOKEN: Slack refuses it: {exc.word}") from exc
        _log.warning("slack.identify_failed", reason=str(exc))
    except (SlackFault, TimeoutError) as exc:
        _log.warning("slack.identify_failed", reason=str(exc) or type(exc).__name__)
    else:
        _log.info("slack.identified", team=identity.team_id, bot_user=identity.bot_user_id)
        for scope, feature in slack.lacking.items():
            _log.warning("slack.feature_off", feature=feature, lacks=scope, fix=MANIFEST_FIX)


async def _identify_forever(slack: SlackConnection) -> None:
    """Tries again until it is known, however long Slack takes; events are understood without it. Raises: as `_identify`."""
    while slack.identity() is None:
        await asyncio.sleep(IDENTIFY_INTERVAL_S)
        await _identify(slack)


app = create_function_app() if host_environment().get("VERCEL") == "1" else create_app()
"""For servers that import it: on Vercel the function that hears, elsewhere one process that goes on between requests, on a disk that stays.

Settings are read when its lifespan starts.
"""

"""The composition root: settings become adapters, adapters become the service, the lifespan owns every resource."""

import asyncio
import json
import platform
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from agent_scripts.adapter import AgentAdapter
from agent_scripts.registry import create_adapter
from app.brokerage.broker import MessagesBroker, Upstream, create_broker_app
from app.brokerage.tokens import load_signing_key
from app.config import (
    GATEWAY_URL,
    Settings,
    SettingsError,
    default_ca_bundle,
    host_environment,
    load_settings,
)
from app.dispatch.lock import own_state_directory
from app.log import configure_logging, export_failures, get_logger
from app.redaction import Masker
from app.runs.clock import SystemClock
from app.runs.execution import AgentRunner, AgentSettings
from app.runs.intake import Intake
from app.runs.model import RunId
from app.runs.policy import RunPolicy
from app.runs.ports import Dispatcher, Tracer
from app.runs.prompt import DEFAULT_SYSTEM_PROMPT
from app.runs.reconciler import Reconciler
from app.runs.stops import StopSignals
from app.runs.workflow import RunService
from app.slack.api import SlackFault
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.listeners import HttpAnswer, create_bolt_app, handle_http
from app.slack.socket_mode import open_socket_mode
from app.slack.verification import check_request
from app.store.sql import SqlRunStore, open_sqlite_store
from app.tracing.null import NullTracer
from app.web.health import Health
from app.web.hosting import serve
from app.web.metrics import Metrics
from app.web.routes import SlackHandler, WebParts, install_routes
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.registry import load_provider

SHUTDOWN_GRACE_S = 10.0
"""For runs that are about to end; the others are resumed by the next process."""
IDENTIFY_INTERVAL_S = 10.0

_log = get_logger(__name__)


class UnsupportedPythonError(Exception):
    """This Python and its SQLite cannot keep runs in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Parts that tests and the bench put in place of the real ones."""

    provider: SandboxProvider | None = None
    adapter: AgentAdapter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that is running, for whoever composed it."""

    web: WebParts
    intake: Intake
    store: SqlRunStore
    health: Health


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
        SandboxError: no sandbox can be made on this machine.
    """
    if settings.missing_for_serving:
        raise SettingsError("\n".join(settings.missing_for_serving))
    check_python()
    clock = SystemClock()
    masker = Masker(settings.secrets)
    configure_logging(fmt=settings.orion_log_format, level=settings.orion_log_level, masker=masker)
    async with AsyncExitStack() as stack:
        stack.enter_context(own_state_directory(settings.orion_state_dir))
        store = await stack.enter_async_context(open_sqlite_store(settings.database_path))
        tracer = await stack.enter_async_context(_open_tracer(settings, masker))
        broker = await stack.enter_async_context(open_broker(settings, settings.broker_socket))
        provider = await stack.enter_async_context(overrides.provider or create_local(settings))
        _log.info("sandbox.selected", provider=provider.name, finding=await provider.probe())
        slack = await stack.enter_async_context(open_slack(slack_options(settings)))

        policy = run_policy(settings)
        signals = StopSignals()
        dispatcher = _durable_dispatcher(settings.database_path, capacity=policy.capacity)
        runner = create_runner(
            settings, provider=provider, broker=broker, adapter=overrides.adapter
        )
        service = RunService(
            store=store,
            dispatcher=dispatcher,
            replies=slack.replies,
            reader=slack.reader,
            tracer=tracer,
            runner=runner,
            signals=signals,
            policy=policy,
            clock=clock,
            mask=masker.mask,
        )
        intake = Intake(
            dispatcher=dispatcher,
            store=store,
            signals=signals,
            tracer=tracer,
            policy=policy,
            clock=clock,
        )
        reconciler = Reconciler(
            store=store, dispatcher=dispatcher, service=service, policy=policy, clock=clock
        )
        health = _health(store=store, dispatcher=dispatcher, slack=slack, provider=provider)
        await dispatcher.start(service)
        stack.push_async_callback(_drain, dispatcher, health)
        await stack.enter_async_context(
            _background(
                signals.poll_forever(store, clock),
                reconciler.run_forever(),
                _identify_forever(slack),
                _prepare_quietly(runner),
            )
        )
        handler = await stack.enter_async_context(
            _open_intake(settings, slack=slack, intake=intake)
        )
        _log.info("service.started", state_dir=str(settings.orion_state_dir), sandbox=provider.name)
        yield Service(
            web=WebParts(
                slack=handler,
                health=health,
                metrics=Metrics(store=store, export_failures=export_failures),
                broker=broker.router(),
                ops_token=settings.orion_ops_token.get_secret_value()
                if settings.orion_ops_token
                else None,
                is_loopback=settings.orion_host in ("127.0.0.1", "::1", "localhost"),
            ),
            intake=intake,
            store=store,
            health=health,
        )
    _log.info("service.stopped")


def check_python() -> None:
    """Refuse a combination that silently runs a thread's messages out of order.

    From Python 3.12 on the engine asks SQLite for sub-second time, which SQLite knows since 3.42 only.

    Raises:
        UnsupportedPythonError
    """
    is_new_python = tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 12)
    if is_new_python and sqlite3.sqlite_version_info < (3, 42):
        raise UnsupportedPythonError(
            f"Python {platform.python_version()} with SQLite {sqlite3.sqlite_version}: "
            "use Python 3.11, or one that is built with SQLite 3.42 or later"
        )


def run_policy(settings: Settings) -> RunPolicy:
    """The core's part of the settings."""
    return RunPolicy(
        allowed_users=frozenset(settings.orion_allowed_users),
        allowed_channels=frozenset(settings.orion_allowed_channels),
        allow_external=settings.orion_allow_external,
        runs_per_user_hour=settings.orion_runs_per_user_hour,
        run_timeout_s=settings.orion_run_timeout_s,
        idle_timeout_s=settings.orion_idle_timeout_s,
        queue_timeout_s=settings.orion_queue_timeout_s,
        queue_limit=settings.orion_queue_limit,
        capacity=settings.orion_max_concurrent_runs,
        create_attempts=settings.orion_sandbox_create_attempts,
        announce_after_s=settings.orion_announce_after_s,
    )


def create_local(settings: Settings) -> SandboxProvider:
    """The local sandbox provider; nothing is touched before it is opened."""
    environment = host_environment()
    return load_provider("local")(
        state_dir=settings.orion_state_dir,
        isolation=settings.orion_local_isolation,
        ca_bundle=settings.orion_ca_bundle or default_ca_bundle(environment),
        host_env=environment,
    )


def create_runner(
    settings: Settings,
    *,
    provider: SandboxProvider,
    broker: MessagesBroker,
    adapter: AgentAdapter | None = None,
) -> AgentRunner:
    """What executes turns with the agent that the settings choose."""
    adapter = adapter or create_adapter(settings.orion_agent)
    prompt_file = settings.orion_system_prompt_file
    return AgentRunner(
        provider=provider,
        adapter=adapter,
        broker=broker,
        settings=AgentSettings(
            system_prompt=prompt_file.read_text() if prompt_file else DEFAULT_SYSTEM_PROMPT,
            model=settings.orion_model or adapter.default_model,
            max_output_tokens=settings.orion_max_output_tokens,
            max_turns=settings.orion_max_agent_turns,
            memory_bytes=settings.orion_sandbox_memory_mib * 1024 * 1024,
        ),
        policy=run_policy(settings),
    )


@asynccontextmanager
async def open_broker(settings: Settings, socket_path: Path) -> AsyncIterator[MessagesBroker]:
    """The model broker, listening on its unix socket."""
    socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    async with httpx.AsyncClient() as http:
        broker = MessagesBroker(
            upstream=_upstream(settings),
            signing_key=load_signing_key(settings.orion_state_dir / "broker.key"),
            socket_path=socket_path,
            http=http,
            clock=SystemClock(),
        )
        # Everyone may connect who can reach it: the state directory is closed to others, and sandboxes, whose user is
        # another one, see it through their own binding. What counts is the run token.
        async with serve(create_broker_app(broker), uds=socket_path, uds_mode=0o666):
            yield broker


def _upstream(settings: Settings) -> Upstream:
    """The gateway when its key is set, else the provider itself."""
    if settings.ai_gateway_api_key is not None:
        key = settings.ai_gateway_api_key.get_secret_value()
        return Upstream(base_url=GATEWAY_URL, key_headers={"authorization": f"Bearer {key}"})
    key = settings.anthropic_api_key.get_secret_value() if settings.anthropic_api_key else ""
    return Upstream(base_url=settings.anthropic_base_url, key_headers={"x-api-key": key})


@asynccontextmanager
async def _open_tracer(settings: Settings, masker: Masker) -> AsyncIterator[Tracer]:
    if settings.langfuse_public_key is None or settings.langfuse_secret_key is None:
        yield NullTracer()
        return
    from app.tracing.langfuse import open_langfuse_tracer  # noqa: PLC0415 - 0.9 s and 40 MB, for those who trace

    async with open_langfuse_tracer(
        public_key=settings.langfuse_public_key,
        secret_key=settings.langfuse_secret_key.get_secret_value(),
        base_url=settings.langfuse_base_url,
        trace_content=settings.orion_trace_content,
        masker=masker,
    ) as tracer:
        yield tracer


def _durable_dispatcher(path: Path, *, capacity: int) -> Dispatcher:
    from app.dispatch.durable import DurableDispatcher  # noqa: PLC0415 - 2 s of CPU; the CLI must stay quick

    return DurableDispatcher(path, capacity=capacity)


def slack_options(settings: Settings) -> SlackOptions:
    """The Slack room's part of the settings; the caller has checked that there is a token."""
    return SlackOptions(
        bot_token=settings.slack_bot_token or SecretStr(""),
        base_url=settings.slack_api_url,
        capacity=settings.orion_max_concurrent_runs,
    )


@asynccontextmanager
async def _open_intake(
    settings: Settings, *, slack: SlackConnection, intake: Intake
) -> AsyncIterator[SlackHandler | None]:
    """Slack's way in: the handler of the HTTP route, or (yielding None) a socket."""
    secret = (
        settings.slack_signing_secret.get_secret_value() if settings.slack_signing_secret else ""
    )
    bolt = create_bolt_app(
        signing_secret=secret,
        bot_token=slack_options(settings).bot_token.get_secret_value(),
        base_url=settings.slack_api_url,
        identity=slack.identity,
        intake=intake,
    )
    if settings.slack_app_token is not None:
        app_token = settings.slack_app_token.get_secret_value()
        async with open_socket_mode(bolt, app_token=app_token, base_url=settings.slack_api_url):
            _log.info("slack.connected", mode="socket")
            yield None
        return

    async def handle(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        rejection = check_request(
            headers=headers, body=body, signing_secret=secret, now=time.time()
        )
        if rejection is not None:
            _log.warning("event.rejected", status=rejection.status, reason=rejection.error)
            return HttpAnswer(
                status=rejection.status,
                headers={"content-type": "application/json"},
                body=json.dumps({"error": rejection.error}),
            )
        return await handle_http(bolt, headers=headers, body=body)

    yield handle


def _health(
    *, store: SqlRunStore, dispatcher: Dispatcher, slack: SlackConnection, provider: SandboxProvider
) -> Health:
    async def database() -> str:
        return f"{len(await store.unfinished())} unfinished runs"

    async def engine() -> str:
        await dispatcher.engine_states([RunId("probe")])
        return "answers"

    async def auth() -> str:
        return (await slack.identify()).bot_user_id

    async def sandbox() -> str:
        return f"{provider.name}: {await provider.probe()}"

    return Health(
        inside={"database": database, "engine": engine},
        outside={"slack": auth, "sandbox": sandbox},
        clock=SystemClock(),
    )


async def _drain(dispatcher: Dispatcher, health: Health) -> None:
    _log.info("service.draining", grace_s=SHUTDOWN_GRACE_S)
    health.is_draining = True
    await dispatcher.stop(grace_s=SHUTDOWN_GRACE_S)


@asynccontextmanager
async def _background(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Coroutines that go on while the block runs; a crash of one ends the service, as it should."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        yield
        for task in tasks:
            task.cancel()


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


async def _prepare_quietly(runner: AgentRunner) -> None:
    """Have the environment ready before the first question; a failure shows again, with its code, in that run."""
    started = time.monotonic()
    steps: list[str] = []
    try:
        await runner.prepare_environment(steps.append)
    except SandboxError as exc:
        _log.warning("environment.failed", code=exc.code, reason=str(exc))
    else:
        _log.info(
            "environment.ready",
            duration_s=round(time.monotonic() - started, 3),
            was="made" if len(steps) > 2 else "there",
        )


app = create_app()
"""For servers that import it, such as Vercel's; settings are read when its lifespan starts."""

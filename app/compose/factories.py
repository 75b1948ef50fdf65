"""Settings become parts: each adapter of the service, made from the settings it needs."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from agent_scripts.adapter import AgentAdapter
from agent_scripts.cli_agent import RELAY, RUN_TOKEN
from agent_scripts.registry import agent_names, create_adapter
from app import __version__
from app.brokerage.credentials import GitCredentials
from app.brokerage.github import GitHub
from app.brokerage.github_pulls import GitHubPulls
from app.brokerage.http import trusted
from app.compose.models import follow_up_rules, key_for_sandbox, needs_own_key
from app.compose.policy import host_lists, work_dir
from app.log import configure_logging
from app.pull_requests.records import PullRequestStore
from app.redaction import Masker
from app.runs.broker import ModelBroker
from app.runs.environment import Additions, AgentEnvironment, AgentSettings, base_prompt
from app.runs.executor import AgentRunner
from app.runs.model import SystemClock
from app.runs.options import RunOptions, unknown_word
from app.runs.policy import FollowUps, RunPolicy
from app.runs.ports import Dispatcher, RunPorts, Tracer
from app.runs.repository.checkout import Repositories
from app.runs.repository.preparation import Preparations
from app.runs.repository.tasks import RepositoryPolicy
from app.runs.repository.watch import Empty, PullRequestWatch
from app.runs.request import RunRequest
from app.runs.selection import find_problem
from app.runs.session import Session, SessionStore
from app.runs.warm_pool import PoolFigures
from app.runs.workspace import Workspaces
from app.settings.group import SettingsError
from app.settings.orion_toml import ORION_TOML
from app.settings.settings import Settings
from app.slack.blocks import ReplyStyle, no_link
from app.slack.connection import SlackConnection, SlackOptions
from app.slack.streams import LiveAnswers
from app.slack.transport import EntryOptions
from app.store.runs import SqlRunStore
from app.tracing.null import NullTracer
from app.web.health import Health, require_space
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import (
    Capability,
    SandboxLimits,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

MIB = 1024 * 1024


def channel_options(settings: Settings, policy: RunPolicy) -> Mapping[str, RunOptions]:
    """Returns what `orion.toml` says of channels, by their ids; no sandboxes where agents work in a developer's directory.

    Raises:
        SettingsError: it names what is not set up.
    """
    lines = [
        f"{ORION_TOML}: channels.{name}: {problem}"
        for name, options in settings.toml.channels.items()
        if (problem := _channel_problem(options, policy))
    ]
    has_repository = settings.toml.rules or any(one.repo for one in settings.toml.channels.values())
    if has_repository and work_dir(settings):
        lines.append(f"{ORION_TOML}: no repository can be had where agents work in ORION_MOUNT_DIR")
    if lines:
        raise SettingsError("\n".join(lines))
    return settings.toml.channels


def _channel_problem(options: RunOptions, policy: RunPolicy) -> str:
    if policy.sandboxes and options.sandbox and options.sandbox not in policy.sandboxes:
        return unknown_word("sandbox", options.sandbox, policy.sandboxes)
    return find_problem(options, policy.agents)


def create_runner(
    settings: Settings,
    *,
    provider: SandboxProvider,
    broker: ModelBroker,
    workspaces: Workspaces,
    policy: RunPolicy,
    adapter: AgentAdapter | None = None,
    repositories: Repositories | None = None,
) -> AgentRunner:
    """Returns what executes turns with that agent, or with the one that the settings choose."""
    adapter = adapter or create_adapter(settings.agents.default)
    is_default = adapter.name == settings.agents.default or adapter.name not in agent_names()
    agent = settings.agents.default if is_default else adapter.name
    return AgentRunner(
        provider=provider,
        adapter=adapter,
        broker=broker,
        workspaces=workspaces,
        settings=AgentSettings(
            system_prompt=_own_prompt(settings),
            model=adapter.model_id(settings.model_of(agent) or adapter.spec.default_model),
            own_key_protocol=adapter.spec.protocol or "",
            needs_own_key=needs_own_key(settings, agent),
            max_output_tokens=settings.agents.max_output_tokens,
            max_turns=settings.agents.max_turns,
            sandbox_limits=sandbox_limits(settings, adapter),
            extra_arguments=tuple(shlex.split(settings.agents.arguments)) if is_default else (),
            mcp_config=settings.mcp_servers.for_sandbox(relay=RELAY, token=RUN_TOKEN),
            asking_mcp_config=settings.mcp_servers.for_sandbox(
                relay=RELAY, token=RUN_TOKEN, asks_people=True
            ),
            vendor_key=key_for_sandbox(settings, agent),
            additions=settings.toml.additions.get(adapter.name, Additions()),
            work_dir=work_dir(settings),
        ),
        policy=policy,
        repositories=repositories,
    )


def _own_prompt(settings: Settings) -> str | None:
    file = settings.agents.system_prompt_file
    return file.read_text() if file else None


def create_repositories(
    settings: Settings,
    *,
    sessions: SessionStore,
    mask: Callable[[str], str],
    credentials: GitCredentials,
    preparations: Preparations | None = None,
    pull_requests: PullRequestStore | None = None,
) -> Repositories:
    """Returns what brings threads their repositories. `pull_requests`: keeps those to look after."""
    return Repositories(
        policy=repository_policy(settings),
        sessions=sessions,
        host=GitHub(credentials=credentials, api_url=settings.repositories.github_api_url),
        mask=mask,
        preparations=preparations,
        pull_requests=pull_requests,
    )


def create_pull_watch(
    settings: Settings,
    ports: RunPorts,
    *,
    leads: Callable[[], Awaitable[bool]],
    accept: Callable[[RunRequest], Awaitable[bool]],
    empty: Empty,
    credentials: GitCredentials,
) -> PullRequestWatch:
    """Returns what looks after pull requests; the rest as for `PullRequestWatch`."""
    return PullRequestWatch(
        ports,
        host=GitHubPulls(
            credentials=credentials,
            api_url=settings.repositories.github_api_url,
            mask=ports.mask,
            called="".join(settings.repositories.git_name.split()),
        ),
        leads=leads,
        accept=accept,
        empty=empty,
        rounds=settings.repositories.pull_request_rounds,
    )


def repository_policy(settings: Settings) -> RepositoryPolicy:
    """Returns what the settings say of work in repositories."""
    return RepositoryPolicy(
        github_url=settings.repositories.github_url,
        git_name=settings.repositories.git_name,
        git_email=settings.repositories.git_email,
        pull_requests=settings.repositories.pull_requests,
        acts_as_person=settings.repositories.github_identity == "person",
        max_bytes=settings.sandbox.disk_mib * MIB,
        init=settings.toml.repositories,
        setup=settings.toml.setups,
    )


def create_preparations(
    settings: Settings, provider: SandboxProvider, *, mask: Callable[[str], str]
) -> Preparations:
    """Returns what prepares workspaces at that provider."""
    policy = repository_policy(settings)
    return Preparations(provider=provider, policy=policy, hosts=host_lists(settings), mask=mask)


def create_environment(
    settings: Settings, provider: SandboxProvider, *, agent: str = ""
) -> AgentEnvironment:
    """Returns the environment of that agent, or of the one that the settings choose."""
    adapter = create_adapter(agent or settings.agents.default)
    return AgentEnvironment(
        provider, adapter, settings.toml.additions.get(adapter.name, Additions())
    )


def session_spec(settings: Settings, session: Session, *, environment: SnapshotRef) -> SandboxSpec:
    """Returns a sandbox as the session's next run would make it, for a person: with no network, and no way to the broker."""
    return SandboxSpec(
        snapshot_id=environment.id,
        workspace_id=SnapshotId(session.snapshot_slug) if session.snapshot_slug else None,
        work_dir=work_dir(settings) if session.mount_dir else None,
        labels={
            "orion.managed": "true",
            "orion.session": session.id,
            "orion.agent": session.agent,
        },
        limits=sandbox_limits(settings, create_adapter(session.agent or settings.agents.default)),
    )


def pool_size(settings: Settings, *, is_billed: bool) -> int:
    """Returns how many prepared sandboxes shall wait at a provider; none for a mounted directory, which may change meanwhile."""
    if settings.mount is not None:
        return 0
    if settings.sandbox.warm_pool_size is None:
        return 0 if is_billed else 1
    return settings.sandbox.warm_pool_size


def sandbox_limits(settings: Settings, adapter: AgentAdapter) -> SandboxLimits:
    """Returns the limits of every sandbox in which the agent works."""
    return SandboxLimits(
        memory_bytes=settings.sandbox.memory_mib * MIB,
        reserved_bytes=adapter.spec.reserved_bytes,
    )


@asynccontextmanager
async def open_tracer(settings: Settings, masker: Masker) -> AsyncIterator[Tracer]:
    """Opens Langfuse when its keys are set, else a tracer that tells nobody."""
    if settings.langfuse.public_key is None or settings.langfuse.secret_key is None:
        yield NullTracer()
        return
    from app.tracing.langfuse import open_langfuse_tracer  # noqa: PLC0415 - 0.9 s and 40 MB, for those who trace

    async with open_langfuse_tracer(
        public_key=settings.langfuse.public_key,
        secret_key=settings.langfuse.secret_key.get_secret_value(),
        base_url=settings.langfuse.base_url,
        trace_content=settings.langfuse.trace_content,
        environment=settings.langfuse.environment,
        release=settings.langfuse.release or __version__,
        sample_rate=settings.langfuse.sample_rate,
        has_links=settings.langfuse.trace_links,
        system_prompt=base_prompt(_own_prompt(settings)),
        masker=masker,
        verify=trusted(),
    ) as tracer:
        yield tracer


def operators_page(settings: Settings) -> str:
    """Returns the address of the operators' page; empty = there is none, or only on this machine."""
    service = settings.service
    return f"{service.public_url}/ops" if service.public_url and service.ops_token else ""


def slack_options(settings: Settings, tracer: Tracer | None = None) -> SlackOptions:
    """Returns the Slack package's part of the settings; the caller has checked that there is a token. `tracer`: whose pages may be linked to."""
    return SlackOptions(
        bot_token=settings.slack.bot_token or SecretStr(""),
        base_url=settings.slack.api_url,
        live=LiveAnswers(
            dm=settings.slack.live_answers_dm, channel=settings.slack.live_answers_channel
        ),
        style=ReplyStyle(
            capacity=settings.limits.max_concurrent_runs,
            takes_keys=settings.models.own_keys_secret is not None,
            trace_link=tracer.link if tracer and settings.langfuse.trace_links else no_link,
            operators_page=operators_page(settings),
        ),
    )


def entry_options(settings: Settings) -> EntryOptions:
    """Returns how events come in."""
    return EntryOptions(
        signing_secret=settings.slack.signing_secret or SecretStr(""),
        bot_token=slack_options(settings).bot_token,
        base_url=settings.slack.api_url,
        app_token=settings.slack.app_token,
        allowed_bots=settings.access.allowed_bots,
        follows_up=any(rule is not FollowUps.NEVER for rule in follow_up_rules(settings)),
    )


def create_health(
    *,
    store: SqlRunStore,
    dispatcher: Dispatcher,
    slack: SlackConnection,
    provider: SandboxProvider | None,
    pools: Callable[[], Sequence[PoolFigures]],
    state_dir: Path,
) -> Health:
    """Returns what `/readyz` asks. `provider`: None = this process makes no sandboxes."""

    async def database() -> str:
        await asyncio.to_thread(require_space, state_dir)
        return f"{len(await store.unfinished())} unfinished runs"

    async def engine() -> str:
        return dispatcher.probe()

    async def auth() -> str:
        return (await slack.identify()).bot_user_id

    async def hearing() -> str:
        return slack.hearing.probe()

    async def sandbox() -> str:
        if provider is None:
            return "made by other processes"
        if Capability.BILLED in provider.capabilities:  # each try would cost
            return f"{provider.name}: sandboxes there: {len(await provider.list())}"
        return f"{provider.name}: {await provider.probe()}"

    async def pool() -> str:
        return "; ".join(str(one) for one in pools()) or "off"

    return Health(
        inside={"database": database, "engine": engine, "pool": pool, "hearing": hearing},
        outside={"slack": auth, "sandbox": sandbox},
        clock=SystemClock(),
    )


def start_logging(settings: Settings, *, level: str = "") -> Masker:
    """Starts the log; returns what masks every secret that Orion knows, as in the log. `level`: instead of the settings'."""
    masker = Masker(settings.secrets)
    configure_logging(
        fmt=settings.service.log_format,
        level=level or settings.service.log_level,
        masker=masker,
        is_alone=settings.service.is_function,
    )
    return masker

"""Settings become parts: each adapter of the service, made from the settings it needs."""

import platform
import shlex
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from agent_scripts.adapter import AgentAdapter
from agent_scripts.registry import agent_names, create_adapter
from app.additions import load_additions, load_channels, load_repositories
from app.agents import usable_agents
from app.brokerage.github import GitHub
from app.brokers import git_remotes
from app.config import Settings, SettingsError
from app.model_access import asks_by_itself, key_for_sandbox, needs_own_key
from app.orion_toml import ORION_TOML
from app.providers import usable_words
from app.redaction import Masker
from app.runs.broker_ports import ModelBroker
from app.runs.choice import find_problem
from app.runs.clock import SystemClock
from app.runs.environment import Additions, AgentEnvironment
from app.runs.execution import AgentRunner
from app.runs.model import RunId
from app.runs.option_values import unknown_word
from app.runs.options import Wishes
from app.runs.policy import RunPolicy
from app.runs.pool_figures import PoolFigures
from app.runs.ports import Dispatcher, Tracer
from app.runs.prompt import DEFAULT_SYSTEM_PROMPT
from app.runs.repositories import Repositories, RepositoryPolicy
from app.runs.session import Session, SessionStore
from app.runs.starting import AgentSettings
from app.runs.workspaces import Workspaces
from app.slack.connection import SlackConnection, SlackOptions
from app.slack.entry import EntryOptions
from app.store.sql import SqlRunStore
from app.tracing.null import NullTracer
from app.web.health import Health
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import (
    Capability,
    SandboxLimits,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

MIB = 1024 * 1024


class UnsupportedPythonError(Exception):
    """This Python and its SQLite cannot keep runs in order."""


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
        # In one directory agents work one after the other, and nothing of it is kept elsewhere.
        capacity=1 if work_dir(settings) else settings.orion_max_concurrent_runs,
        create_attempts=settings.orion_sandbox_create_attempts,
        max_disk_bytes=settings.orion_sandbox_disk_mib * MIB,
        session_keep_s=0 if work_dir(settings) else settings.orion_session_keep_s,
        announce_after_s=settings.orion_announce_after_s,
        sandboxes=usable_words(settings),
        agents=usable_agents(settings),
        is_agent_set="orion_agent" in settings.model_fields_set,
        is_provider_set=settings.orion_sandbox != "auto",
    )


def channel_wishes(policy: RunPolicy) -> Mapping[str, Wishes]:
    """What `orion.toml` says of channels, by their ids; no sandboxes where agents work in a developer's directory.

    Raises:
        SettingsError: it is wrong, or names what is not set up.
    """
    channels = load_channels()
    lines = [
        f"{ORION_TOML}: channels.{name}: {problem}"
        for name, wishes in channels.items()
        if (problem := _channel_problem(wishes, policy))
    ]
    if lines:
        raise SettingsError("\n".join(lines))
    return channels


def _channel_problem(wishes: Wishes, policy: RunPolicy) -> str:
    if policy.sandboxes and wishes.sandbox and wishes.sandbox not in policy.sandboxes:
        return unknown_word("sandbox", wishes.sandbox, policy.sandboxes)
    return find_problem(wishes, policy.agents)


def create_runner(
    settings: Settings,
    *,
    provider: SandboxProvider,
    broker: ModelBroker,
    workspaces: Workspaces,
    adapter: AgentAdapter | None = None,
    repositories: Repositories | None = None,
) -> AgentRunner:
    """What executes turns with that agent, or with the one that the settings choose.

    Raises:
        SettingsError: `orion.toml` is wrong.
    """
    adapter = adapter or create_adapter(settings.orion_agent)
    is_default = adapter.name == settings.orion_agent or adapter.name not in agent_names()
    agent = settings.orion_agent if is_default else adapter.name
    prompt_file = settings.orion_system_prompt_file
    return AgentRunner(
        provider=provider,
        adapter=adapter,
        broker=broker,
        workspaces=workspaces,
        settings=AgentSettings(
            system_prompt=prompt_file.read_text() if prompt_file else DEFAULT_SYSTEM_PROMPT,
            model=adapter.model_id(settings.model_of(agent) or adapter.default_model),
            own_key_protocol="" if asks_by_itself(agent) else adapter.protocol.value,
            needs_own_key=needs_own_key(settings, agent),
            max_output_tokens=settings.orion_max_output_tokens,
            max_turns=settings.orion_max_agent_turns,
            sandbox_limits=sandbox_limits(settings, adapter),
            extra_arguments=tuple(shlex.split(settings.orion_agent_arguments))
            if is_default
            else (),
            mcp_config=settings.mcp_servers.for_sandbox(),
            vendor_key=key_for_sandbox(settings, agent),
            additions=load_additions().get(adapter.name, Additions()),
            work_dir=work_dir(settings),
        ),
        policy=run_policy(settings),
        repositories=repositories,
    )


def create_repositories(
    settings: Settings, *, sessions: SessionStore, mask: Callable[[str], str]
) -> Repositories:
    """What brings threads their repositories.

    Raises:
        SettingsError: `orion.toml` is wrong.
    """
    return Repositories(
        policy=RepositoryPolicy(
            github_url=settings.orion_github_url,
            git_name=settings.orion_git_name,
            git_email=settings.orion_git_email,
            pull_requests=settings.orion_pull_requests,
            max_bytes=settings.orion_sandbox_disk_mib * MIB,
            init=load_repositories(),
        ),
        sessions=sessions,
        host=GitHub(remotes=git_remotes(settings), api_url=settings.orion_github_api_url),
        mask=mask,
    )


def create_environment(
    settings: Settings, provider: SandboxProvider, *, agent: str = ""
) -> AgentEnvironment:
    """The environment of that agent, or of the one that the settings choose."""
    adapter = create_adapter(agent or settings.orion_agent)
    return AgentEnvironment(provider, adapter, load_additions().get(adapter.name, Additions()))


def session_spec(settings: Settings, session: Session, *, environment: SnapshotRef) -> SandboxSpec:
    """A sandbox as the session's next run would make it, for a person: with no network, and no door to the broker."""
    return SandboxSpec(
        snapshot_id=environment.id,
        workspace_id=SnapshotId(session.snapshot_slug) if session.snapshot_slug else None,
        work_dir=work_dir(settings) if session.mount_dir else None,
        labels={
            "orion.managed": "true",
            "orion.session": session.id,
            "orion.agent": session.agent,
        },
        limits=sandbox_limits(settings, create_adapter(session.agent or settings.orion_agent)),
    )


def work_dir(settings: Settings) -> str | None:
    """The developer's directory, if agents work in it itself."""
    mount = settings.mount
    return str(mount.directory) if mount is not None and not mount.is_overlay else None


def pool_size(settings: Settings, *, is_remote: bool) -> int:
    """How many prepared sandboxes shall wait at a provider; none for a mounted directory, which may change meanwhile."""
    if settings.mount is not None:
        return 0
    if settings.orion_warm_pool_size is None:
        return 0 if is_remote else 1
    return settings.orion_warm_pool_size


def sandbox_limits(settings: Settings, adapter: AgentAdapter) -> SandboxLimits:
    """Of every sandbox in which the agent works."""
    return SandboxLimits(
        memory_bytes=settings.orion_sandbox_memory_mib * MIB, reserved_bytes=adapter.reserved_bytes
    )


@asynccontextmanager
async def open_tracer(settings: Settings, masker: Masker) -> AsyncIterator[Tracer]:
    """Langfuse when its keys are set, else a tracer that tells nobody."""
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


def create_dispatcher(path: Path, *, capacity: int) -> Dispatcher:
    """The durable dispatcher on a database file."""
    from app.dispatch.durable import DurableDispatcher  # noqa: PLC0415 - 2 s of CPU; the CLI must stay quick

    return DurableDispatcher(path, capacity=capacity)


def slack_options(settings: Settings) -> SlackOptions:
    """The Slack room's part of the settings; the caller has checked that there is a token."""
    return SlackOptions(
        bot_token=settings.slack_bot_token or SecretStr(""),
        base_url=settings.slack_api_url,
        capacity=settings.orion_max_concurrent_runs,
        takes_keys=settings.orion_own_keys_secret is not None,
    )


def entry_options(settings: Settings) -> EntryOptions:
    """How events come in."""
    return EntryOptions(
        signing_secret=settings.slack_signing_secret or SecretStr(""),
        bot_token=slack_options(settings).bot_token,
        base_url=settings.slack_api_url,
        app_token=settings.slack_app_token,
    )


def create_health(
    *,
    store: SqlRunStore,
    dispatcher: Dispatcher,
    slack: SlackConnection,
    provider: SandboxProvider,
    pools: Callable[[], Sequence[PoolFigures]],
) -> Health:
    """What `/readyz` asks."""

    async def database() -> str:
        return f"{len(await store.unfinished())} unfinished runs"

    async def engine() -> str:
        await dispatcher.engine_states([RunId("probe")])
        return "answers"

    async def auth() -> str:
        return (await slack.identify()).bot_user_id

    async def sandbox() -> str:
        if Capability.REMOTE in provider.capabilities:  # a try would cost money each time
            return f"{provider.name}: sandboxes there: {len(await provider.list())}"
        return f"{provider.name}: {await provider.probe()}"

    async def pool() -> str:
        return "; ".join(str(one) for one in pools()) or "off"

    return Health(
        inside={"database": database, "engine": engine, "pool": pool},
        outside={"slack": auth, "sandbox": sandbox},
        clock=SystemClock(),
    )

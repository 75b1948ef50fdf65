"""The core's part of the settings. Apart from what makes parts, as a terminal needs the numbers alone: Slack's and FastAPI's libraries take half of its start."""

from functools import partial
from typing import Any

from app.compose.models import usable_agents
from app.compose.providers import usable_words
from app.egress.hosts import HostLists
from app.permissions.rules import Permissions
from app.runs.policy import RunPolicy
from app.runs.repository.names import repository_key
from app.settings.settings import Settings

MIB = 1024 * 1024


def run_policy(settings: Settings) -> RunPolicy:
    """Returns the core's part of the settings."""
    own: dict[str, Any] = {}
    groups = (
        settings.access,
        settings.follow_ups,
        settings.limits,
        settings.files,
        settings.delivery,
    )
    for group in groups:
        own |= vars(group)
    if work_dir(settings):
        own["session_keep_s"] = 0  # nothing of that directory is kept elsewhere
    return RunPolicy(
        **own,
        # In one directory agents work one after the other.
        capacity=1 if work_dir(settings) else settings.limits.max_concurrent_runs,
        mount=settings.mount,
        instructions=settings.toml.instructions,
        rules=settings.toml.rules,
        permissions=create_permissions(settings),
        approvals=settings.toml.approvals,
        asks_people=settings.toml.asks_people,
        channels_asking=settings.toml.channels_asking,
        hosts=host_lists(settings),
        max_disk_bytes=settings.sandbox.disk_mib * MIB,
        sandboxes=usable_words(settings),
        agents=usable_agents(settings),
        channel_follow_ups=settings.toml.channel_follow_ups,
        is_agent_set="default" in settings.agents.model_fields_set,
        is_provider_set=settings.sandbox.provider != "auto",
    )


def create_permissions(settings: Settings) -> Permissions:
    """Returns who may do what; of groups those members that the file names."""
    return Permissions(
        settings.toml.permissions,
        groups=settings.toml.groups,
        operators=settings.access.operators,
    )


def host_lists(settings: Settings) -> HostLists:
    """Returns the lists with the hosts of their sets, as far as the tools were asked."""
    toml = settings.toml
    key_of = partial(repository_key, github_url=settings.repositories.github_url)
    return HostLists(
        everywhere=settings.entries(settings.sandbox.egress_hosts),
        channels={name: settings.entries(items) for name, items in toml.channel_hosts.items()},
        repositories={
            key_of(name): settings.entries(items) for name, items in toml.repository_hosts.items()
        },
        key_of=key_of,
    )


def work_dir(settings: Settings) -> str | None:
    """Returns the developer's directory, if agents work in it itself."""
    mount = settings.mount
    return str(mount.directory) if mount is not None and not mount.is_overlay else None

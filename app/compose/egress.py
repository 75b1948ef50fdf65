"""The hosts that sandboxes may reach: what the operator's lists are, where they cannot be kept, and a try from inside."""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent_scripts.reaching import HostTry, parse_tries, reach_command
from agent_scripts.registry import agent_spec
from app.approvals.rules import DeedKind
from app.compose.brokers import broker_for, open_broker
from app.compose.providers import usable_words
from app.egress.addresses import LookUp, look_up
from app.egress.hosts import TLS_PORT, HostEntry, HostSet
from app.egress.sets import learn_sets
from app.runs.broker import GrantHooks, ModelGrant
from app.runs.request import RunId
from app.runs.sandboxes import agent_paths
from app.runs.session import SessionId
from app.settings.group import SettingsError
from app.settings.settings import Settings
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import open_sandbox
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.registry import provider_spec
from sandbox_runtime.types import Capability, SandboxSpec

CANARIES = ("example.com", "example.net", "example.org")
"""Exist, and are nobody's. Source: RFC 2606, 3."""
TRY_TIMEOUT_S = 60.0


async def learn_host_sets(settings: Settings) -> Settings:
    """Returns the settings with the hosts of the sets that they name; a tool that cannot be asked is logged, and has none.

    Raises:
        SettingsError: a provider that is set up cannot keep to the lists; names each entry.
    """
    sets = {item for items in settings.host_lists for item in items if isinstance(item, HostSet)}
    if sets:
        settings = replace(settings, host_sets=await learn_sets(sets))
    if problems := list(find_host_problems(settings)):
        raise SettingsError("\n".join(problems))
    return settings


def find_host_problems(settings: Settings) -> Iterator[str]:
    """Yields what providers that are set up cannot do as the lists say, a sentence each."""
    listed = dict.fromkeys(
        entry for items in settings.host_lists for entry in settings.entries(items)
    )
    asked = next((rule for rule in settings.toml.approvals if rule.kind is DeedKind.HOST), None)
    for name in sorted(set(usable_words(settings).values())):
        if asked is not None and provider_spec(name).is_cloud:
            yield (
                f"orion.toml: approvals: {asked.words} cannot be kept as long as {name} is set up: "
                f"the network of its sandboxes asks nobody"
            )
        for entry in listed:
            if not provider_spec(name).tells_ports and entry.port != TLS_PORT:
                yield (
                    f"{entry} cannot be on a list of hosts as long as {name} is set up: "
                    f"its sandboxes reach hosts by TLS alone, and their network knows no ports"
                )


async def try_hosts(
    settings: Settings,
    provider: SandboxProvider,
    entries: Iterable[HostEntry],
    *,
    look_up: LookUp = look_up,
) -> tuple[Sequence[HostTry], Sequence[HostTry]]:
    """Tries from inside a new sandbox, which may reach these hosts, to do so.

    Returns:
        What became of a host that is on no list, and must not be reached: by its name, and, where it can be looked up, at its
        address by the name of one that is listed. And what became of each of these but those with a star.

    Raises:
        SandboxError: there is no sandbox to try it from.
    """
    listed = tuple(entries)
    session_id = SessionId(f"check-{uuid.uuid4().hex}")
    canary = next(
        name for name in CANARIES if not any(entry.covers(name, TLS_PORT) for entry in listed)
    )
    tried = [f"{entry.name}:{entry.port}" for entry in listed if not entry.is_wildcard]
    canaries = [f"{canary}:{TLS_PORT}", *await _by_listed_name(canary, listed, look_up)]
    hosts = [*canaries, *dict.fromkeys(tried)]
    is_remote = Capability.REMOTE in provider.capabilities
    directory = settings.service.state_dir / f"check-{os.getpid()}"
    try:
        async with open_broker(settings, directory) as sockets:
            protocol = agent_spec(settings.agents.default).protocol
            broker = broker_for(settings, sockets, protocol, is_remote=is_remote)
            grant = ModelGrant(
                run_id=RunId(session_id),
                models=(),
                expires_at=datetime.now(UTC) + timedelta(hours=1),
                session_id=session_id,
                hosts=listed,
            )
            network = broker.endpoint_for(session_id).network(listed, is_open=False)
            spec = SandboxSpec(network=network)
            async with (
                broker.open_grant(grant, GrantHooks(on_call=lambda _: None)),
                open_sandbox(provider, spec) as sandbox,
            ):
                command = reach_command(hosts, agent_paths(sandbox.paths), sandbox.paths.broker)
                await sandbox.write_files({file.path: file.data for file in command.files})
                done = await sandbox.exec(command.argv, timeout_s=TRY_TIMEOUT_S)
                found = _parsed(done.text)
                return found[: len(canaries)], found[len(canaries) :]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _by_listed_name(
    canary: str, listed: Sequence[HostEntry], look_up: LookUp
) -> Sequence[str]:
    """Returns how to try whether a listed name in TLS leads to an address that is not that host's; nothing where nobody knows one."""
    name = next((one.name for one in listed if one.port == TLS_PORT and not one.is_wildcard), None)
    if name is None:
        return ()
    try:
        address, *_ = await look_up(f"{canary}.", TLS_PORT)
    except OSError:
        return ()
    return (f"{name}:{TLS_PORT}@{address}",)


def _parsed(text: str) -> Sequence[HostTry]:
    try:
        return parse_tries(text)
    except ValueError as exc:
        raise SandboxError(SandboxErrorCode.SETUP_FAILED, str(exc)) from exc

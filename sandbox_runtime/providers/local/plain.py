"""No isolation: commands are plain processes of the service's user, on the host's file system and network.

For trusted code, by explicit choice only. What holds: resource limits (except the number of processes, which the kernel
counts per user), a scrubbed environment, and that everything a command starts dies with it, unless it empties its own
environment. What does not: nothing stops a command from reading the host's files or using its network, so a closed or
brokered network is a request and not a wall.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command
from sandbox_runtime.host import HostView, ca_env, search_path
from sandbox_runtime.providers.local.limits import limit_arguments, yielding
from sandbox_runtime.providers.local.place import Isolation, Place, argv_of
from sandbox_runtime.providers.local.processes import HostCommand
from sandbox_runtime.providers.local.tree import mark_of
from sandbox_runtime.sandbox_user import cache_env
from sandbox_runtime.types import OpenNetwork, SandboxPaths, endpoint_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainIsolation(Isolation):
    """`isolation="none"`."""

    prlimit: str
    setpriv: str
    host: HostView
    ca_bundle: Path | None

    @override
    def paths(self, place: Place) -> SandboxPaths:
        broker = place.directory / "broker"
        return SandboxPaths(
            work=str(place.work),
            home=str(place.home),
            run=str(place.run),
            environment=str(place.environment),
            broker=endpoint_of(place.network) or str(broker),
        )

    @override
    def base_env(self, place: Place) -> Mapping[str, str]:
        env = {"HOME": str(place.home), "PATH": search_path(), "TMPDIR": str(place.tmp)}
        env |= cache_env(str(place.tmp) if place.environment_writable else None)
        if self.ca_bundle is not None:
            env |= ca_env(self.ca_bundle)
        if isinstance(place.network, OpenNetwork):
            env |= self.host.env
        return env

    @override
    def command(self, place: Place, command: Command) -> HostCommand:
        mark = f"{mark_of(place.directory.name)}-{secrets.token_hex(16)}"
        limits = limit_arguments(self.prlimit, place.limits, count_processes=False)
        # The whole tree dies with its exec; this covers the command itself when the service is killed.
        inside = argv_of(command, str(place.work))
        argv = yielding([self.setpriv, "--pdeathsig", "KILL", *limits, *inside])
        name, _, value = mark.partition("=")
        return HostCommand(
            argv=lambda _memory, _status: argv,
            env={**command.env, name: value},
            cwd=str(place.work),
            namespaces=0,
            mark=mark,
        )

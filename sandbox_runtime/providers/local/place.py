"""Where one local sandbox lives on the host, and what one command in it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox_runtime.command_sandbox import Command
from sandbox_runtime.providers.local.processes import HostCommand
from sandbox_runtime.types import Network, SandboxLimits, SandboxPaths

# Changing directory is the command's own first step, so that a missing one is its failure and not the sandbox's.
_IN_DIRECTORY = 'cd -- "$0" || exit 126; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One sandbox on the host."""

    directory: Path
    """Holds work, home, run and tmp."""
    environment_id: str | None
    environment: Path
    environment_writable: bool
    network: Network
    limits: SandboxLimits
    host_uid: int | None
    """Whose processes and files they are on the host, when the service is root; None = the service's own user."""
    mounted: Path | None = None
    """A directory of the host's that is the work directory; it is neither filled, saved nor removed."""

    @property
    def work(self) -> Path:
        return self.mounted or self.directory / "work"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def tmp(self) -> Path:
        """Shared by the sandbox's commands as their /tmp, never saved."""
        return self.directory / "tmp"


class Isolation(Protocol):
    """How commands of this machine's sandboxes are kept apart."""

    def paths(self, place: Place) -> SandboxPaths:
        """Paths as processes inside see them."""
        ...

    def command(self, place: Place, command: Command) -> HostCommand: ...

    def base_env(self, place: Place) -> Mapping[str, str]:
        """What every command finds in its environment, before the caller's own."""
        ...


def argv_of(command: Command, work: str) -> list[str]:
    """The command in its directory, from `work` on, as seen inside."""
    if command.cwd is None:
        return list(command.argv)
    return ["/bin/sh", "-c", _IN_DIRECTORY, command.directory(work), *command.argv]

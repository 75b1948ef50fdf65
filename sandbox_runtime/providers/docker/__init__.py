"""Sandboxes as hardened containers of a Docker engine: what is known of them without the client."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_runtime.provider import ProviderSetting, ProviderSpec

SPEC = ProviderSpec(
    name="docker",
    provider=f"{__name__}.provider:DockerProvider",
    create=f"{__name__}.provider:create",
    fix="start the engine, or set ORION_SANDBOX=local",
    settings=(
        ProviderSetting(
            name="DOCKER_HOST",
            description="The engine of this machine, for docker.",
            default="unix:///var/run/docker.sock",
        ),
        ProviderSetting(
            name="ORION_DOCKER_IMAGE",
            description="A base image that exists, instead of the one that Orion builds.",
        ),
        ProviderSetting(
            name="ORION_DOCKER_RUNTIME",
            description="Of the engine's runtimes, such as runsc (gVisor); default: its own.",
        ),
    ),
    package="aiodocker",
    auto="probe",
)


_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
"""Also a part of image names. Source: Docker documentation, "docker image tag", read 2026-11."""
_HOST = re.compile(r"(?:unix:///|(?:tcp|http|https)://).+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Raises: ValueError: `name` or `docker_host` is not of its form."""

    name: str = "orion"
    """Namespace on the engine: lower-case letters, digits, and `.`, `_`, `-` between them. Each service needs its own:
    listing, sweeping and snapshots see only what carries it."""
    docker_host: str = "unix:///var/run/docker.sock"
    """As DOCKER_HOST says it. It must be the engine of this machine: the broker's socket and the CA bundle are mounted."""
    image: str | None = None
    """An image to use as base instead of the one built from the Dockerfile here. It needs `python3` (3.9 or later), `sh`,
    the coreutils, a user `agent` (10001:10001), and its directories /work, /home/agent, /orion and /env."""
    base: str | None = None
    """What the Dockerfile starts from (`ARG BASE`); None = what it says itself."""
    git_name: str = "Orion"
    git_email: str = "orion@localhost"
    runtime: str | None = None
    """Of the engine's configured runtimes, `runsc` (gVisor) say; None = the engine's default."""
    cpus: float = 4.0
    """Processors of one sandbox; fewer when the machine has fewer."""
    ca_bundle: Path | None = None
    """Mounted into every sandbox, with the variables by which common programs find it."""
    host_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The service's environment: what package installers need of it is passed into open sandboxes."""
    max_age_s: float = 24 * 3600.0
    """A sandbox that nobody destroyed ends itself then, whatever became of the service."""
    owner: str = ""
    """The name of whoever makes sandboxes with it, as `SandboxProvider.sweep` is told who lives; empty = this process."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"not a name for Docker objects: {self.name!r}")
        if not _HOST.fullmatch(self.docker_host):
            raise ValueError(f"not an address of a Docker engine: {self.docker_host!r}")

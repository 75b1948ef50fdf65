"""Sandboxes as hardened containers of a Docker engine."""

from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.docker.settings import DockerSettings

__all__ = ["DockerProvider", "DockerSettings"]

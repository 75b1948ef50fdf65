"""What an open provider has."""

from dataclasses import dataclass

from sandbox_runtime.providers.docker.base import BaseImage
from sandbox_runtime.providers.docker.engine import Engine
from sandbox_runtime.providers.docker.snapshots import Snapshots


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    engine: Engine
    base: BaseImage
    snapshots: Snapshots

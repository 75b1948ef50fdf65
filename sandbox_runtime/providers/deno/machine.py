"""What a sandbox consists of, and what it keeps of itself."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from sandbox_runtime.providers.deno.inside_scripts import BOOT_SOURCE
from sandbox_runtime.providers.deno.labels import SandboxLabels
from sandbox_runtime.providers.deno.processes import kill_user
from sandbox_runtime.providers.deno.remote import run_script
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.slugs import Slug
from sandbox_runtime.types import SandboxLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a sandbox keeps of itself, for a process that attaches to it."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    broker: str = ""
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    def encode(self) -> dict[str, object]:
        return {"env": dict(self.env), "broker": self.broker, "limits": asdict(self.limits)}

    @classmethod
    def decode(cls, text: bytes) -> "Record":
        """Raises: ValueError."""
        try:
            found = json.loads(text)
            return cls(
                env=found["env"], broker=found["broker"], limits=SandboxLimits(**found["limits"])
            )
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not a sandbox's record: {text[:100]!r}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a sandbox consists of."""

    id: str
    labels: SandboxLabels
    volume: Slug
    copied: Slug | None = None
    """A further volume, from which its workspace was copied."""
    expires_at: datetime | None = None
    """None = not known, because another process made it."""


async def prepare_disk(connection: RpcConnection, labels: SandboxLabels) -> None:
    """Nothing of the user's runs any more, and its disk is ready to be saved.

    Raises:
        SandboxError: UNAVAILABLE.
    """
    await kill_user(connection)
    config = json.dumps({"writable": labels.environment_writable})
    await run_script(connection, BOOT_SOURCE, "stop", config)

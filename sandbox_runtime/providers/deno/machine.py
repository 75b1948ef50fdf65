"""What is inside a sandbox: where things are, what its commands find in their environment, and what it keeps of itself."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.host import UID, user_env
from sandbox_runtime.providers.deno.client import map_errors
from sandbox_runtime.providers.deno.connection import run_script
from sandbox_runtime.providers.deno.labels import SandboxLabels, Slug
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.inside_scripts import KILL_SOURCE, script_source
from sandbox_runtime.types import (
    BrokeredNetwork,
    SandboxLimits,
    SandboxPaths,
    SandboxSpec,
    endpoint_of,
)

SESSION, COPY = "/session", "/copy"
"""Where volumes are mounted. One volume has one place, so that all that belongs to a session is below it."""
WORK, HOME, RUN, ENVIRONMENT = f"{SESSION}/work", f"{SESSION}/home", f"{SESSION}/run", "/env"
_RECORD = f"{SESSION}/sandbox.json"
BROKER_KEY = "ORION_BROKER_KEY"
_NO_BROKER = "http://127.0.0.1:9"
"""Where nothing answers (the discard service)."""
_BOOT_SOURCE = script_source("sandbox_runtime.providers.deno.inside.boot")
_KILL_S = 10.0


def sandbox_paths(broker: str) -> SandboxPaths:
    """Returns the paths as processes inside see them; `broker` is a URL, or empty."""
    return SandboxPaths(
        work=WORK, home=HOME, run=RUN, environment=ENVIRONMENT, broker=broker or _NO_BROKER
    )


def sandbox_env(env: Mapping[str, str], *, writable: bool) -> dict[str, str]:
    """Returns the whole environment of a command, but for its own variables."""
    own = user_env(HOME, scratch=RUN if writable else None)
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **own, **env}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Holds what a sandbox keeps of itself, for a process that attaches to it."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    broker: str = ""
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    @classmethod
    def decode(cls, text: bytes) -> "Record":
        """Reads it back. Raises: ValueError."""
        try:
            found = json.loads(text)
            return cls(
                env=found["env"], broker=found["broker"], limits=SandboxLimits(**found["limits"])
            )
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not a sandbox's record: {text[:100]!r}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Holds what a sandbox consists of."""

    id: str
    labels: SandboxLabels
    volume: Slug
    copied: Slug | None = None
    """A further volume, from which its workspace was copied."""
    expires_at: datetime | None = None
    """None = not known, because another process made it."""


async def start_machine(rpc: RpcConnection, spec: SandboxSpec, *, fill: str) -> Record:
    """Makes a booted machine a sandbox; `fill` says where its workspace comes from, as inside/boot.py knows it.

    Raises:
        SandboxError: UNAVAILABLE, CREATE_FAILED.
    """
    network = spec.network
    env = dict(spec.env)
    if isinstance(network, BrokeredNetwork) and network.headers:
        async with map_errors("cannot make a sandbox", otherwise=SandboxErrorCode.CREATE_FAILED):
            env[BROKER_KEY] = await rpc.variable(BROKER_KEY)
    record = Record(env=env, broker=endpoint_of(network), limits=spec.limits)
    config = {
        "user": UID,
        "fill": fill,
        "writable": spec.environment_writable,
        "record": asdict(record),
    }
    await run_script(rpc, _BOOT_SOURCE, "start", json.dumps(config))
    return record


async def read_record(rpc: RpcConnection) -> Record:
    """Returns what a sandbox keeps of itself.

    Raises:
        SandboxError: UNAVAILABLE.
        ValueError: it keeps nothing of the kind.
    """
    return Record.decode(await run_script(rpc, f"print(open({_RECORD!r}).read())"))


async def prepare_disk(rpc: RpcConnection, labels: SandboxLabels) -> None:
    """Ends all that runs as the user, and leaves the disk ready to be saved. Raises: SandboxError: UNAVAILABLE."""
    await run_script(rpc, KILL_SOURCE, str(UID), timeout_s=_KILL_S)
    config = json.dumps({"writable": labels.environment_writable})
    await run_script(rpc, _BOOT_SOURCE, "stop", config)

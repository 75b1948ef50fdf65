"""How a sandbox becomes a container: the hardening, what is mounted, and its environment. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sandbox_runtime.host import UID, HostView, ca_env, egress_env, user_env
from sandbox_runtime.providers.inside_scripts import script_source
from sandbox_runtime.providers.seccomp import engine_profile
from sandbox_runtime.types import (
    BrokeredNetwork,
    OpenNetwork,
    SandboxLimits,
    SandboxPaths,
    SandboxSpec,
    endpoint_of,
)

USER = f"{UID}:{UID}"
WORK, HOME, RUN, ENVIRONMENT, BROKER = "/work", "/home/agent", "/orion", "/env", "/broker"
_TMP = "/tmp"  # noqa: S108  # the sandbox's own
_CA_BUNDLE = PurePosixPath("/etc/ssl/ca-bundle.pem")
SAVED = (WORK, HOME)
"""What a snapshot of a workspace holds."""
_OWN = (WORK, HOME, RUN, ENVIRONMENT, BROKER, _TMP)

_MIB = 1024 * 1024
_SHARED_MEMORY_BYTES = 256 * _MIB
_OVERHEAD_PROCESSES = 2
"""PID 1 and the runner of one command, which the sandbox's limit shall not count."""
_CPU_SHARES = 102
"""A tenth of the default 1024: busy sandboxes must not silence the service. Source: docker run, --cpu-shares."""

PYTHON = ("python3", "-I", "-S", "-c")
_INIT_SOURCE = script_source("sandbox_runtime.providers.docker.inside.init")
_MIRROR_SOURCE = script_source("sandbox_runtime.providers.docker.inside.mirror")
_MIRROR_PROCESSES = 8
_MIRROR_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
"""To read all files of a sandbox, and to make them as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """Holds what every container of a provider gets, whatever is to run in it."""

    runtime: str | None
    cpus: float
    ca_bundle: Path | None
    view: HostView = field(repr=False)
    max_age_s: float
    has_seccomp: bool
    """Whether the engine can filter system calls; one that cannot refuses a profile."""


def sandbox_paths(broker: str) -> SandboxPaths:
    """Returns paths as processes inside see them; `broker` as `broker_path` gave it."""
    return SandboxPaths(
        work=WORK,
        home=HOME,
        run=RUN,
        environment=ENVIRONMENT,
        broker=broker or f"{BROKER}/broker.sock",
    )


def broker_path(spec: SandboxSpec) -> str:
    """Returns where the broker's socket is inside; empty when there is none."""
    endpoint = endpoint_of(spec.network)
    return f"{BROKER}/{PurePosixPath(endpoint).name}" if endpoint else ""


def sandbox_env(spec: SandboxSpec, hosting: Hosting) -> dict[str, str]:
    """Returns what every command finds in its environment beside the image's own."""
    env = user_env(HOME, scratch=_TMP if spec.environment_writable else None)
    if hosting.ca_bundle is not None:
        env |= ca_env(Path(_CA_BUNDLE))
    if isinstance(spec.network, BrokeredNetwork):
        env |= egress_env()
    if isinstance(spec.network, OpenNetwork):
        env |= hosting.view.env
    return env | dict(spec.env)


def container_config(
    spec: SandboxSpec,
    hosting: Hosting,
    *,
    image: str,
    env: Mapping[str, str],
    labels: Mapping[str, str],
    copy: str | None = None,
) -> dict[str, object]:
    """Returns the body of a request to create it. `copy`: a container whose workspace it takes over.

    Source: Docker Engine API v1.41, ContainerCreate.
    """
    return {
        "Image": image,
        "User": USER,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Entrypoint": [*PYTHON, _INIT_SOURCE, str(hosting.max_age_s)],
        "Cmd": [],
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": dict(labels),
        "HostConfig": _host_config(spec, hosting, labels=labels, copy=copy),
    }


def _host_config(
    spec: SandboxSpec, hosting: Hosting, *, labels: Mapping[str, str], copy: str | None
) -> dict[str, object]:
    limits = spec.limits
    own = (RUN,) if copy else (*SAVED, RUN)
    return {
        "CapDrop": ["ALL"],
        "SecurityOpt": [
            "no-new-privileges:true",
            *([f"seccomp={engine_profile()}"] if hosting.has_seccomp else []),
        ],
        "ReadonlyRootfs": not spec.environment_writable,
        "NetworkMode": "bridge" if isinstance(spec.network, OpenNetwork) else "none",
        "IpcMode": "private",
        "PidsLimit": limits.max_processes + _OVERHEAD_PROCESSES,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # both together: no swap beside it
        "NanoCpus": int(hosting.cpus * 1e9),
        "CpuShares": _CPU_SHARES,
        "ShmSize": min(_SHARED_MEMORY_BYTES, limits.memory_bytes),
        "Tmpfs": {_TMP: f"rw,exec,nosuid,nodev,mode=1777,size={_tmp_bytes(limits)}"},
        "Mounts": [*volumes(own, labels), *_binds(spec, hosting)],
        "VolumesFrom": [copy] if copy else [],
        # The engine removes it, and its volumes, as soon as PID 1 ends: nothing is left of one that nobody destroys.
        "AutoRemove": True,
        "LogConfig": {"Type": "none"},  # PID 1 says nothing
        **({"Runtime": hosting.runtime} if hosting.runtime else {}),
    }


def mirror_config(
    image: str, mounts: Mapping[str, str], *, labels: Mapping[str, str], memory_bytes: int
) -> dict[str, object]:
    """Returns the body of a request to create a container that makes the workspace in its own files what the volumes hold, and ends.

    `mounts`: the names of a sandbox's volumes, by where they are there.
    """
    seen = {path: f"{_TMP}{path}" for path in SAVED}
    arguments = [part for path in SAVED for part in (seen[path], path)]
    return {
        "Image": image,
        "User": "0:0",
        "Entrypoint": [*PYTHON, _MIRROR_SOURCE, *arguments],
        "Cmd": [],
        "WorkingDir": "/",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": dict(labels),
        "HostConfig": {
            "CapDrop": ["ALL"],
            "CapAdd": list(_MIRROR_CAPABILITIES),
            "SecurityOpt": ["no-new-privileges:true"],
            "NetworkMode": "none",
            "PidsLimit": _MIRROR_PROCESSES,
            "Memory": memory_bytes,
            "MemorySwap": memory_bytes,
            "CpuShares": _CPU_SHARES,
            "LogConfig": {"Type": "none"},
            # So that where the volumes are mounted leaves nothing in the image.
            "Tmpfs": {_TMP: "rw,noexec,nosuid,nodev,size=65536"},
            "Mounts": [
                {"Type": "volume", "Source": mounts[path], "Target": seen[path], "ReadOnly": True}
                for path in SAVED
            ],
        },
    }


def _tmp_bytes(limits: SandboxLimits) -> int:
    """Returns the size of /tmp, which counts as memory: past this a write fails before the memory's limit kills."""
    return limits.memory_bytes // 2


def volumes(targets: Iterable[str], labels: Mapping[str, str]) -> list[dict[str, object]]:
    """Returns volumes without names, so that they go with their container. They start as the image's directories, owner and all."""
    return [
        {"Type": "volume", "Target": target, "VolumeOptions": {"Labels": dict(labels)}}
        for target in targets
    ]


def _binds(spec: SandboxSpec, hosting: Hosting) -> list[dict[str, object]]:
    binds: dict[str, str] = {}
    if isinstance(spec.network, OpenNetwork):
        for path in hosting.view.files:
            if not any(path.is_relative_to(own) for own in _OWN):
                binds[str(path)] = str(path)
    if hosting.ca_bundle is not None:
        binds[str(_CA_BUNDLE)] = str(hosting.ca_bundle)
    if endpoint := endpoint_of(spec.network):
        # The directory, not the socket: a broker that restarts makes a new socket in it.
        binds[BROKER] = str(Path(endpoint).parent)
    return [
        {
            "Type": "bind",
            "Source": source,
            "Target": target,
            "ReadOnly": True,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for target, source in binds.items()
    ]

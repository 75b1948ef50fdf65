"""Orion over Docker for tests: an environment that is prepared once per engine, and what a service leaves on it."""

import asyncio
import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_scripts.adapter import AgentPaths
from agent_scripts.registry import create_adapter
from tests.docker_image import ensure_image
from tests.e2e.harness import Stage, World, open_orion
from tests.e2e.orion_process import OrionProcess, run_cli, scrubbed_environment
from tests.e2e.prepared import PREPARE_TIMEOUT_S

COMMAND_TIMEOUT_S = 120.0


def docker(*arguments: str, stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """What a command of the engine's own client prints; it must succeed."""
    argv = ["docker", *arguments]
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={
            "PATH": os.defpath + ":/usr/local/bin",
            "HOME": "/nonexistent",
            "DOCKER_BUILDKIT": "0",
        },
    )
    assert done.returncode == 0, f"docker {arguments}: {done.stderr}"
    return done.stdout


def namespace_of(state_dir: Path) -> str:
    """As `app.compose.providers` names what a service with this state directory has on the engine."""
    return f"s{hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]}"


def objects_of(namespace: str, *kind: str) -> list[str]:
    """`objects_of(…, "ps", "--all")`, `objects_of(…, "volume", "ls")`, …: ids, each once."""
    ids = docker(*kind, "--quiet", "--filter", f"label=orion.name={namespace}").split()
    return list(dict.fromkeys(ids))


def prepared_image(agent: str = "anthropic") -> str:
    """An image with the agent's environment, made by `orion verify` unless the engine has it; never removed."""
    image = ensure_image()
    cache = Path.home() / ".cache" / "orion-tests"
    cache.mkdir(parents=True, exist_ok=True)
    paths = AgentPaths(work="/work", home="/home", run="/run", environment="/env")
    state_dir = cache / f"docker-{create_adapter(agent).environment(paths).name}-{image[-16:]}"
    with (cache / "docker-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _environments(namespace_of(state_dir))
        if not found:
            environment = scrubbed_environment() | {
                "ORION_STATE_DIR": str(state_dir),
                "ORION_SANDBOX": "docker",
                "ORION_DOCKER_IMAGE": image,
                "ORION_AGENT": agent,
            }
            code, output = asyncio.run(
                run_cli("verify", environment=environment, timeout_s=PREPARE_TIMEOUT_S)
            )
            assert code == 0, output
            found = _environments(namespace_of(state_dir))
    (reference,) = found
    return reference


def _environments(namespace: str) -> list[str]:
    """References of the snapshots in a namespace; a tag that is no bare id belongs to one of them."""
    listed = docker("images", f"orion-snapshot/{namespace}", "--format", "{{.Repository}}:{{.Tag}}")
    return [reference for reference in listed.split() if reference.rpartition(":")[2].isalnum()]


def lend_environment(prepared: str, namespace: str) -> None:
    """Make the prepared environment one of that namespace: a label, no layer of its own size."""
    snapshot_id = prepared.rpartition(":")[2]
    docker(
        *("build", "--quiet", "--tag", f"orion-snapshot/{namespace}:{snapshot_id}", "-"),
        stdin=f"FROM {prepared}\nLABEL orion.name={namespace}\n",
    )


def inspect(kind: str, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Everything the engine knows of these objects."""
    return list(json.loads(docker(kind, "inspect", *names))) if names else []


def remove_images(namespace: str) -> None:
    images = objects_of(namespace, "images", "--all")
    if images:
        docker("rmi", "--force", *images)


@asynccontextmanager
async def open_docker_orion(
    world: World,
    state_dir: Path,
    prepared: str,
    process: type[OrionProcess] = OrionProcess,
    /,
    **settings: str,
) -> AsyncIterator[Stage]:
    """Orion with Docker sandboxes and a prepared environment; at the end no container and no volume may be left."""
    namespace = namespace_of(state_dir)
    nothing = state_dir.with_suffix(".nothing")
    for name in ("environments", "snapshots", "names"):
        (nothing / name).mkdir(parents=True)
    await asyncio.to_thread(lend_environment, prepared, namespace)
    try:
        async with open_orion(
            world,
            state_dir,
            nothing,
            process,
            ORION_SANDBOX="docker",
            ORION_DOCKER_IMAGE=await asyncio.to_thread(ensure_image),
            **settings,
        ) as stage:
            yield stage
            await stage.orion.terminate()
        assert await asyncio.to_thread(objects_of, namespace, "ps", "--all") == []
        assert await asyncio.to_thread(objects_of, namespace, "volume", "ls") == []
    finally:
        await asyncio.to_thread(remove_images, namespace)

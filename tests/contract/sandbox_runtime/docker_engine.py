"""What tests ask the sandbox and the engine directly."""

import json
import subprocess

from sandbox_runtime import (
    Sandbox,
)
from sandbox_runtime.providers.docker import DockerSettings


async def sh(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(["sh", "-c", script], timeout_s=20)).text


def inspect(name: str) -> dict[str, object]:
    argv = ["docker", "inspect", name]
    found = subprocess.run(argv, capture_output=True, check=True).stdout
    return dict(json.loads(found)[0])


def count(docker_settings: DockerSettings, *kind: str) -> int:
    argv = ["docker", *kind, "--quiet", "--filter", f"label=orion.name={docker_settings.name}"]
    return len(subprocess.run(argv, capture_output=True, check=True).stdout.split())

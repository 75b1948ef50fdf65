"""The image of Orion, built from this checkout on a base made without a registry, and a service in a container of it."""

import asyncio
import secrets
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.docker_image import ensure_image
from tests.e2e.docker_world import docker, inspect
from tests.e2e.orion_process import STOP_TIMEOUT_S, OrionProcess
from tests.forking import REPOSITORY

BASE = (
    *("bash", "ca-certificates", "coreutils", "dash", "findutils", "grep", "libc-bin"),
    *("python3", "python3-venv", "sed"),
)
IMAGE = "orion-test"
USER_ID = 10002
SOCKET = Path("/var/run/docker.sock")
HARDENED = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108 - its own
    *("--security-opt", "no-new-privileges", "--init"),
)
_SOCKET_GROUP = str(SOCKET.stat().st_gid) if SOCKET.exists() else ""
_SETTINGS = ("SLACK_", "ORION_", "LANGFUSE_", "ANTHROPIC_", "OPENAI_", "GEMINI_")
BUILD_TIMEOUT_S = 400.0


def build_image() -> str:
    """The name of Orion's image. The engine keeps its layers: the second time it takes a second, unless the code has changed."""
    docker(
        *("build", "--quiet", "--network", "host", "--tag", IMAGE),
        *("--build-arg", f"BASE={ensure_image(BASE, wanted=())}", str(REPOSITORY)),
        timeout_s=BUILD_TIMEOUT_S,
    )
    return IMAGE


class OrionContainer(OrionProcess):
    """`docker run` of the image in the foreground, which passes signals and the exit code on, with the engine of this machine."""

    container: str = ""

    @override
    async def launch(self) -> None:
        self.container = f"orion-test-{secrets.token_hex(4)}"
        self.state_dir.mkdir(exist_ok=True)
        for path in (self.state_dir, *self.state_dir.rglob("*")):
            shutil.chown(path, USER_ID, USER_ID)
        names = [name for name in self.environment if name.startswith(_SETTINGS)]
        # It must have the same path outside: what is in it is mounted into sandboxes.
        mounts = (f"{self.state_dir}:{self.state_dir}", f"{SOCKET}:{SOCKET}")
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("docker", "run", "--rm", "--name", self.container, "--network", "host"),
                *HARDENED,
                *("--group-add", _SOCKET_GROUP),
                *(word for mount in mounts for word in ("--volume", mount)),
                *(word for name in names for word in ("--env", name)),
                *(IMAGE, *self.program[2:]),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def inspect(self) -> Mapping[str, Any]:
        (found,) = inspect("container", [self.container])
        return found

    async def until_healthy(self, *, timeout_s: float) -> float:
        """Returns the seconds from the container's start to its first good check, by the engine's clock."""
        async with asyncio.timeout(timeout_s):
            while True:
                state = (await asyncio.to_thread(self.inspect))["State"]
                if state["Health"]["Status"] == "healthy":
                    ends = [
                        check["End"] for check in state["Health"]["Log"] if check["ExitCode"] == 0
                    ]
                    healthy_at = datetime.fromisoformat(ends[0])
                    return (healthy_at - datetime.fromisoformat(state["StartedAt"])).total_seconds()
                await asyncio.sleep(0.1)

    async def stop(self) -> int:
        """`docker stop`, with the grace that `docs/operate.md` asks for; returns the exit code."""
        await asyncio.to_thread(docker, "stop", "--time", "45", self.container)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await self._living.wait()

    @override
    async def reap(self) -> None:
        await super().reap()
        left = docker("ps", "--all", "--quiet", "--filter", f"name={self.container}").split()
        if left:
            docker("rm", "--force", *left)

    @override
    async def kill9(self) -> None:
        await asyncio.to_thread(docker, "kill", self.container)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await self._living.wait()

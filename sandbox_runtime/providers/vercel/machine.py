"""One running microVM: the pinned session, which never boots another one by itself, and what is done as root in it."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import vercel.sandbox as sdk

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.inside_scripts import RUN_SOURCE, script_source
from sandbox_runtime.providers.vercel.client import map_errors
from sandbox_runtime.types import SandboxLimits

WORK, HOME, RUN, ENVIRONMENT = "/work", "/home/agent", "/orion", "/env"
"""Also in inside/boot.py."""
_BOOT_SOURCE = script_source("sandbox_runtime.providers.vercel.inside.boot")
_BOOT_TIMEOUT_S, _SAVE_TIMEOUT_S = 60.0, 120.0
_GONE = SandboxErrorCode.UNAVAILABLE
_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Holds what a machine remembers of its sandbox, for whoever attaches to it."""

    broker: str
    """URL; empty without one."""
    environment: str
    """Snapshot id of the environment in it, or of the base."""
    is_writable: bool
    """An environment is prepared in it."""
    limits: SandboxLimits
    env: Mapping[str, str] = field(repr=False)
    """Of every command: the image's own and the specification's."""

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> "About":
        return cls(
            broker=found["broker"],
            environment=found["environment"],
            is_writable=found["is_writable"],
            limits=SandboxLimits(**found["limits"]),
            env=found["env"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A session of a sandbox that runs."""

    handle: sdk.Sandbox
    session: sdk.SandboxRuntimeSession

    @classmethod
    def of(cls, handle: sdk.Sandbox) -> "Machine":
        """Returns the session that runs. Raises: SandboxError: NOT_FOUND when there is none."""
        session = handle.current_session
        if session is None or handle.status is not sdk.SandboxStatus.RUNNING:
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"sandbox {handle.name} does not run")
        return cls(handle=handle, session=session)

    async def boot(self, about: About) -> dict[str, str]:
        """Makes it ready for commands; returns the environment that its image gives them."""
        task = {
            "do": "boot",
            "run": RUN_SOURCE,
            "about": asdict(about),
            "writable": about.is_writable,
        }
        return self._parse(await self._run(task, timeout_s=_BOOT_TIMEOUT_S))[1]

    async def about(self) -> tuple[About, dict[str, str]]:
        """Returns what `boot` was told, and the image's environment. Raises: SandboxError: NOT_FOUND when nobody of ours booted it."""
        task = {
            "do": "about",
            "run": RUN_SOURCE,
        }  # an earlier version's runner reads other requests
        return self._parse(await self._run(task, timeout_s=_BOOT_TIMEOUT_S))

    def _parse(self, said: str) -> tuple[About, dict[str, str]]:
        try:
            found = json.loads(said)
            return About.decode(found["about"]), dict(found["env"])
        except (ValueError, KeyError, TypeError) as exc:
            raise SandboxError(
                SandboxErrorCode.NOT_FOUND, f"sandbox {self.handle.name} is not one of ours"
            ) from exc

    async def prepare_to_save(self) -> int:
        """Leaves only what a snapshot is for; returns its size in bytes."""
        return int(await self._run({"do": "save"}, timeout_s=_SAVE_TIMEOUT_S))

    async def pack(self, path: str) -> None:
        """Packs the workspace into an archive that the API can read."""
        await self._run({"do": "pack", "path": path}, timeout_s=_SAVE_TIMEOUT_S)

    async def unpack(self, path: str) -> None:
        """Puts an archive's files in the place of the workspace, and removes the archive."""
        await self._run({"do": "unpack", "path": path}, timeout_s=_SAVE_TIMEOUT_S)

    async def _run(self, task: Mapping[str, object], *, timeout_s: float) -> str:
        doing = f"cannot {task['do']} a sandbox"
        argv = ["-I", "-S", "-c", _BOOT_SOURCE, _encoded(task), _BOOT_SOURCE]
        async with map_errors(doing, timeout_s=timeout_s, otherwise=_GONE, missing=_GONE):
            done = await self.session.run_process("python3", argv, cwd="/", capture_output=True)
        if done.returncode != 0:
            reason = (done.stderr or "").strip()[-_ERROR_CHARS:] or f"exit code {done.returncode}"
            raise SandboxError(_GONE, f"{doing}: {reason}")
        return done.stdout or ""


def _encoded(task: Mapping[str, object]) -> str:
    """Returns a task that is not to be read at a glance in lists of processes; the variables in it are no secrets to the machine."""
    return base64.b64encode(json.dumps(task).encode()).decode("ascii")

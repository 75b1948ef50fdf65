"""How long a sandbox still lives, as the platform says."""

from datetime import UTC, datetime, timedelta

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.deno.console import Console
from sandbox_runtime.providers.deno.machine import Machine
from sandbox_runtime.providers.deno.settings import MAX_LIFETIME_S

_SLACK_S = 2.0
"""By which what the platform grants may differ from what was asked for."""


class Lifetime:
    """Of one sandbox."""

    def __init__(self, console: Console, machine: Machine) -> None:
        self._console = console
        self._id = machine.id
        self.expires_at = machine.expires_at

    async def extend(self, lifetime_s: float) -> None:
        """`Sandbox.extend`, without its check of a value that makes no sense."""
        if lifetime_s > MAX_LIFETIME_S:
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"a Deno sandbox lives at most {MAX_LIFETIME_S:g} s from now, not {lifetime_s:g}",
            )
        wanted = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        if self.expires_at is not None and self.expires_at >= wanted:
            return
        try:
            self.expires_at = await self._console.extend(self._id, lifetime_s)
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND:
                raise SandboxError(SandboxErrorCode.UNAVAILABLE, str(exc)) from exc
            raise
        if self.expires_at < wanted - timedelta(seconds=_SLACK_S):
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"sandbox {self._id} ends at {self.expires_at:%H:%M:%S} UTC, whatever is asked for",
            )

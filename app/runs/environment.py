"""The environment of the agent: made once, found by every run."""

import time

from agent_scripts.adapter import EnvironmentRecipe
from app.log import get_logger
from app.runs.attempt import Attempt
from sandbox_runtime.environments import ensure_environment
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SnapshotRef

ENVIRONMENT_RETRIES = 2
"""For a package index that answers badly; each command on its own."""

_log = get_logger(__name__)


class AgentEnvironment:
    """What a recipe makes, in one provider."""

    def __init__(self, provider: SandboxProvider, recipe: EnvironmentRecipe) -> None:
        self._provider = provider
        self._recipe = recipe

    @property
    def name(self) -> str:
        """Changes when a pin does."""
        return self._recipe.name

    async def prepare(self) -> SnapshotRef:
        """It, made on first use; concurrent callers share one preparation.

        Raises:
            SandboxError: SETUP_FAILED and others; it can be tried again.
        """
        started = time.monotonic()
        steps: list[str] = []

        def note(step: str) -> None:
            steps.append(step)
            _log.debug("environment.step", environment=self._recipe.name, step=step)

        try:
            snapshot = await ensure_environment(
                self._provider,
                name=self._recipe.name,
                files={file.path: file.data for file in self._recipe.files},
                commands=self._recipe.commands,
                retries=ENVIRONMENT_RETRIES,
                progress=note,
            )
        except SandboxError as exc:
            _log.warning(
                "environment.failed", environment=self._recipe.name, code=exc.code, reason=str(exc)
            )
            raise
        if "exists" not in steps:
            duration_s = round(time.monotonic() - started, 3)
            _log.info("environment.ready", environment=self._recipe.name, duration_s=duration_s)
        return snapshot

    async def restore(self, attempt: Attempt) -> SnapshotRef:
        """It, for a run, which shows and traces whether it had to be made."""
        snapshot = await self._provider.find_snapshot(self._recipe.name)
        with attempt.trace.step("restore-environment" if snapshot else "install-sdk") as step:
            step.set(environment=self._recipe.name)
            if snapshot is None:
                attempt.enter("Setting up the agent (first use)")
                _log.info("environment.preparing", environment=self._recipe.name)
                snapshot = await self.prepare()
            return snapshot

"""What an earlier process left of a run in its sandbox."""

from dataclasses import dataclass, replace

from agent_scripts.adapter import AgentPaths
from agent_scripts.supervision import events_path
from app.runs.model import Run
from sandbox_runtime.provider import Sandbox

LOOK_TIMEOUT_S = 10.0
ANEW = "-anew"
"""Ends the run directory of an agent that was started once more within its attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAgent:
    """An agent that was started, and may still be at work."""

    paths: AgentPaths
    repository: str
    """Of the file watch."""


def run_directory(paths: AgentPaths, run: Run, *, attempt: int) -> str:
    """Each attempt's own: the sandbox may have served earlier ones."""
    return f"{paths.run}/{run.id}-{attempt}"


def repository_in(directory: str) -> str:
    """Where the file watch of an attempt keeps its trees."""
    return f"{directory}/changes.git"


async def find_left_agent(sandbox: Sandbox, paths: AgentPaths, run: Run) -> LeftAgent | None:
    """The agent that was started last for this run; None when none was.

    Raises:
        SandboxError: UNAVAILABLE, EXEC_TIMEOUT.
    """
    for attempt in range(run.attempt - 1, 0, -1):
        directory = run_directory(paths, run, attempt=attempt)
        for start in (f"{directory}{ANEW}", directory):
            started = replace(paths, run=start)
            test = ["test", "-s", events_path(started)]
            if (await sandbox.exec(test, timeout_s=LOOK_TIMEOUT_S)).exit_code == 0:
                return LeftAgent(paths=started, repository=repository_in(directory))
    return None

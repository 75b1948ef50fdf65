"""Where things of an agent are in its sandbox."""

from agent_scripts.adapter import AgentPaths
from sandbox_runtime.types import SandboxPaths


def agent_paths(paths: SandboxPaths) -> AgentPaths:
    """For an agent whose start has no directory of its own yet."""
    return AgentPaths(
        work=paths.work, home=paths.home, run=paths.run, environment=paths.environment
    )

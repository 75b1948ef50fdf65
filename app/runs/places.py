"""Where things of an agent are in its sandbox, and how one that waits is told from others."""

from agent_scripts.adapter import AgentPaths
from sandbox_runtime.types import SandboxPaths

POOL_LABEL = "orion.pool"
"""Of sandboxes that were made to wait for a run; it stays when one is taken."""


def agent_paths(paths: SandboxPaths) -> AgentPaths:
    """For an agent whose start has no directory of its own yet."""
    return AgentPaths(
        work=paths.work, home=paths.home, run=paths.run, environment=paths.environment
    )

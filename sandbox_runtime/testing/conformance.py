"""What every provider must do, as checks without a test framework: run each fact against each provider.

for fact in FACTS:                      # and ISOLATION_FACTS, for providers that isolate
    await check_fact(fact, provider)    # raises AssertionError when it does not hold
"""

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.testing.expectations import Fact, expect_code
from sandbox_runtime.testing.facts_exec import EXEC_FACTS
from sandbox_runtime.testing.facts_files import FILE_FACTS
from sandbox_runtime.testing.facts_isolation import ISOLATION_FACTS
from sandbox_runtime.testing.facts_lifecycle import LIFECYCLE_FACTS
from sandbox_runtime.testing.facts_mount import MOUNT_FACTS
from sandbox_runtime.testing.facts_terminal import TERMINAL_FACTS
from sandbox_runtime.testing.facts_tree import TREE_FACTS

__all__ = ["FACTS", "ISOLATION_FACTS", "REMOTE_ISOLATION_FACTS", "Fact", "check_fact"]

FACTS: tuple[Fact, ...] = (
    *EXEC_FACTS,
    *FILE_FACTS,
    *TREE_FACTS,
    *LIFECYCLE_FACTS,
    *MOUNT_FACTS,
    *TERMINAL_FACTS,
)


REMOTE_ISOLATION_FACTS: tuple[Fact, ...] = tuple(
    fact for fact in ISOLATION_FACTS if fact.name != "broker_is_reached"
)
"""With Capability.REMOTE: no socket of this machine can be reached from elsewhere. Each such provider proves it by a URL."""


async def check_fact(fact: Fact, provider: SandboxProvider) -> None:
    """Check it; a provider that lacks the capability must say UNSUPPORTED instead."""
    if fact.needs is None or fact.needs in provider.capabilities:
        await fact.check(provider)
    else:
        with expect_code(SandboxErrorCode.UNSUPPORTED):
            await fact.check(provider)

"""What every provider must do, as checks without a test framework: run each fact against each provider.

for fact in FACTS:                      # and ISOLATION_FACTS, for providers that isolate
    await check_fact(fact, provider)    # raises AssertionError when it does not hold
"""

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.testing.expectations import Fact, expect_code
from sandbox_runtime.testing.facts_attach import ATTACH_CHECKS, attach_facts
from sandbox_runtime.testing.facts_exec import EXEC_FACTS, TERMINAL_FACTS
from sandbox_runtime.testing.facts_files import FILE_FACTS, MOUNT_FACTS
from sandbox_runtime.testing.facts_isolation import ISOLATION_FACTS
from sandbox_runtime.testing.facts_lifecycle import LIFECYCLE_FACTS
from sandbox_runtime.testing.facts_tree import TREE_FACTS

__all__ = [
    "ATTACH_CHECKS",
    "FACTS",
    "ISOLATION_FACTS",
    "NOT_OF_REMOTES",
    "REMOTE_ISOLATION_FACTS",
    "Fact",
    "attach_facts",
    "check_fact",
]

FACTS: tuple[Fact, ...] = (
    *EXEC_FACTS,
    *FILE_FACTS,
    *TREE_FACTS,
    *LIFECYCLE_FACTS,
    *MOUNT_FACTS,
    *TERMINAL_FACTS,
)


NOT_OF_REMOTES = {
    "broker_is_reached": "by a URL instead",
    "no_other_kinds_of_sockets": "its own kernel's business",
}
"""Facts that say nothing of a provider with Capability.REMOTE, and why: no socket of this machine can be reached from there,
so each such provider proves by a URL what it reaches.
"""

REMOTE_ISOLATION_FACTS: tuple[Fact, ...] = tuple(
    fact for fact in ISOLATION_FACTS if fact.name not in NOT_OF_REMOTES
)


async def check_fact(fact: Fact, provider: SandboxProvider) -> None:
    """Checks a fact; a provider that lacks the capability must say UNSUPPORTED instead."""
    if fact.needs is None or fact.needs in provider.capabilities:
        await fact.check(provider)
    else:
        with expect_code(SandboxErrorCode.UNSUPPORTED):
            await fact.check(provider)

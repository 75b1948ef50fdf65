"""Facts that each change is tested with where each takes a container or an emulated machine, or nothing is isolated."""

from collections.abc import Sequence
from typing import Final

from _pytest.mark import ParameterSet

from sandbox_runtime.testing.conformance import Fact
from tests.long import long_but

REPRESENTATIVES: Final = frozenset(
    (
        *("exit_code", "output_is_bounded", "large_stdin", "file_round_trip", "odd_file_names"),
        *("timeout_kills_the_tree", "spawn_output_before_exit", "destroy_ends_commands"),
        *("detach_ends_the_reading", "detached_commands_are_killed"),
        *("snapshot_restores_the_workspace", "environment_is_saved", "list_by_labels"),
        *("terminal_is_typed_at", "network_is_closed", "host_files_are_hidden"),
        *("user_is_not_root", "no_secret_in_any_environment", "environment_is_read_only"),
    )
)
"""Some of each group of the contract."""


def representative(facts: Sequence[Fact]) -> Sequence[ParameterSet]:
    """All of them; those that are not representatives are long."""
    return long_but(facts, lambda fact: fact.name in REPRESENTATIVES)

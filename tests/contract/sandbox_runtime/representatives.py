"""Facts that each change is tested with where each takes a container or an emulated machine, or nothing is isolated."""

from collections.abc import Sequence
from typing import Final

from _pytest.mark import ParameterSet

from sandbox_runtime.testing.conformance import Fact
from tests.long import long_but

REPRESENTATIVES: Final = frozenset(
    (
        *("exit_code", "streams_are_split", "output_is_bounded", "large_stdin", "timeout_raises"),
        *("arguments_arrive_unchanged", "file_round_trip", "odd_file_names", "read_limit"),
        *("symlinks_inside", "timeout_kills_the_tree", "kill_ends_the_tree"),
        *("spawn_output_before_exit", "spawn_loses_nothing", "sandboxes_do_not_share_files"),
        *("destroy_ends_commands", "unknown_snapshot", "snapshot_restores_the_workspace"),
        *("environment_is_saved", "list_by_labels", "attach_after_destroy"),
        *("work_dir_is_worked_in", "terminal_is_typed_at", "network_is_closed"),
        *("host_files_are_hidden", "user_is_not_root", "no_secret_in_any_environment"),
        "environment_is_read_only",
    )
)
"""Some of each group of the contract."""


def representative(facts: Sequence[Fact]) -> Sequence[ParameterSet]:
    """All of them; those that are not representatives are long."""
    return long_but(facts, lambda fact: fact.name in REPRESENTATIVES)

"""Agents whose own command line a person can use: which they are, and how one is started. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agent_scripts.adapter import AgentCommand, AgentFile, AgentTurn
from agent_scripts.supervision import inside_files, inside_path

_FILES = ("interactive.py", "relay.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveCommand:
    """How to start it; stdin is the person's."""

    command: AgentCommand
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Members that JSON files of the agent must have, by the files' paths: what it would otherwise ask a newcomer."""


@runtime_checkable
class InteractiveAdapter(Protocol):
    """An agent that has such a form. Pure."""

    def interactive(self, turn: AgentTurn) -> InteractiveCommand:
        """Its own command line, without a message; of the turn, `messages` and `max_turns` do not count.

        Raises:
            ValueError: the session id is none that the agent could have.
        """
        ...


def at_terminal(interactive: InteractiveCommand, turn: AgentTurn, *, broker: str) -> AgentCommand:
    """The same with the relay beside it, to be run on a terminal; `turn.paths.run` belongs to this one start."""
    command, paths = interactive.command, turn.paths
    config_path = f"{paths.run}/interactive.json"
    config = {
        "argv": list(command.argv),
        "env": dict(command.env),
        "cwd": paths.work,
        "broker": broker,
        "settings": interactive.settings,
    }
    return AgentCommand(
        argv=("python3", "-I", inside_path(paths, "interactive.py"), config_path),
        env={},
        files=(
            *command.files,
            *inside_files(paths, _FILES),
            AgentFile(path=config_path, data=json.dumps(config).encode()),
        ),
    )

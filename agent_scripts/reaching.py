"""Which hosts a sandbox reaches, tried from inside: the command, and what it says."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agent_scripts.adapter import AgentCommand, AgentPaths
from agent_scripts.supervision import script_files, script_path

_INSIDE_FILES = ("inside/reach.py", "inside/relay.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTry:
    """Says what became of one host: `reached`, `refused: STATUS, REASON` by Orion, or `failed: REASON`, of the proxy's with its status."""

    host: str
    """`name:port`, or `name:port@address` where that address was dialled with the name in TLS alone."""
    direct: str
    """Past the proxy."""
    by_proxy: str
    """Empty where there is none."""

    @property
    def is_reached(self) -> bool:
        """Whether there is any way to it."""
        return "reached" in (self.direct, self.by_proxy)


def reach_command(hosts: Sequence[str], paths: AgentPaths, broker: str) -> AgentCommand:
    """Returns how to try hosts, each as `HostTry` has it; `broker` as `Sandbox.paths` has it. It takes some 20 s for sixteen at the most."""
    script = script_path(paths, "inside/reach.py")
    return AgentCommand(
        argv=("python3", "-I", script, broker, *hosts),
        env={},
        files=script_files(paths, _INSIDE_FILES),
    )


def parse_tries(text: str) -> Sequence[HostTry]:
    """Reads what the command has printed. Raises: ValueError: it is nothing of it."""
    try:
        found = json.loads(text)
        return [
            HostTry(host=host, direct=one["direct"], by_proxy=one["by_proxy"])
            for host, one in found.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"the sandbox says {text[:200]!r}") from exc

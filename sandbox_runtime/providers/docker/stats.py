"""What a sandbox uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStats:
    memory_bytes: int
    """With the page cache of its files."""
    memory_limit_bytes: int
    processes: int
    cpu_s: float
    """Since it was made."""

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Source: Docker Engine API v1.41, ContainerStats."""
        memory, cpu = found.get("memory_stats") or {}, found.get("cpu_stats") or {}
        return cls(
            memory_bytes=int(memory.get("usage", 0)),
            memory_limit_bytes=int(memory.get("limit", 0)),
            processes=int((found.get("pids_stats") or {}).get("current", 0)),
            cpu_s=float((cpu.get("cpu_usage") or {}).get("total_usage", 0)) / 1e9,
        )

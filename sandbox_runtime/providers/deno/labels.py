"""What is written on a sandbox, in the few labels that there are, and read back."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from sandbox_runtime.owner import Owner

MANAGED = "orion.managed"
"""The label that is ours: namespace, maker, volume, environment, and whether the caller had a label of that name."""
MAX_LABELS, MAX_KEY_BYTES, MAX_VALUE_BYTES = 5, 64, 128
"""Source: Deno documentation, "Create a Deno Sandbox", labels, read 2026-11."""
_TRUE = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLabels:
    """Raises: ValueError: the caller's are too many, too long, or not in lower case."""

    namespace: str
    owner: Owner
    volume: str
    """Id of the volume that it has for itself."""
    environment: str
    """Id of the environment's snapshot."""
    base: str
    """Id of the base below it."""
    environment_writable: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """The caller's own."""

    def __post_init__(self) -> None:
        others = set(self.labels) - {MANAGED}
        if len(others) >= MAX_LABELS:
            raise ValueError(
                f"a Deno sandbox has at most {MAX_LABELS - 1} labels beside {MANAGED}, not {len(others)}"
            )
        for key, value in self.labels.items():
            if key != key.lower() or not 0 < len(key.encode()) <= MAX_KEY_BYTES:
                # The SDK returns keys with another case (deno-sandbox 0.16.0, convert_to_snake_case).
                raise ValueError(f"not a label of a Deno sandbox: {key!r}")
            if len(value.encode()) > MAX_VALUE_BYTES:
                raise ValueError(f"label {key} is longer than {MAX_VALUE_BYTES} bytes")
        if self.labels.get(MANAGED, _TRUE) != _TRUE:
            raise ValueError(f"label {MANAGED} is the provider's own")

    def encode(self) -> dict[str, str]:
        mode = "w" if self.environment_writable else "r"
        mode += "m" if MANAGED in self.labels else "-"
        ticks, _, boot = self.owner.started.partition("@")
        fields = (
            self.volume,
            self.environment,
            self.base,
            mode,
            str(self.owner.pid),
            ticks,
            boot,
            self.namespace,
        )
        return {**self.labels, MANAGED: " ".join(fields)}

    @classmethod
    def decode(cls, found: Mapping[str, str]) -> Self | None:
        """None when it is none of ours."""
        with suppress(KeyError, ValueError):
            volume, environment, base, mode, pid, ticks, boot, namespace = found[MANAGED].split(" ")
            own = {MANAGED: _TRUE} if mode[1] == "m" else {}
            return cls(
                namespace=namespace,
                owner=Owner(pid=int(pid), started=f"{ticks}@{boot}"),
                volume=volume,
                environment=environment,
                base=base,
                environment_writable=mode[0] == "w",
                labels={**{k: v for k, v in found.items() if k != MANAGED}, **own},
            )
        return None
